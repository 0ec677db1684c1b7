"""The kinds of decisions, one file each."""

from natpp.decisions import operation, rank, term, width  # they register themselves

__all__ = ["operation", "rank", "term", "width"]
