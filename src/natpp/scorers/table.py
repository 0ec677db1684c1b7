"""Tables of trained networks, such as NAS-Bench-201, as scorers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from natpp.arch.formats import parse
from natpp.arch.graph import Architecture
from natpp.core.scores import Scores
from natpp.errors import FormatError, NatppError, did_you_mean, shortened
from natpp.scorers.base import Scorer


class Table:
    """Architectures in the order of a file, with its columns of numbers."""

    def __init__(self, archs: Sequence[Architecture], columns: dict[str, Scores]):
        self.archs = list(archs)
        self.columns = columns
        self._rows: dict[Architecture, int] = {}
        for row, arch in enumerate(self.archs):
            if self._rows.setdefault(arch, row) != row:
                raise FormatError(f"row {row + 1} of the table repeats an architecture of row {self._rows[arch] + 1}")

    def __len__(self) -> int:
        return len(self.archs)

    def column(self, name: str) -> Scores:
        """One column."""
        if name not in self.columns:
            raise FormatError(f"the table has no column {name!r}. {did_you_mean(name, self.columns)}")
        return self.columns[name]

    def row(self, arch: Architecture) -> int:
        """The row of an architecture."""
        if arch not in self._rows:
            raise NatppError("the architecture is not in the table")
        return self._rows[arch]


def read_table(path: str | Path, columns: Sequence[str] | None = None) -> Table:
    """Read a table with a column `arch` (NAS-Bench-201 strings) and columns of numbers: Parquet or CSV."""
    try:
        import pyarrow
        from pyarrow import csv, parquet
    except ImportError:
        raise NatppError("reading a table needs pyarrow: pip install 'natpp[tables]'") from None
    try:
        data = csv.read_csv(path) if str(path).endswith(".csv") else parquet.read_table(path)
    except OSError as error:
        reason = (error.strerror or error) if Path(path).exists() else "there is no such file"
        raise FormatError(f"cannot read the table {str(path)!r}: {reason}") from None
    except pyarrow.ArrowException as error:
        raise FormatError(f"{str(path)!r} is not a Parquet or CSV table: {shortened(str(error))}") from None
    wanted = [name for name in data.column_names if name != "arch"] if columns is None else list(columns)
    for name in ("arch", *wanted):
        if name not in data.column_names:
            raise FormatError(
                f"the table {str(path)!r} has no column {name!r}. {did_you_mean(name, data.column_names)}"
            )
    if len(set(data.column_names)) < len(data.column_names):
        raise FormatError(f"the table {str(path)!r} has two columns with the same name")
    found = {}
    for name in wanted:
        try:
            found[name] = data[name].to_numpy().astype(np.float64)
        except (ValueError, TypeError):
            if columns is not None:
                raise FormatError(f"the column {name!r} of the table does not hold numbers") from None
            continue
        if columns is not None and not np.isfinite(found[name]).all():
            raise FormatError(f"the column {name!r} of the table has empty or infinite entries")
    texts = data["arch"].to_pylist()
    if not texts:
        raise FormatError(f"the table {str(path)!r} is empty")
    return Table([parse(str(text)) for text in texts], found)


class TableScorer(Scorer):
    """Scores looked up in a column.

    Without a limit every architecture has its own row. With a limit, architectures that compute the same count as
    one, and the first of their rows is used.
    """

    free = True

    def __init__(self, table: Table, column: str, limit: int | None = None):
        super().__init__(limit)
        self.table = table
        self.values = table.column(column)
        self._keys: dict[Architecture, Architecture] = {}
        self._first: dict[Architecture, int] = {}
        if limit is not None:
            for row, arch in enumerate(table.archs):
                self._first.setdefault(self.key(arch), row)

    def key(self, arch: Architecture) -> Architecture:
        if self.limit is None:
            return arch
        if arch not in self._keys:
            self._keys[arch] = arch.essence()
        return self._keys[arch]

    def _score(self, archs: list[Architecture]) -> Scores:
        if self.limit is None:
            return self.values[[self.table.row(arch) for arch in archs]]
        for arch in archs:
            self.table.row(arch)  # raises if the architecture is not in the table
        return self.values[[self._first[self.key(arch)] for arch in archs]]
