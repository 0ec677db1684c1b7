"""What an architecture is: values only, no training. Importing it fills the registries of ops, rules and networks."""

from natpp.arch import cost, formats, graph, layers, networks, ops, rules, space

__all__ = ["cost", "formats", "graph", "layers", "networks", "ops", "rules", "space"]
