"""Several datasets read as one."""

from __future__ import annotations

import json
import operator
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, TypeVar

from . import _native
from ._place import open_store

_T = TypeVar("_T")

# A change of proportions: its first position, counted over all epochs, and the proportion of each stream.
Phase = tuple[int, list[str]]

# Streams whose stores are asked at the same time.
_OPENED_AT_ONCE = 16


class Stream:
    """A dataset of a mixture, and its share of an epoch: ``StreamingDataset(streams=[Stream(...), ...])``.

    ``remote``, ``dataset``, ``split`` and ``storage_options`` are those of :class:`shardd.StreamingDataset`. The share is one of:

    ``proportion``
        a share relative to those of the other streams. An epoch has ``epoch_size`` samples, by default the number of samples of
        all streams together. A list of pairs changes the share during the training: ``[(0, 0.9), (1_000_000, 0.5)]`` is 0.5 from
        sample 1,000,000 on, counted over all streams, ranks and epochs. See :func:`shardd.linear_schedule` and
        :meth:`shardd.DataLoader.set_proportions`.
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
        proportion: float | str | Sequence[tuple[int, float | str]] | None = None,
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
        self.changes: tuple[tuple[int, str], ...] = ()
        if self.kind == "proportion" and not isinstance(amount, str) and isinstance(amount, Sequence):
            first, *later = _schedule(amount)
            # A stream whose first share comes later has none before.
            self.changes = tuple(later if first[0] == 0 else (first, *later))
            amount = first[1] if first[0] == 0 else "0"
        self.amount = _number(self.kind, amount)

    def __repr__(self) -> str:
        names = {"dataset": self.dataset, "split": self.split}
        more = [f"{name}={value!r}" for name, value in names.items() if value is not None]
        return f"Stream({', '.join([repr(self.remote), *more, _shown(self.kind, self.amount, self.changes)])})"


def _number(kind: str, amount: Any) -> str:
    """A number as digits, exactly as it was written."""
    refused = ValueError(f"{kind}={amount!r} is not a number: write {1000 if kind == 'choose' else 0.7}")
    if isinstance(amount, bool):
        raise refused
    try:
        return f"{Decimal(str(amount)):f}"
    except InvalidOperation:
        raise refused from None


def _schedule(pairs: Sequence[Any]) -> list[tuple[int, str]]:
    """The pairs of a schedule, checked."""
    refused = f"proportion={pairs!r} is no schedule: write [(0, 0.9), (1_000_000, 0.5)], pairs of a sample's number and a share, ascending from 0"
    try:
        schedule = [(_whole(begin), _rounded(share)) for begin, share in pairs]
    except (TypeError, ValueError) as error:
        raise ValueError(f"{refused} ({error})") from None
    begins = [begin for begin, _ in schedule]
    if not schedule or begins[0] < 0 or any(later <= earlier for earlier, later in zip(begins, begins[1:])):
        raise ValueError(refused)
    return schedule


def _whole(number: Any) -> int:
    """A number of samples; ``1e6`` is one, too."""
    return int(number) if isinstance(number, float) and number.is_integer() else operator.index(number)


def _rounded(share: Any) -> str:
    """A share as digits, a computed one rounded to nine behind the point."""
    return _number("proportion", round(share, 9) if isinstance(share, float) else share)


def _shown(kind: str, amount: str, changes: Sequence[tuple[int, str]]) -> str:
    return f"{kind}={amount}" + "".join(f", {share} from {begin}" for begin, share in changes[:3]) + ", …" * (len(changes) > 3)


def linear_schedule(start: float, end: float, samples: int, *, begin: int = 0, parts: int = 32) -> list[tuple[int, float]]:
    """A proportion that changes from ``start`` to ``end``, for :class:`shardd.Stream`.

    It is ``start`` up to sample ``begin``, changes in ``parts`` equal steps over the next ``samples``, and is ``end`` after that.
    Samples count over all streams, ranks and epochs: a training of steps of 256 samples has 256,000 after 1,000 steps."""
    begin, samples = _whole(begin), _whole(samples)
    if parts < 1 or samples < parts or begin < 0 or not (start >= 0 and end >= 0):
        raise ValueError(
            f"linear_schedule({start}, {end}, {samples}, begin={begin}, parts={parts}): shares are 0 or more, begin is 0 or more, and "
            "there are at least as many samples as parts, of which there is at least one"
        )
    # Each part has the share of its middle, so that as many samples are read as on the line.
    inner = [(begin + samples * part // parts, round(start + (end - start) * (part + 0.5) / parts, 9)) for part in range(parts)]
    before = [(0, round(start, 9))] if begin > 0 else []
    return [*before, *inner, (begin + samples, round(end, 9))]


@dataclass(frozen=True)
class _Source:
    """A stream whose version was looked up: it stays the same in every process."""

    where: dict[str, Any]
    name: str
    version: str
    samples: int
    kind: str
    amount: str
    changes: tuple[tuple[int, str], ...]

    def share_at(self, position: int) -> str:
        """Its proportion at a position, by its own schedule."""
        return next((share for begin, share in reversed(self.changes) if begin <= position), self.amount)


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
        # The proportions that a training has set, behind those of the schedules.
        self.set_phases: list[Phase] = []
        for stream in streams:
            if not isinstance(stream, Stream):
                raise TypeError(f"streams are a list of shardd.Stream, and {stream!r} is a {type(stream).__name__}")

        def look_up(stream: Stream) -> tuple[_native.Store, _Source]:
            options = stream.storage_options if stream.storage_options is not None else storage_options
            where = dict(place=stream.remote, **(options or {}))
            store = open_store(**where)
            name, version, samples = find(store, stream.dataset, stream.split)
            return store, _Source(where, name, version, samples, stream.kind, stream.amount, stream.changes)

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
            phases=self._phases(),
        )

    def _phases(self) -> list[Phase]:
        """All changes of proportions: those of the schedules, up to the first that a training has set."""
        first_set = self.set_phases[0][0] if self.set_phases else None
        begins = sorted({begin for source in self.sources for begin, _ in source.changes})
        scheduled = [begin for begin in begins if first_set is None or begin < first_set]
        return [(begin, [source.share_at(begin) for source in self.sources]) for begin in scheduled] + self.set_phases

    def with_set(self, phases: Sequence[Phase]) -> Mixture:
        """This mixture, with these proportions of a training in place of those that were set before."""
        other = object.__new__(Mixture)
        other.__dict__.update(self.__dict__)
        other.set_phases = list(phases)
        other.native = self.native.with_phases(other._phases())
        return other

    def set_at(self, position: int, shares: Sequence[Any]) -> list[Phase]:
        """The set proportions, with others from a position on."""
        if len(shares) != len(self.sources):
            raise ValueError(f"{len(shares)} proportions are given for {len(self.sources)} streams: give one for each, in their order")
        if self.sources[0].kind != "proportion":
            raise ValueError(f"the streams have {self.sources[0].kind}, not proportions: give each Stream a proportion")
        if position == 0:
            raise ValueError("no step is done yet: give these proportions to the streams")
        numbers = [_rounded(share if isinstance(share, str) else float(share)) for share in shares]
        before = [phase for phase in self.set_phases if phase[0] < position]
        return before if before and before[-1][1] == numbers else [*before, (position, numbers)]

    def refuse_changes_after(self, samples: int) -> None:
        """Refuses schedules that change behind the first epoch, where all epochs have the samples of the first."""
        late = [begin for source in self.sources for begin, _ in source.changes if begin >= samples]
        if late:
            raise ValueError(
                f"a proportion changes at sample {min(late)}, and with shuffle=False all epochs have the {samples} samples of the first: "
                "give a stream one proportion"
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
        streams = ", ".join(f"{source.name} {_shown(source.kind, source.amount, source.changes)}" for source in self.sources)
        return f"{len(self.sources)} streams: {streams}; {self.native.samples} samples an epoch, mixture {self.native.id[:12]}"

    def __getstate__(self) -> dict[str, Any]:
        return {"sources": self.sources, "_epoch_size": self._epoch_size, "_plan": self._plan, "set_phases": self.set_phases}

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
