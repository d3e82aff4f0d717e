"""A plan's order over any map-style dataset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Sized
from typing import Any

from . import _native
from ._ranks import Ranks, place_in, refuse_unequal
from ._schedule import shares
from ._state import State, StateMismatch


class Sampler:
    """Yields the indices of a rank's samples, in place of ``DistributedSampler``. Its order exchanges a share ``q`` of the samples
    between partitions after each epoch, and any number of ranks can resume from its state.

    An epoch has every sample exactly once. In each step, a virtual rank has ``batch_size`` indices. In a short last step,
    virtual ranks differ by one. ``drop_last=True`` leaves that step out. If it has no index for some rank, that rank would make a
    step less, for which ``DistributedDataParallel`` waits forever: with a ``batch_size`` you must then pass ``drop_last``, ``False``
    for loops whose ranks do not wait for each other. The number of ranks must divide the partitions, unless you pass ``virtual_ranks``.
    """

    def __init__(
        self,
        dataset: Sized | int,
        num_replicas: int | None = None,
        rank: int | None = None,
        *,
        batch_size: int = 1,
        q: float | Sequence[float] = 0.1,
        seed: int = 0,
        partitions: int | None = None,
        virtual_ranks: int | None = None,
        drop_last: bool | None = None,
        replication: int | None = None,
        mesh: Any = None,
    ) -> None:
        self.num_samples = dataset if isinstance(dataset, int) else len(dataset)
        if batch_size < 1:
            raise ValueError(f"batch_size={batch_size} reads nothing; use at least 1")
        self._order = _native.Order(self.num_samples, q=shares(q), seed=seed, partitions=partitions)
        self._given_ranks = (rank, num_replicas, replication, place_in(mesh))
        ranks = self.ranks
        self.virtual_ranks = virtual_ranks or self._order.default_virtual_ranks(ranks.world)
        if not virtual_ranks:
            refuse_unequal(ranks.world, self.virtual_ranks, self._order.partitions, lambda: self.num_samples, "Sampler")
        self._order.check_ranks(ranks.world, self.virtual_ranks)
        self.batch_size = batch_size
        self.drop_last = bool(drop_last)
        if self._end() == 0:
            raise ValueError(
                f"{self.num_samples} samples do not fill a step of {self.global_batch_size} in which all ranks have equally many; use "
                "a smaller batch_size, or drop_last=False"
            )
        # With steps of one index, the size of a batch is not known here.
        if drop_last is None and batch_size > 1:
            self._refuse_idle_ranks(ranks.world)
        self._cursor = (0, 0)
        self._inside = False

    def _refuse_idle_ranks(self, world: int) -> None:
        """Refuses a last step that has no index for some rank; it is shared alike in each epoch."""
        rest = self.num_samples % self.global_batch_size
        if not 0 < rest < self.virtual_ranks:
            return
        step = (0, self.num_samples - rest, self.num_samples)
        idle = [rank for rank in range(world) if not any(self._order.reads(*step, rank, world, self.virtual_ranks))]
        if idle:
            raise ValueError(
                f"the last step of an epoch has {rest} of the {self.num_samples} samples and none for {len(idle)} of {world} ranks, which "
                "would make a step less. "
                "With DistributedDataParallel all ranks would then wait forever: pass drop_last=True, or drop_last=False if your ranks "
                "do not wait for each other"
            )

    def __repr__(self) -> str:
        epoch, position = self._cursor
        of = f"plan {self.plan[:12]} of {self._order.partitions} partitions"
        return f"Sampler(epoch {epoch}, position {position} of {self.num_samples}, {of})"

    @property
    def plan(self) -> str:
        """The id of the plan, which is another for another number of samples, seed, q or number of partitions."""
        return self._order.id

    @property
    def ranks(self) -> Ranks:
        """Which rank this is, of how many."""
        return Ranks.find(*self._given_ranks)

    @property
    def global_batch_size(self) -> int:
        """What all ranks read in a step: ``batch_size`` for each virtual rank."""
        return self.batch_size * self.virtual_ranks

    def set_epoch(self, epoch: int) -> None:
        """The next iteration reads this epoch; if a loaded state is within it, the rest."""
        if epoch != self._cursor[0] or self._inside:
            self._cursor, self._inside = (epoch, 0), False

    def __len__(self) -> int:
        """The number of indices that this rank has in the next iteration."""
        epoch, position = self._begin()
        end = self._end()
        full, rest = divmod(max(end - position, 0), self.global_batch_size)
        last = self._order.reads(epoch, end - rest, end, *self._share())
        return full * self.batch_size * len(last) + sum(len(own) for own in last)

    def __iter__(self) -> Iterator[int]:
        """Indices in the order of steps, and in each of virtual ranks; the state counts whole steps."""
        epoch, position = self._cursor = self._begin()
        end, batch = self._end(), self.global_batch_size
        while position < end:
            self._inside = True
            until = min(position + batch, end)
            own = [index for part in self._order.reads(epoch, position, until, *self._share()) for index in part]
            yield from own[:-1]
            # With the last one of a step the step is given.
            position = until
            self._cursor, self._inside = ((epoch, position), True) if position < end else ((epoch + 1, 0), False)
            yield from own[-1:]

    def state_dict(self, *, samples: int | None = None) -> dict[str, Any]:
        """The position. A loader that reads ahead takes indices before you get their samples. So pass the number of samples of
        this epoch that all ranks have used, as ``samples``."""
        epoch, position = self._cursor
        if samples is not None:
            position = samples
        return State(self.plan, epoch, position, self.virtual_ranks).as_dict()

    def load_state_dict(self, state: Mapping[str, Any], *, force: bool = False) -> None:
        """Continues at the position in the state, with any number of ranks."""
        read = State.of(state)
        if not force:
            read.check(self.plan, f"this sampler of {self.num_samples} samples")
        if read.position > self.num_samples:
            raise StateMismatch(f"position {read.position} is beyond the {self.num_samples} samples of an epoch")
        self._cursor, self._inside = (read.epoch, read.position), False

    def _begin(self) -> tuple[int, int]:
        epoch, position = self._cursor
        return (epoch + 1, 0) if self._inside else (epoch, position)

    def _end(self) -> int:
        if not self.drop_last:
            return self.num_samples
        return self.num_samples // self.global_batch_size * self.global_batch_size

    def _share(self) -> tuple[int, int, int]:
        ranks = self.ranks
        return ranks.rank, ranks.world, self.virtual_ranks
