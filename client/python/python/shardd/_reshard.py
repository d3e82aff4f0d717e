"""A version cut into shards of another size by the workers of an engine: what a task does, and the commit."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from . import _native
from ._place import open_store

# Tasks that have a unit of work at least. Each reads the manifest.
_TASKS = 1000


@dataclass
class Reshard:
    """It goes to workers, each of which opens the store by itself."""

    place: str
    storage_options: Mapping[str, Any]
    name: str
    version: str
    shard_size: str
    compression: str | None

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "work"}

    @classmethod
    def of(cls, place: str, name: str, shard_size: str, compression: str | None, storage_options: Mapping[str, Any]) -> Reshard:
        """Of the present version of a dataset.

        :raises FileNotFoundError: when there is no such dataset.
        :raises ValueError: for a size or compression that is none.
        """
        if "@" in name:
            raise ValueError(f"{name!r} names a version, and the present one is resharded: give the name of the dataset")
        _, version, _ = open_store(place, **storage_options).resolve(name)
        made = cls(place, storage_options, name, version, shard_size, compression)
        _ = made.work
        return made

    @cached_property
    def work(self) -> _native.Resharding:
        store = open_store(self.place, **self.storage_options)
        return _native.Resharding(store, self.version, shard_size=self.shard_size, compression=self.compression)

    @property
    def tasks(self) -> int:
        return min(self.work.units(), _TASKS)

    def write(self, task: int) -> str:
        """Stores the shards of a task; their entries as one text."""
        units, tasks = self.work.units(), self.tasks
        return json.dumps(self.work.write(units * task // tasks, units * (task + 1) // tasks))

    def commit(self, written: Iterable[tuple[int, str]], message: str) -> str:
        """Makes the version of what all tasks have written, each with its number, the present one."""
        entries = [entry for _, text in sorted(written) for entry in json.loads(text)]
        return self.work.commit(self.name, entries, message)
