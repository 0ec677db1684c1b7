"""Sizes of a convolution as a matrix product: of its strips, and of the tiles that kernels process."""

from __future__ import annotations

import functools
from dataclasses import dataclass

STRIPS = 128  # strips that a program multiplies at once
DEPTH = 64  # terms of a product's sum copied at once
BREADTH = 64  # columns of a product per program
MERGED = 16  # rows of merged weights per program
TALL = 128, 64  # for the gradient of merged weights: rows per program, and strips at once
WIDEST = 8  # maximum pixels of a strip


@dataclass(frozen=True)
class Conv:
    """The sizes of a dense conv, of its strips, and of its merged weights."""

    images: int
    height: int  # of the output
    width: int
    channels_in: int
    channels_out: int
    kernel: int
    stride: int
    dilation: int

    @functools.cached_property
    def strip(self) -> int:
        """Pixels of a strip, chosen to read the fewest columns per row, within the columns of one product."""
        most = min(max(BREADTH // self.channels_out, 1), WIDEST)
        return min(range(1, most + 1), key=lambda strip: (-(-self.width // strip) * self._span(strip), -strip))

    def _span(self, strip: int) -> int:
        return (strip - 1) * self.stride + (self.kernel - 1) * self.dilation + 1

    @functools.cached_property
    def span(self) -> int:
        """Columns of the buffer that a strip's window covers."""
        return self._span(self.strip)

    @functools.cached_property
    def across(self) -> int:
        """Strips per row; the last may extend beyond its end."""
        return -(-self.width // self.strip)

    @functools.cached_property
    def depth(self) -> int:
        """Rows of the merged weights, including the zeros below."""
        whole = max(DEPTH, TALL[0])
        return -(-self.kernel * self.span * self.channels_in // whole) * whole

    @functools.cached_property
    def tall(self) -> int:
        """Row blocks of the gradient of the merged weights."""
        return self.depth // TALL[0]

    @functools.cached_property
    def beside(self) -> int:
        """Column blocks of the merged weights, including the zeros on the right."""
        return -(-self.strip * self.channels_out // BREADTH)

    def even(self, groups: int) -> bool:
        """Whether strips end with their rows, fill all columns, and those of a group fill all tiles."""
        strips = self.images // groups * self.height * self.across
        full = self.strip * self.channels_out == self.beside * BREADTH
        return full and self.width % self.strip == 0 and strips % STRIPS == 0

    @functools.cached_property
    def period(self) -> int:
        """Number of columns of a product after which channels repeat, if it divides the blocks; otherwise 0."""
        period = BREADTH if self.strip == 1 else self.channels_out
        return period if BREADTH % period == 0 else 0
