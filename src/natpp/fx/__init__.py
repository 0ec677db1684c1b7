"""Traces any `torch.nn.Module`, and rewrites it with other operations and inherited weights."""
