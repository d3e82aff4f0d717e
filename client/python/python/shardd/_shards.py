"""The shards of a version, as tasks of an engine read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from ._place import open_store


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

    def tables(self, shards: range) -> Iterator[pa.Table]:
        """The samples of each of these shards, verified."""
        store = open_store(self.place, **self.storage_options)
        for shard in shards:
            file = pa.py_buffer(store.shard_file(self.version, shard))
            yield pa.ipc.open_file(file).read_all()
