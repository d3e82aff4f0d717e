"""A dataset and the plan by which it is read."""

from __future__ import annotations

import functools
import json
import operator
import os
import sys
import warnings
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from . import _formats, _native
from ._epochs import SharedEpoch
from ._place import open_store
from ._ranks import Ranks, Taken, place_in
from ._schedule import shares
from ._shared import SharedBatches
from ._state import State, StateMismatch
from ._streams import Mixture, Stream, classes_of, refuse_beside_streams
from .column_transforms import samples_of

if TYPE_CHECKING:
    from ._loader import DataLoader

_WEB = ("http://", "https://")

_FOREIGN = {
    "accelerate.data_loader": "Accelerate would shard the shares once more, and each rank would see 1/W of its part",
    "deepspeed.runtime.dataloader": "DeepSpeed would shard the shares once more",
    "torch.utils.data.distributed": "a DistributedSampler would shard the shares once more",
}


class StreamingDataset:
    """A version of a dataset, read in the order of a plan.

    ``remote`` is a directory or the URL of a store (``s3://bucket/folder``, ``gs://``, ``az://``, ``https://``). For nodes, pass
    their HTTP addresses as ``servers`` instead. ``dataset`` names one of the datasets (``NAME``, ``NAME@TAG``). You can leave it
    out if there is only one. ``split`` reads ``NAME-SPLIT``.

    Tensor- and pipeline-parallel peers read the same samples. If these ranks are consecutive, pass their number as
    ``replication``. Otherwise pass ``mesh``: the index along the data-parallel dimension and its size, or that part of a
    ``DeviceMesh`` of PyTorch's.

    ``q`` is the share of samples that partitions exchange after each epoch; 1.0 exchanges all of them, in parts. A list has the
    shares of the first epochs, and its last item holds for all others. ``partitions`` and ``shuffle_seed`` belong to the plan: another
    value is another order. ``shuffle=False`` reads the samples in stored order, ``dataset[0]``, ``dataset[1]``, ..., in every
    epoch. This is the order of the source only if the dataset was made with ``mix="sequential"`` (``shardctl ingest --mix
    sequential``). By default, ingest mixes the samples, and then ``shuffle=False`` warns. ``limit`` ends every epoch after this
    number of samples of its order, the same for any number of ranks: for a quick try.

    ``features`` is the number of columns of sparse rows: see :class:`shardd.Csr`.

    ``streams`` reads several datasets as one, in place of ``remote``: see :class:`shardd.Stream`. If the streams have
    proportions, an epoch has ``epoch_size`` samples. Each stream has a plan of its own, made in the same way.

    For training, use :class:`shardd.DataLoader`, which reads ahead. Iterating over the dataset itself yields micro-batches if
    it has a ``batch_size``, and single samples otherwise. Inside a ``torch.utils.data.DataLoader`` (``batch_size=None``) each
    worker reads its own share of the batches.
    """

    def __init__(
        self,
        remote: str | os.PathLike[str] | None = None,
        *,
        streams: Sequence[Stream] | None = None,
        epoch_size: int | None = None,
        dataset: str | None = None,
        split: str | None = None,
        servers: Sequence[str] | None = None,
        run: str | None = None,
        batch_size: int | None = None,
        q: float | Sequence[float] = 0.1,
        partitions: int | None = None,
        shuffle: bool = True,
        shuffle_seed: int = 0,
        selection: str = "cyclic",
        grain_rows: int | None = None,
        block_slots: int | None = None,
        virtual_ranks: int | None = None,
        columns: Sequence[str] | None = None,
        limit: int | None = None,
        format: str | None = None,
        image_layout: str | None = None,
        image_dtype: str | None = None,
        features: int | None = None,
        local: str | None = None,
        cache_limit: str | int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        replication: int | None = None,
        mesh: Any = None,
        token: str | None = None,
        ca: str | None = None,
        storage_options: Mapping[str, Any] | None = None,
    ) -> None:
        if batch_size is not None and batch_size < 1:
            raise ValueError(f"batch_size={batch_size} reads nothing; use at least 1")
        if selection not in ("cyclic", "independent"):
            raise ValueError(f'selection={selection!r}: use "cyclic" or "independent"')
        if limit is not None and limit < 1:
            raise ValueError(f"limit={limit} leaves no samples; use at least 1")
        plan = dict(
            q=shares(q),
            seed=shuffle_seed,
            partitions=partitions,
            grain_rows=grain_rows,
            block_slots=block_slots,
            independent=selection == "independent",
        )
        self._settings = plan
        self._mixture: Mixture | None = None
        if streams is not None:
            refuse_beside_streams(
                remote=remote, dataset=dataset, split=split, servers=servers, run=run, token=token, ca=ca
            )
            self._mixture = Mixture(streams, epoch_size, plan, storage_options, _find)
            self._of_mixture(self._mixture)
        elif epoch_size is not None:
            raise ValueError("epoch_size is for streams that have proportions; without streams, an epoch has every sample once")
        else:
            remote = None if remote is None else os.fspath(remote)
            if (remote is None) == (not servers):
                raise ValueError(
                    "pass either the directory or URL of a store, or the addresses of nodes as servers=[...]"
                )
            addresses = _addresses(servers) if servers else None
            self._where = dict(place=remote, servers=addresses, token=token, ca=ca, **(storage_options or {}))
            self._store = open_store(**self._where)
            try:
                self.name, self.version, self._samples = _find(self._store, dataset, split)
            except OSError as error:
                if remote is None or not remote.startswith(_WEB):
                    raise
                if isinstance(error, FileNotFoundError) and _has_datasets(self._store):
                    raise  # a store, and not a node
                raise type(error)(f"{error}. If {remote} is a node, pass it as servers=[{remote!r}]") from None
            self._stored = self._samples
            self.plan, self.partitions = self._store.make_plan(self.version, **plan)
            self._schema = {column["name"]: column for column in self._store.columns(self.version)}
        self.shuffle = shuffle
        if not shuffle and self._mixture is not None:
            self._mixture.refuse_changes_after(self._samples)
        if not shuffle:
            self._warn_if_mixed()
        self.batch_size = batch_size
        self.virtual_ranks = virtual_ranks
        # From a state; for loaders, unless the user gave virtual ranks.
        self._taken: Taken | None = None
        self.run = run
        self._columns = list(columns) if columns is not None else None
        self._format = format
        self._image = (image_layout, image_dtype)
        _formats.image(*self._image)
        if features is not None and features < 1:
            raise ValueError(f"features={features} leaves no columns; use one more than the highest index of the sparse rows")
        self._features = features
        self._cache = (local, str(cache_limit) if cache_limit is not None else None)
        self._limit = limit if limit is not None and limit < self._samples else None
        self._given_ranks = (rank, world_size, replication, place_in(mesh))
        for column in self._columns or ():
            if column not in self._schema:
                raise ValueError(f"no column {column!r}; there are {', '.join(self._schema)}")
        self._samples_by_number: _native.Samples | None = None
        self._epoch = SharedEpoch()
        self._batches = SharedBatches()
        self._iterations = 0
        # Of a worker: where it continues.
        self._resumed: tuple[int, int] | None = None
        # The epoch that was last begun, and what reads it.
        self._reading: tuple[int, DataLoader] | None = None
        # The settings and the loader of an iteration that is over, with its threads, files and memory.
        self._idle: tuple[tuple[Any, ...], DataLoader] | None = None

    def _of_mixture(self, mixture: Mixture) -> None:
        self.name, self.version, self.partitions = mixture.name, None, max(mixture.partitions)
        self.plan, self._samples, self._stored = mixture.native.id, mixture.native.samples, mixture.stored
        self._schema = {column["name"]: column for column in mixture.native.columns()}

    @property
    def _proportions(self) -> tuple[tuple[int, tuple[str, ...]], ...]:
        """The proportions of streams that a training has set, from which position on each."""
        return () if self._mixture is None else tuple((begin, tuple(shares)) for begin, shares in self._mixture.set_phases)

    def _with_proportions(self, phases: Sequence[tuple[int, Sequence[str]]]) -> StreamingDataset:
        """This dataset with the proportions that a training has set. Others that it has set are dropped."""
        if self._mixture is None:
            if phases:
                raise ValueError("the state has proportions of streams, and this dataset has no streams")
            return self
        phases = [(begin, list(shares)) for begin, shares in phases]
        if phases == self._mixture.set_phases:
            return self
        # Not a copy as for another process, which keeps this one's rank.
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._mixture, other._idle = self._mixture.with_set(phases), None
        other._of_mixture(other._mixture)
        return other

    def _of_state(self, state: State, force: bool) -> StreamingDataset:
        """This dataset with the proportions of a state. With ``force``, proportions that do not fit are left out."""
        try:
            return self._with_proportions(state.proportions)
        except ValueError as error:
            if not force:
                raise StateMismatch(f"{error}: the proportions of the state do not fit {self!r}") from None
            warnings.warn(f"the proportions of the state are left out: {error}", stacklevel=3)
            return self

    @property
    def __class__(self) -> type:
        """Asked by ``isinstance``: to PyTorch, if it is there, this is a ``Dataset`` and an ``IterableDataset``, and not one to be
        indexed."""
        data = sys.modules.get("torch.utils.data")
        return type(self) if data is None else _torch_class(type(self), data.IterableDataset)

    def _warn_if_mixed(self) -> None:
        """Warns if the stored order is not that of the source."""
        of = self._mixture.versions if self._mixture is not None else [(self._store, self.version)]
        mixes = [mix for store, version in of if (mix := store.mix(version)) not in (None, "sequential")]
        if mixes:
            warnings.warn(
                f"shuffle=False reads the samples in stored order, and ingest has mixed them (mix={mixes[0]!r}). For the order of the "
                'source, make the dataset with mix="sequential" (shardctl ingest --mix sequential)',
                stacklevel=3,
            )

    # --- properties
    # ---------------------------------------------------------------------------------------------------

    @property
    def columns(self) -> list[str]:
        """The names of the columns that batches have."""
        return self._columns if self._columns is not None else list(self._schema)

    def _check_columns(self, chain: Any) -> None:
        """Whether batches have what a ``Compose`` changes: its columns, its pictures, and the labels that it mixes."""
        left_out = [name for name in self._schema if name not in self.columns]
        changed = [name for name in (chain.column, *getattr(chain, "columns", ())) if name in left_out]
        if (samples := samples_of(chain)) is not None and samples.mixes:
            given = json.loads(samples.to_json())["batch"].get("labels")
            named = [name for name in self._schema if name.lower() in ("label", "labels")] or [name for name in self._schema if "label" in name.lower()]
            changed += [name for name in [given or (named[0] if named else None)] if name in left_out]
        if changed:
            raise ValueError(f"columns={self._columns} leaves {', '.join(changed)} out, which the transforms change: add it")

    @property
    def classes(self) -> list[str]:
        """The names of the classes, if the dataset was made of folders of them; of streams, if these have the same."""
        found = self._mixture.classes() if self._mixture is not None else classes_of(list(self._schema.values()))
        if found is None:
            raise AttributeError("this dataset has no names of classes; pass classes={column: names} when you make it")
        return found

    @property
    def class_to_idx(self) -> dict[str, int]:
        """The number of each class."""
        return {name: number for number, name in enumerate(self.classes)}

    @property
    def num_samples(self) -> int:
        """Samples that all ranks together read in an epoch: all of the version, or the sum of the streams'
        shares; or as many as ``limit`` allows."""
        return self._samples if self._limit is None else self._limit

    @property
    def ranks(self) -> Ranks:
        """Which rank reads here, of how many."""
        return Ranks.find(*self._given_ranks)

    def __repr__(self) -> str:
        limited = "" if self._limit is None else f"{self.num_samples} in an epoch, "
        if self._mixture is not None:
            return f"StreamingDataset({limited}{self._mixture!r})"
        return (
            f"StreamingDataset({self.name}, version {self.version[:12]}, {self._samples} samples, {limited}"
            f"plan {self.plan[:12]} of {self.partitions} partitions)"
        )

    def _repr_html_(self) -> str:
        from . import _notebook

        return _notebook.dataset(self)

    def plot_labels(self, column: str = "label", *, epoch: int = 0, ranks: int | None = None, samples: int = 10_000, ax: Any = None) -> Any:
        """Draws with matplotlib how often each rank gets each value of a column, in the first ``samples`` of an epoch's order.

        ``ranks`` is a number of ranks, by default that of this dataset. They have equally many samples, so differences between
        rows are those of the labels. The store has to be a directory: at most ``samples`` samples are read, as a training would
        read them, with all of their columns. Returns the ``Axes``."""
        from . import _plot

        return _plot.labels(self, column, epoch, ranks, samples, ax)

    def __getitem__(self, index: int | slice | Sequence[int]) -> dict[str, Any]:
        """A sample by its number among those that are stored, or a batch of several: a slice, or a list of numbers. With
        several streams, the numbers of one follow those of the stream before."""
        return self._take(index, None)

    def _take(self, index: int | slice | Sequence[int], transforms: _native.Chain | None) -> dict[str, Any]:
        is_one, numbers = self._numbers(index)
        samples = self._open_samples()
        found = [number + self._stored if number < 0 else number for number in numbers]
        for number, at in zip(numbers, found):
            if not 0 <= at < self._stored:
                of = "the version has" if self._mixture is None else "the streams together have"
                raise IndexError(f"there is no sample {number}; {of} {self._stored}")
        batch = self._reader()(samples.take(found, transforms))
        return {name: values[0] for name, values in batch.items()} if is_one else batch

    def _open_samples(self) -> _native.Samples:
        """What reads samples by their numbers, opened once in each process."""
        if self._samples_by_number is None or not self._samples_by_number.is_own():
            local, cache_limit = self._cache
            versions = self._mixture.versions if self._mixture is not None else [(self._store, self.version)]
            self._samples_by_number = _native.Samples(versions, cache_dir=local, cache_limit=cache_limit)
        return self._samples_by_number

    def _numbers(self, index: Any) -> tuple[bool, Sequence[int]]:
        """Whether an index is that of one sample, and the numbers of all that it names."""
        if isinstance(index, slice):
            return False, range(*index.indices(self._stored))
        try:
            # An array without dimensions is a number.
            several = None if isinstance(index, (str, bytes)) else list(index)
        except TypeError:
            several = None
        return several is None, [self._number(item) for item in ([index] if several is None else several)]

    def _number(self, item: Any) -> int:
        try:
            if not (isinstance(item, bool) or str(getattr(item, "dtype", "")).endswith("bool")):
                return operator.index(item)
        except TypeError:
            pass
        column = f"; for a column, write dataset[0:10][{item!r}]" if isinstance(item, str) and item in self.columns else ""
        raise TypeError(f"{item!r} is no index: pass an int for a sample, or a slice or a list of ints for a batch{column}")

    # --- for iteration without a loader of ours
    # ---------------------------------------------------------------

    def set_epoch(self, epoch: int) -> None:
        """The next iteration reads this epoch, and not the one after the last. If a loaded state is within the epoch, it reads
        the rest."""
        if epoch < 0:
            raise ValueError(f"there is no epoch {epoch}")
        if epoch != self._epoch.next()[0]:
            self._epoch.set(epoch, 0)

    def __iter__(self) -> Iterator[Any]:
        _refuse_foreign("iterate over")
        worker = _worker()
        if worker is not None and self.batch_size is None:
            raise RuntimeError(
                "in workers of a torch DataLoader, a StreamingDataset yields whole batches: make it with batch_size=..., and the "
                "DataLoader with batch_size=None; or use shardd.DataLoader, which needs no workers"
            )
        self._iterations += 1
        begin = self._epoch.begin(self._iteration(worker), worker[0] if worker else 0)
        settings, loader = self._loader(worker)
        epoch, position = self._resumed or begin
        loader._begin_at(epoch, position)
        self._resumed, self._reading = None, (epoch, loader)
        batches = iter(loader)
        return self._kept(settings, loader, batches if self.batch_size is not None else _samples(loader, batches))

    def _loader(self, worker: tuple[int, int, int] | None) -> tuple[tuple[Any, ...], DataLoader]:
        """The loader of an iteration that is over, which has read ahead into the next epoch; or another one, if none is idle or
        settings have changed. With its settings."""
        from ._loader import DataLoader

        turn = worker[:2] if worker else (0, 1)
        settings = (os.getpid(), turn, self.ranks, self.batch_size, self.virtual_ranks, self._taken, self.shuffle)
        idle, self._idle = self._idle, None
        if idle is not None and idle[0] == settings:
            return idle
        loader = DataLoader(
            self,
            batch_size=self.batch_size or 64,
            num_workers=1 if worker else 2,
            # Workers are in no process group.
            check_ranks=worker is None,
            _turn=turn,
            _may_be_unequal=self.batch_size is None,
            _memory=self._batches.hand_over() if worker else None,
        )
        return settings, loader

    def _kept(self, settings: tuple[Any, ...], loader: DataLoader, batches: Generator[Any]) -> Iterator[Any]:
        """The batches. At their end, or when no more are wanted, the loader is idle."""
        try:
            with closing(batches):
                yield from batches
        finally:
            self._idle = settings, loader

    def _iteration(self, worker: tuple[int, int, int] | None) -> tuple[int, int]:
        """What all workers of an iteration have in common, and no other iteration."""
        return (worker[2] if worker else -os.getpid(), self._iterations)

    def state_dict(self) -> dict[str, Any]:
        """The position of the last iteration; at its end, the end of its epoch. Inside a ``StatefulDataLoader``, each worker has
        its own state."""
        if self.batch_size is None:
            raise RuntimeError(
                "a StreamingDataset without batch_size yields single samples, and cannot say which of them were used: make it with "
                "batch_size=..., and the foreign loader with batch_size=None; or use shardd.DataLoader"
            )
        from ._loader import DataLoader

        begun, loader = self._reading or (None, DataLoader(self))
        epoch, position = loader._cursor if begun is not None else self._epoch.next()
        if begun is not None and epoch > begun:
            # Others may have some of this epoch left, and the next one is another iteration.
            epoch, position = begun, self.num_samples
        worker = loader._turn if loader._turn[1] > 1 else None
        state = State(self._order, epoch, position, loader.virtual_ranks, self.run, worker, self._limit, proportions=self._proportions)
        return state.as_dict()

    def load_state_dict(self, state: Mapping[str, Any], *, force: bool = False) -> None:
        """The next iteration continues at the position in the state, and keeps its virtual ranks on the terms of
        :meth:`DataLoader.load_state_dict`. A state of a loader is for the next iteration, with any number of workers. The state of
        a worker is only for the same one of as many."""
        read = State.of(state)
        dataset = self._of_state(read, force)
        if not force:
            read.check(dataset._order, repr(dataset), self._limit)
        worker = _worker()
        if read.worker is not None and read.worker != (worker or (0, 1))[:2]:
            raise StateMismatch(
                f"the state is of worker {read.worker[0]} of {read.worker[1]}, and this is "
                f"{f'worker {worker[0]} of {worker[1]}' if worker else 'none'}: keep num_workers, or use shardd.DataLoader, whose "
                "state fits any number"
            )
        from ._loader import DataLoader

        if dataset is not self:
            self._mixture = dataset._mixture
            self._of_mixture(dataset._mixture)
        loader = DataLoader(self, batch_size=self.batch_size or 64, _may_be_unequal=self.batch_size is None)
        loader._take(Taken(read.virtual_ranks))
        self._taken = loader._taken
        self._reading = self._idle = None
        if worker is None:
            self._epoch.set(read.epoch, read.position)
        else:
            # Workers are not equally far, but in the same epoch.
            self._resumed = (read.epoch, read.position)
            seed, iterations = self._iteration(worker)
            self._epoch.agree((seed, iterations + 1), read.epoch)

    def __len__(self) -> int:
        _refuse_foreign("take the length of")
        from ._loader import DataLoader

        return len(DataLoader(self, batch_size=self.batch_size or 1))

    # --- for processes that get a copy ----------------------------------------------------------------------------------

    def __reduce__(self) -> tuple[Any, ...]:
        # By its type: pickle would compare that with `__class__`.
        return _made, (type(self),), self.__getstate__()

    def __getstate__(self) -> dict[str, Any]:
        _refuse_foreign("send")
        state = self.__dict__.copy()
        state.pop("_store", None)
        state["_samples_by_number"] = None
        state["_reading"] = state["_idle"] = None
        # A worker is in no process group.
        if state["_given_ranks"][0] is None and (here := Ranks.of_group()) is not None:
            state["_given_ranks"] = (here.rank, here.world, *self._given_ranks[2:])
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._mixture is None:
            self._store = open_store(**self._where)

    # --- for loaders ----------------------------------------------------------------------------------------------------

    def _reader(self) -> Callable[[Iterable[_native.Column]], dict[str, Any]]:
        """What makes columns a batch, as the user has asked for it."""
        return _formats.reader(self.columns, self._format, *self._image, self._features)

    def _open(self, **how: Any) -> _native.Loader:
        local, cache_limit = self._cache
        where = dict(cache_dir=local, cache_limit=cache_limit, run=self.run, shuffle=self.shuffle, limit=self._limit)
        return _native.Loader(self._mixture.native if self._mixture is not None else (self._store, self.plan), **where, **how)

    def _default_virtual_ranks(self, world: int, global_batch: int | None = None) -> int:
        """The default V: for steps of one size in any world, or for the world. A mixture has no partitions
        that must be divided."""
        if self._mixture is None:
            return self._store.describe_plan(self.plan, world, global_batch)[3]
        return world if global_batch is None else _native.mixture_virtual_ranks(global_batch)

    def _grains(self) -> int:
        """The most partitions that a plan with grains of this size can have."""
        return self._samples if self._mixture is not None else self._store.full_grains(self.plan)

    @property
    def _order(self) -> str:
        """What a state is a position of."""
        if self._mixture is not None:
            return f"mixture-{self.plan}" if self.shuffle else f"stored-mixture-{self.plan}"
        return self.plan if self.shuffle else f"stored-{self.version}"


@functools.cache
def _torch_class(of: type[StreamingDataset], iterable: type) -> type:
    """What ``isinstance`` of PyTorch's classes looks at. There are no objects of it, and PyTorch is not imported for it."""
    return type(of.__name__, (of, iterable), {"__module__": of.__module__, "__qualname__": of.__qualname__, "__doc__": of.__doc__})


def _made(of: type[StreamingDataset]) -> StreamingDataset:
    """A dataset whose state is set next."""
    return of.__new__(of)


def _addresses(servers: str | Sequence[str]) -> list[str]:
    found = servers.split(",") if isinstance(servers, str) else list(servers)
    for address in found:
        if not address.startswith(_WEB):
            raise ValueError(f"servers has {address!r}, which is not the address of a node: write it as 'http://10.77.0.1:7700'")
    return found


def _find(store: _native.Store, dataset: str | None, split: str | None) -> tuple[str, str, int]:
    """The name of a dataset, the version of the reference, and how many samples it has."""
    reference = _reference(store, dataset, split)
    try:
        return store.resolve(reference)
    except FileNotFoundError:
        name = reference.partition("@")[0]
        names = _names(store)
        if name in names:
            raise  # about the tag or version
        raise FileNotFoundError(f"there is no dataset {name}; {_there_are(names)}{_remedy(name, split, names)}") from None


def _reference(store: _native.Store, dataset: str | None, split: str | None) -> str:
    if dataset is None:
        names = _names(store)
        found = names if split is None else [name for name in names if name.endswith(f"-{split}")]
        if not found:
            missing = "there is no dataset" if split is None else f"no dataset ends in -{split}"
            more = ""
            if split is not None:
                splits = [end for name in names for _, dash, end in [name.rpartition("-")] if dash]
                more = _no_split(names[0], split) if len(names) == 1 else _similar("split", split, splits)
            raise ValueError(f"{missing}; {_there_are(names)}{more}")
        if len(found) > 1 and split is None:
            raise ValueError(f"there are several datasets: pass {_either('dataset', found)}")
        if len(found) > 1:
            wholes = [name.removesuffix(f"-{split}") for name in found]
            raise ValueError(f'split="{split}" is there of several datasets: pass {_either("dataset", wholes)} as well')
        return found[0]
    if split is None:
        return dataset
    name, at, tag = dataset.partition("@")
    return f"{name}-{split}{at}{tag}"


def _remedy(name: str, split: str | None, names: list[str]) -> str:
    """What to pass in the place of a name, part of which may be a split, that none of the datasets has."""
    whole = name if split is None else name.removesuffix(f"-{split}")
    if split is not None and whole in names:
        return _no_split(whole, split)
    if splits := [other.removeprefix(f"{whole}-") for other in names if other.startswith(f"{whole}-")]:
        return f": pass {_either('split', splits)} as well" if split is None else f": pass {_either('split', splits)}"
    end = "" if split is None else f"-{split}"
    return _similar("dataset", whole, [other.removesuffix(end) for other in names if other.endswith(end)])


def _similar(argument: str, value: str, there: list[str]) -> str:
    import difflib

    found = difflib.get_close_matches(value, there, 1)
    return f': did you mean {argument}="{found[0]}"?' if found else ""


def _either(argument: str, values: list[str]) -> str:
    return " or ".join(f'{argument}="{value}"' for value in values)


def _no_split(name: str, split: str) -> str:
    return (
        f"; {name} has no split {split}: a split is a dataset of its own, named NAME-SPLIT. Leave split out, or ingest the samples of "
        f"the split under the name {name}-{split}"
    )


def _names(store: _native.Store) -> list[str]:
    return sorted(name for name, _, _ in store.datasets())


def _has_datasets(store: _native.Store) -> bool:
    try:
        return bool(_names(store))
    except OSError:
        return False


def _there_are(names: list[str]) -> str:
    if not names:
        return "the store is empty: fill it with shardctl ingest, or shardd.from_torch"
    return f"there are {', '.join(names)}" if len(names) > 1 else f"there is {names[0]}"


def _samples(loader: DataLoader, batches: Iterator[Any]) -> Iterator[dict[str, Any]]:
    for batch in batches:
        if not loader.weight:
            continue  # a stand-in, of a sample that another rank has
        for values in zip(*batch.values()):
            yield dict(zip(batch, values))


def _worker() -> tuple[int, int, int] | None:
    """Which worker of a foreign loader this is, of how many, and what its iteration is known by."""
    data = sys.modules.get("torch.utils.data")
    info = data.get_worker_info() if data is not None else None
    return (info.id, info.num_workers, info.seed - info.id) if info is not None else None


def _refuse_foreign(what: str) -> None:
    """A library that shards the shares of this dataset once more would lose samples without a word."""
    frame = sys._getframe(1)
    while frame is not None:
        reason = _FOREIGN.get(frame.f_globals.get("__name__", ""))
        if reason is not None:
            raise RuntimeError(
                f"refusing to {what} a StreamingDataset here: {reason}. Use shardd.DataLoader(dataset, batch_size=...), and do not "
                "give it a sampler or prepare it: it finds its rank by itself"
            )
        frame = frame.f_back
