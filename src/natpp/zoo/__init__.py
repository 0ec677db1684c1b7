"""Architectures by name: published cells, and hand-crafted networks reimplemented from their papers."""

from natpp.zoo.cells import Entry
from natpp.zoo.models import Model, network
from natpp.zoo.published import Published, published_rows

__all__ = ["Entry", "Model", "Published", "network", "published_rows"]
