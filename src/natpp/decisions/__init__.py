"""The kinds of decisions, one file each."""

from natpp.decisions import operation, term  # they register themselves

__all__ = ["operation", "term"]
