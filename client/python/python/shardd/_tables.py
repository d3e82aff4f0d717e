"""Tables that an engine holds in parts: what its workers do with a part, in Arrow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa

from . import _native
from ._place import open_store

# The column by which an engine brings the rows of a shard together.
SHARD = "__shardd_shard__"

_WRITTEN = pa.schema({"shard": pa.int64(), "entry": pa.string()})

# Rows, their canonical bytes, and the sum of their digests modulo 2^128.
Amount = tuple[int, int, int]


def total(parts: Iterable[Amount]) -> Amount:
    """The amount of all parts together."""
    rows, size, digests = 0, 0, 0
    for part in parts:
        rows, size, digests = rows + part[0], size + part[1], digests + part[2]
    return rows, size, digests % (1 << 128)


@dataclass
class Job:
    """An ingest of a table with these columns. It goes to workers, each of which opens the store by itself."""

    columns: pa.Schema
    out: str
    storage_options: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    shard_size: str | None = None
    compression: str | None = None
    # The version that rows are appended to, which has a seed and a compression.
    base: str | None = None
    # Once they are known.
    shards: int = 0

    @classmethod
    def appending(
        cls, columns: pa.Schema, out: str, name: str, shard_size: str | None, storage_options: Mapping[str, Any]
    ) -> Job:
        """One that appends to the present version of a dataset.

        :raises FileNotFoundError: when there is no such dataset.
        """
        if "@" in name:
            raise ValueError(f"{name!r} names a version, and rows are appended to the present one: give the name of the dataset")
        _, base, _ = open_store(out, **storage_options).resolve(name)
        return cls(columns, out, storage_options, shard_size=shard_size, base=base)

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in ("table", "store")}

    @cached_property
    def table(self) -> _native.Table:
        if SHARD in self.columns.names:
            raise ValueError(f"the table has a column {SHARD!r}: rename it")
        columns = _native.Batch(pa.RecordBatch.from_pylist([], schema=self.columns))
        if self.base is not None:
            return _native.Table.appending(columns, self.store, self.base, shard_size=self.shard_size)
        how = {"seed": self.seed, "shard_size": self.shard_size, "compression": self.compression}
        return _native.Table(columns, **how)

    @cached_property
    def store(self) -> _native.Store:
        return open_store(self.out, **self.storage_options)

    def measure(self, part: pa.Table) -> Amount:
        """How much its rows are."""
        return total(self.table.measure(batch) for batch in self._batches(part))

    def measured(self, amount: Amount) -> Job:
        """The job, once all rows are measured.

        :raises ValueError: when there are none.
        """
        rows, size, _ = amount
        if rows == 0:
            raise ValueError("there are no rows")
        return replace(self, shards=self.table.shards(rows, size))

    def deal(self, part: pa.Table) -> pa.Table:
        """The part with the shard of each row, a 32-bit integer."""
        dealt = [np.frombuffer(self.table.deal(batch, self.shards), "<i4") for batch in self._batches(part)]
        column = pa.chunked_array([pa.array(shards) for shards in dealt], pa.int32())
        return part.select(self.columns.names).append_column(SHARD, column)

    def write(self, part: pa.Table) -> pa.Table:
        """Stores the shard of these rows, all that were dealt to it; a line with its number and its entry, or none of no rows."""
        written = self.table.write(self.store, list(self._batches(part)), self.shards)
        lines = [] if written is None else [{"shard": written[0], "entry": written[1]}]
        return pa.Table.from_pylist(lines, schema=_WRITTEN)

    def commit(self, name: str, amount: Amount, shards: Sequence[tuple[int, str]], message: str) -> str:
        """Makes the version the present one of a dataset."""
        if self.base is not None:
            return self.table.append(self.store, name, self.base, amount, list(shards), message)
        return self.table.commit(self.store, name, amount, list(shards), message)

    def _batches(self, part: pa.Table) -> Iterator[_native.Batch]:
        if missing := [name for name in self.columns.names if name not in part.schema.names]:
            raise ValueError(f"a part of the table lacks the columns {missing}")
        # An engine may forget what is null nowhere, and which of two types of text a column has.
        rows = part.select(self.columns.names).cast(self.columns)
        return (_native.Batch(batch) for batch in rows.to_batches())
