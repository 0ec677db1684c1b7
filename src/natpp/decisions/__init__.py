"""The kinds of decisions, one file each."""

from natpp.decisions import operation, term, width  # they register themselves

__all__ = ["operation", "term", "width"]
