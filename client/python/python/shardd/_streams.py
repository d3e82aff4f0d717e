"""Several datasets read as one."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, TypeVar

from . import _native
from ._place import open_store

_T = TypeVar("_T")

# Streams whose stores are asked at the same time.
_OPENED_AT_ONCE = 16


class Stream:
    """A dataset of a mixture, and its share of an epoch: ``StreamingDataset(streams=[Stream(...), ...])``.

    ``remote``, ``dataset``, ``split`` and ``storage_options`` are those of :class:`shardd.StreamingDataset`. The share is one of:

    ``proportion``
        a share relative to those of the other streams. An epoch has ``epoch_size`` samples, by default the number of samples of
        all streams together.
    ``repeat``
        the number of times that its samples are read, rounded down to samples. The default is 1.
    ``choose``
        a number of samples.

    Either all streams have a proportion, or none has. A stream continues in the next epoch where it stopped: its own epochs
    are read whole and without repeats, each in another order.
    """

    def __init__(
        self,
        remote: str | os.PathLike[str] | None = None,
        *,
        dataset: str | None = None,
        split: str | None = None,
        proportion: float | str | None = None,
        repeat: float | str | None = None,
        choose: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        if not remote:
            raise ValueError("Stream(remote=...): pass the directory or URL of the stream's store")
        given = {"proportion": proportion, "repeat": repeat, "choose": choose}
        said = {kind: amount for kind, amount in given.items() if amount is not None}
        if len(said) > 1:
            together = " and ".join(f"{kind}={amount}" for kind, amount in said.items())
            raise ValueError(f"Stream({remote!r}) has {together}: give one of proportion, repeat and choose")
        self.remote, self.dataset, self.split = os.fspath(remote), dataset, split
        self.storage_options = dict(storage_options) if storage_options is not None else None
        self.kind, amount = next(iter(said.items()), ("repeat", 1))
        self.amount = _number(self.kind, amount)

    def __repr__(self) -> str:
        names = {"dataset": self.dataset, "split": self.split}
        more = [f"{name}={value!r}" for name, value in names.items() if value is not None]
        return f"Stream({', '.join([repr(self.remote), *more, f'{self.kind}={self.amount}'])})"


def _number(kind: str, amount: Any) -> str:
    """A number as digits, exactly as it was written."""
    refused = ValueError(f"{kind}={amount!r} is not a number: write {1000 if kind == 'choose' else 0.7}")
    if isinstance(amount, bool):
        raise refused
    try:
        return f"{Decimal(str(amount)):f}"
    except InvalidOperation:
        raise refused from None


@dataclass(frozen=True)
class _Source:
    """A stream whose version was looked up: it stays the same in every process."""

    where: dict[str, Any]
    name: str
    version: str
    samples: int
    kind: str
    amount: str


def _at_once(function: Callable[..., _T], *arguments: Sequence[Any]) -> list[_T]:
    """The results of calls that wait for stores, in order; the error of the first that fails."""
    with ThreadPoolExecutor(max_workers=_OPENED_AT_ONCE) as threads:
        return list(threads.map(function, *arguments))


class Mixture:
    """What a :class:`shardd.StreamingDataset` of streams reads: their plans, and the order that mixes them."""

    def __init__(
        self,
        streams: Sequence[Stream],
        epoch_size: int | None,
        plan: Mapping[str, Any],
        storage_options: Mapping[str, Any] | None,
        find: Callable[[_native.Store, str | None, str | None], tuple[str, str, int]],
    ) -> None:
        self._epoch_size, self._plan = epoch_size, dict(plan)
        for stream in streams:
            if not isinstance(stream, Stream):
                raise TypeError(f"streams are a list of shardd.Stream, and {stream!r} is a {type(stream).__name__}")

        def look_up(stream: Stream) -> tuple[_native.Store, _Source]:
            options = stream.storage_options if stream.storage_options is not None else storage_options
            where = dict(place=stream.remote, **(options or {}))
            store = open_store(**where)
            name, version, samples = find(store, stream.dataset, stream.split)
            return store, _Source(where, name, version, samples, stream.kind, stream.amount)

        found = _at_once(look_up, streams)
        self.sources = [source for _, source in found]
        self._mix([store for store, _ in found])

    def _mix(self, stores: list[_native.Store]) -> None:
        plans = _at_once(lambda store, source: store.make_plan(source.version, **self._plan), stores, self.sources)
        self._stores = stores
        self.plans = [plan for plan, _ in plans]
        self.partitions = [partitions for _, partitions in plans]
        self.native = _native.Mixture(
            [
                (store, source.version, plan, f"stream {number} ({source.name})", source.kind, source.amount)
                for number, (store, (plan, _), source) in enumerate(zip(stores, plans, self.sources))
            ],
            epoch_size=self._epoch_size,
        )

    @property
    def name(self) -> str:
        """What the datasets are called, together."""
        return " + ".join(source.name for source in self.sources)

    @property
    def stored(self) -> int:
        """Samples that all streams have together, whatever an epoch has of them."""
        return sum(source.samples for source in self.sources)

    @property
    def versions(self) -> list[tuple[_native.Store, str]]:
        """Where each stream's version is."""
        return [(store, source.version) for store, source in zip(self._stores, self.sources)]

    def classes(self) -> list[str] | None:
        """The names of the classes, if all streams have the same; `None` if none has any."""
        noted = [classes_of(store.columns(version)) for store, version in self.versions]
        for source, classes in zip(self.sources, noted):
            if classes != noted[0]:
                raise AttributeError(
                    f"the streams have different classes: {self.sources[0].name} has {noted[0]}, {source.name} has {classes}. Ask a "
                    "StreamingDataset of each for its own, and map the labels in transform"
                )
        return noted[0]

    def __repr__(self) -> str:
        streams = ", ".join(f"{source.name} {source.kind}={source.amount}" for source in self.sources)
        return f"{len(self.sources)} streams: {streams}; {self.native.samples} samples an epoch, mixture {self.native.id[:12]}"

    def __getstate__(self) -> dict[str, Any]:
        return {"sources": self.sources, "_epoch_size": self._epoch_size, "_plan": self._plan}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._mix([open_store(**source.where) for source in self.sources])


def classes_of(columns: Sequence[Mapping[str, Any]]) -> list[str] | None:
    """The names of the classes that are noted with a column."""
    noted = (column["metadata"].get("shardd.classes") for column in columns)
    return next((json.loads(names) for names in noted if names), None)


def refuse_beside_streams(**given: Any) -> None:
    """A dataset cannot be named twice."""
    for name, value in given.items():
        if value is None:
            continue
        if name in ("servers", "run", "token", "ca"):
            raise ValueError(
                f"{name} and streams are both given: nodes work on one plan a run, so streams are read from their stores; leave {name} out"
            )
        raise ValueError(f"{name} and streams are both given: pass {name} to each Stream, or leave streams out")
