"""Architectures as values, without training. Importing this registers the operations, rules and networks."""

from natpp.arch import cost, formats, graph, layers, networks, ops, rules, space

__all__ = ["cost", "formats", "graph", "layers", "networks", "ops", "rules", "space"]
