"""Networks: architectures as modules with weights."""
