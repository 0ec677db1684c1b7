"""What can be optimized: architectures of cells, and any module."""
