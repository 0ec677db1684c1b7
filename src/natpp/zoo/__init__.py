"""Architectures people already have, by name: published cells, and whole networks written from their papers."""

from natpp.zoo.cells import Entry
from natpp.zoo.models import Model, network
from natpp.zoo.published import Published, published_rows

__all__ = ["Entry", "Model", "Published", "network", "published_rows"]
