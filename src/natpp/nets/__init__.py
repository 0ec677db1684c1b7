"""Architectures as networks with weights."""
