"""For Grain: random access to samples, and a plan's order of them.

.. code-block:: python

    from shardd.grain import DataSource, PlanSampler, in_order

    source = DataSource(shardd.StreamingDataset("s3://bucket/store"))
    ordered = in_order(source, PlanSampler(source, q=0.1)).repeat().map(augment)
    batches = grain.experimental.ElasticIterator(ordered, 256, grain.sharding.ShardByJaxProcess())

The order is that of :class:`shardd.Sampler`. It does not depend on the number of shards.
"""

from __future__ import annotations

import copy
import sys
import threading
from collections import OrderedDict
from collections.abc import Sequence, Sized
from typing import Any

from numpy.random import Generator, Philox

try:
    import grain.python
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(f"{missing}; shardd.grain needs Grain: pip install grain", name=missing.name) from None

from . import _native
from ._dataset import StreamingDataset
from ._schedule import shares

# Positions whose samples are looked up at once, and how many of these blocks are kept.
_BLOCK = 4096
_BLOCKS = 16


class DataSource:
    """The samples of ``dataset`` by their numbers, as a ``RandomAccessDataSource``: for ``grain.MapDataset.source`` and
    ``grain.DataLoader``.

    A sample is a dict of NumPy arrays and scalars, as :class:`shardd.StreamingDataset` gives them in ``format="numpy"``. Binaries
    are ``bytes``, and lists of different lengths are arrays of different lengths.

    The numbers are those of ``dataset[0]``, ``dataset[1]``, …, the stored order. The plan of the dataset has no part in them: take
    the order from a :class:`PlanSampler`. Threads may share a source, and processes get copies.

    ``repr`` names the version and the columns, and not the place of the store. ``grain.DataLoader`` compares it when it loads a
    state. So a state resumes after a move of the store, and not with other data.

    Raises ``ValueError`` for a dataset with another ``format``, or with a ``limit``.
    """

    def __init__(self, dataset: StreamingDataset) -> None:
        if not isinstance(dataset, StreamingDataset):
            raise TypeError(f"DataSource takes a shardd.StreamingDataset, and this is a {type(dataset).__name__}")
        if dataset._format not in (None, "numpy"):
            raise ValueError(f'the dataset has format={dataset._format!r}, and Grain batches NumPy arrays: pass format="numpy"')
        if dataset._limit is not None:
            raise ValueError(f"the dataset has limit={dataset._limit}, which ends an order: take a slice of the MapDataset instead")
        self._dataset = copy.copy(dataset)
        self._dataset._format = "numpy"
        self._lock = threading.Lock()

    def __len__(self) -> int:
        """The number of stored samples, of all streams."""
        return self._dataset._stored

    def __getitem__(self, index: int) -> dict[str, Any]:
        """A sample. Raises ``IndexError`` for a number that no sample has."""
        self._open()
        return self._dataset[index]

    def _getitems(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Several samples, read at once: Grain calls this for batches."""
        if not len(indices):
            return []
        self._open()
        batch = self._dataset[list(indices)]
        return [dict(zip(batch, values)) for values in zip(*batch.values(), strict=True)]

    def __repr__(self) -> str:
        dataset = self._dataset
        if dataset._mixture is not None:
            of = [(source.name, source.version) for source in dataset._mixture.sources]
        else:
            of = [(dataset.name, dataset.version)]
        layout, dtype = dataset._image
        changes = [f"{name}={value}" for name, value in (("image_layout", layout), ("image_dtype", dtype)) if value is not None]
        parts = [*(f"{name} {version}" for name, version in of), f"columns={'+'.join(dataset.columns)}", *changes]
        return f"DataSource({', '.join(parts)})"

    def _open(self) -> None:
        """Opens the samples once, and not in each thread that asks first."""
        with self._lock:
            self._dataset._open_samples()

    def __getstate__(self) -> dict[str, Any]:
        return {"_dataset": self._dataset}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()


class PlanSampler:
    """A plan's order over numbered samples, as a ``grain.samplers.Sampler``: item ``i`` is the sample at position ``i`` of all epochs
    one after the other. Each epoch has each sample once, in another order.

    ``source`` is a :class:`DataSource` or another sized source, or a number of samples. ``q``, ``seed`` and ``partitions`` make the
    plan, as in :class:`shardd.Sampler`. ``epochs`` is the number of epochs; by default they do not end.

    The order does not depend on the number of shards. Grain gives each of n shards every n-th position, so a global batch is a range
    of positions. Random numbers of a ``RandomMap`` depend on ``seed`` and the position alone.

    Threads may share a sampler, and processes get copies. Raises ``ValueError`` for settings that make no plan.
    """

    def __init__(
        self,
        source: Sized | int,
        *,
        q: float | Sequence[float] = 0.1,
        seed: int = 0,
        partitions: int | None = None,
        epochs: int | None = None,
    ) -> None:
        self.num_samples = source if isinstance(source, int) else len(source)
        if self.num_samples < 1:
            raise ValueError(f"there is no order of {self.num_samples} samples; fill the source first")
        if epochs is not None and epochs < 1:
            raise ValueError(f"epochs={epochs} reads nothing; use at least 1, or leave it out for no end")
        self.seed, self.epochs = seed, epochs
        self._plan: dict[str, Any] = dict(q=shares(q), seed=seed, partitions=partitions)
        self._begin()

    def _begin(self) -> None:
        self._order = _native.Order(self.num_samples, **self._plan)
        self._blocks: OrderedDict[tuple[int, int], list[int]] = OrderedDict()
        self._lock = threading.Lock()

    @property
    def plan(self) -> str:
        """The id of the plan, that of a :class:`shardd.Sampler` with the same arguments."""
        return self._order.id

    def __len__(self) -> int:
        """The positions of all epochs; ``sys.maxsize`` without an end."""
        return sys.maxsize if self.epochs is None else self.epochs * self.num_samples

    def sample_at(self, position: int) -> int:
        """The number of the sample at a position, counted over all epochs from 0. Positions near each other are fast; an epoch
        before those of the last calls costs as much as all epochs up to it."""
        if position < 0:
            raise IndexError(f"there is no position {position}; positions begin at 0")
        epoch, at = divmod(position, self.num_samples)
        number, place = divmod(at, _BLOCK)
        with self._lock:
            if (block := self._blocks.get((epoch, number))) is None:
                end = min((number + 1) * _BLOCK, self.num_samples)
                [block] = self._order.reads(epoch, number * _BLOCK, end, 0, 1, 1)
                self._blocks[epoch, number] = block
                if len(self._blocks) > _BLOCKS:
                    self._blocks.popitem(last=False)
        return block[place]

    def __getitem__(self, index: int) -> grain.python.RecordMetadata:
        """The record at a position, with random numbers of its own. Raises ``IndexError`` after the last epoch."""
        if index >= len(self):
            raise IndexError(f"there is no position {index}; {self.epochs} epochs have {len(self)}")
        rng = Generator(Philox(key=[self.seed, index]))
        return grain.python.RecordMetadata(index=index, record_key=self.sample_at(index), rng=rng)

    def __repr__(self) -> str:
        # Without epochs: a state resumes in a longer training.
        return f"PlanSampler(plan={self.plan})"

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in ("num_samples", "seed", "epochs", "_plan")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._begin()


class _InOrder(grain.python.MapDataset):
    """The samples of a parent in the order of a sampler."""

    _MUTATES_ELEMENT_SPEC = False

    def __init__(self, parent: grain.python.MapDataset, sampler: PlanSampler) -> None:
        super().__init__(parent)
        self._sampler = sampler

    def __len__(self) -> int:
        return self._sampler.num_samples

    def __str__(self) -> str:
        return f"InOrder({self._sampler!r})"

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return self.slice(index)
        return self._parent[self._index(index)]

    def _getitems(self, indices: Sequence[int]) -> Sequence[Any]:
        return self._parent._getitems([self._index(index) for index in indices])

    def _index(self, index: int) -> int:
        # Datasets count on over epochs.
        return index - index % len(self) + self._sampler.sample_at(index)


def in_order(source: Any, sampler: PlanSampler) -> grain.python.MapDataset:
    """The samples of ``source`` in the order of ``sampler``, as a ``grain.MapDataset`` of one epoch; ``repeat`` adds the next ones.

    ``source`` is a :class:`DataSource`, another random-access source, or a ``grain.MapDataset``. In a
    ``grain.experimental.ElasticIterator``, the state of any shard resumes any number of shards that divides the global batch, with
    the same global batches.

    Raises ``ValueError`` if the sampler is for another number of samples."""
    if len(source) != sampler.num_samples:
        raise ValueError(f"the sampler is for {sampler.num_samples} samples, and the source has {len(source)}: make it of this source")
    parent = source if isinstance(source, grain.python.MapDataset) else grain.python.MapDataset.source(source)
    return _InOrder(parent, sampler)
