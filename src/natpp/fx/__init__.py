"""Any `torch.nn.Module` in, a better one out: traced, transformed, rewritten with the weights it had."""
