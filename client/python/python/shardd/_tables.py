"""Tables that an engine holds in parts: what its workers do with a part, in Arrow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from . import _native
from ._place import open_store

# The column by which an engine brings the rows of a shard together.
SHARD = "__shardd_shard__"


@dataclass
class Job:
    """An ingest of a table with these columns. It goes to workers, each of which opens the store by itself."""

    columns: pa.Schema
    out: str
    storage_options: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    shard_size: str | None = None
    compression: str | None = None
    # Once they are known.
    shards: int = 0

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in ("table", "store")}

    @cached_property
    def table(self) -> _native.Table:
        if SHARD in self.columns.names:
            raise ValueError(f"the table has a column {SHARD!r}: rename it")
        columns = _native.Batch(pa.RecordBatch.from_pylist([], schema=self.columns))
        how = {"seed": self.seed, "shard_size": self.shard_size, "compression": self.compression}
        return _native.Table(columns, **how)

    @cached_property
    def store(self) -> _native.Store:
        return open_store(self.out, **self.storage_options)

    def measure(self, part: pa.Table) -> tuple[int, int]:
        """Its rows and their bytes."""
        amounts = [self.table.measure(batch) for batch in self._batches(part)]
        return sum(rows for rows, _ in amounts), sum(size for _, size in amounts)

    def deal(self, part: pa.Table) -> pa.Table:
        """The part with the shard of each row, a 32-bit integer."""
        dealt = [np.frombuffer(self.table.deal(batch, self.shards), "<i4") for batch in self._batches(part)]
        column = pa.chunked_array([pa.array(shards) for shards in dealt], pa.int32())
        return part.select(self.columns.names).append_column(SHARD, column)

    def write(self, part: pa.Table) -> tuple[int, str] | None:
        """Stores the shard of these rows, all that were dealt to it."""
        return self.table.write(self.store, list(self._batches(part)), self.shards)

    def commit(self, name: str, amount: tuple[int, int], shards: Sequence[tuple[int, str]], message: str) -> str:
        """Makes the version the present one of a dataset."""
        rows, size = amount
        return self.table.commit(self.store, name, rows, size, list(shards), message)

    def _batches(self, part: pa.Table) -> Iterator[_native.Batch]:
        if missing := [name for name in self.columns.names if name not in part.schema.names]:
            raise ValueError(f"a part of the table lacks the columns {missing}")
        # An engine may forget what is null nowhere, and which of two types of text a column has.
        rows = part.select(self.columns.names).cast(self.columns)
        return (_native.Batch(batch) for batch in rows.to_batches())
