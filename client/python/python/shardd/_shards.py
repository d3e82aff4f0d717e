"""The shards of a version, as tasks of an engine read them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from . import _ranges
from ._place import open_store

# What a task reads at least, if there is that much: a version may have a hundred thousand shards.
_TASK_BYTES = 64 << 20

# A fault of a shard: its place in the version, its id, which of its files, how it is damaged, and the reason.
FAULTS = pa.schema({"index": pa.int64(), "shard": pa.string(), "file": pa.string(), "damage": pa.string(), "reason": pa.string()})


@dataclass(frozen=True)
class Verified:
    """What a verification of a version found.

    ``damaged`` is a table with a row for each damaged file, in the order of the shards: the place of the shard in the version
    (``index``), its id (``shard``), ``file`` (``shard`` or ``sidecar``), ``damage`` (``missing``, ``unreadable`` or ``corrupt``) and
    ``reason``, which is null for missing files.
    """

    dataset: str
    version: str
    # All of them were checked.
    shards: int
    samples: int
    damaged: pa.Table

    @property
    def is_intact(self) -> bool:
        """Whether nothing is damaged."""
        return self.damaged.num_rows == 0


@dataclass(frozen=True)
class Shards:
    """It goes to workers, each of which opens the store by itself."""

    place: str
    storage_options: Mapping[str, Any]
    name: str
    version: str
    schema: pa.Schema
    # Of each shard its samples, and the bytes of its rows.
    sizes: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, place: str, dataset: str | None, storage_options: Mapping[str, Any]) -> Shards:
        """Those of the dataset, which may be left out if the store has only one.

        :raises ValueError: when the store has several datasets, or none.
        """
        store = open_store(place, **storage_options)
        if dataset is None:
            names = [name for name, _, _ in store.datasets()]
            if len(names) != 1:
                raise ValueError(f"name one of the datasets in {place}: {', '.join(names) or 'there are none'}")
            dataset = names[0]
        name, version, _ = store.resolve(dataset)
        sizes = tuple((samples, size) for samples, _, size in store.shards(version))
        return cls(place, storage_options, name, version, pa.schema(store.schema(version)), sizes)

    def parts(self, shards: Iterable[int] | None = None) -> list[tuple[int, ...]]:
        """The numbers of these shards, or of all, in parts of about 64 MiB, each for a task."""
        parts: list[tuple[int, ...]] = []
        part: list[int] = []
        size = 0
        for number in range(len(self.sizes)) if shards is None else shards:
            part.append(number)
            size += self.sizes[number][1]
            if size >= _TASK_BYTES:
                parts.append(tuple(part))
                part, size = [], 0
        return [*parts, tuple(part)] if part else parts

    def among(self, predicate: pc.Expression) -> list[int]:
        """The numbers of the shards that may have rows for which the predicate is true, by the ranges of values in the manifest."""
        store = open_store(self.place, **self.storage_options)
        # A name that is only a part of another one costs a look at its ranges.
        columns = [column for column in self.schema if column.name in str(predicate)]
        ranges = {column.name: store.ranges(self.version, column.name) for column in columns}
        known = [
            [_ranges.known(column, rows, ranges[column.name][number]) for column in columns]
            for number, (rows, _) in enumerate(self.sizes)
        ]
        return _ranges.satisfiable(self.schema, known, predicate)

    def faults(self, shards: Sequence[int]) -> pa.Table:
        """The faults of some shards and their sidecars, found by reading and hashing them."""
        store = open_store(self.place, **self.storage_options)
        lines = [line for first, end in _stretches(shards) for line in store.verify(self.version, first, end)]
        return pa.Table.from_pylist([json.loads(line) for line in lines], schema=FAULTS)

    def verified(self, faults: Iterable[Mapping[str, Any]]) -> Verified:
        """The result of the verification of all shards, whose faults come in any order."""
        lines = sorted(map(dict, faults), key=lambda fault: (fault["index"], fault["file"]))
        samples = sum(rows for rows, _ in self.sizes)
        return Verified(self.name, self.version, len(self.sizes), samples, pa.Table.from_pylist(lines, schema=FAULTS))

    def tables(self, shards: Iterable[int]) -> Iterator[pa.Table]:
        """The samples of each of these shards, verified."""
        store = open_store(self.place, **self.storage_options)
        for shard in shards:
            file = pa.py_buffer(store.shard_file(self.version, shard))
            yield pa.ipc.open_file(file).read_all()


def _stretches(numbers: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Numbers in order as ranges, each with its end."""
    first = 0
    for place in range(1, len(numbers) + 1):
        if place == len(numbers) or numbers[place] != numbers[place - 1] + 1:
            yield numbers[first], numbers[place - 1] + 1
            first = place
