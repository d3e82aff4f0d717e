"""The loader: a rank's micro-batches, epoch by epoch."""

from __future__ import annotations

import hashlib
import random
import sys
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from . import _device, _facts, _formats, _native, _stats, _transform
from .column_transforms import samples_of, together
from .transforms import Compose, Transform
from ._dataset import StreamingDataset
from ._ranks import Ranks, Taken, refuse_unequal, refuse_unequal_resumed
from ._state import State, StateMismatch

LAST_BATCH = ("short", "drop", "wrap", "carry")

# Arguments of PyTorch's DataLoader that this one has no use for, and what to do instead.
_FOREIGN = {
    "shuffle": "shuffle belongs to StreamingDataset, which shuffles unless you pass shuffle=False there",
    "sampler": "leave sampler out: the dataset's plan gives the order, and the loader finds its rank by itself",
    "batch_sampler": "pass batch_size instead of batch_sampler: the dataset's plan gives the order",
    "worker_init_fn": "leave worker_init_fn out: workers are threads, and each micro-batch of transform has a random seed of its own",
    "persistent_workers": "leave persistent_workers out: threads and processes stay until close()",
    "multiprocessing_context": "leave multiprocessing_context out: workers are threads; for Python code pass transform_processes",
    "generator": "pass shuffle_seed to StreamingDataset instead of generator, and call torch.manual_seed for transforms",
    "timeout": "leave timeout out: an error ends the wait for a batch",
    "pin_memory_device": "leave pin_memory_device out, and pass the device to shardd.to_device",
    "in_order": "leave in_order out: batches have the order of the plan",
}


# Where no iteration begins.
_NOWHERE = (-1, 0)


def _split(transform: Any) -> tuple[Compose | None, _transform.Steps | None]:
    """What threads do to pictures and columns, and what Python does to samples after that."""
    steps = list(transform) if isinstance(transform, Sequence) else [transform]
    for step in steps:
        if isinstance(step, Transform) and not isinstance(step, Compose):
            raise TypeError(f"{step!r} is one operation: pass Compose([...])")
        if step is not None and not callable(step):
            raise TypeError(f"transform is a Compose, a function, or a list of these, and {step!r} is none")
    steps = together(steps)
    chain = steps.pop(0) if steps and isinstance(steps[0], Compose) else None
    rest = [step for step in steps if step is not None]
    for step in [chain, *rest] if rest else []:
        if isinstance(step, Compose) and step.mixes:
            raise ValueError(f"{step!r} mixes finished batches: leave MixUp and CutMix out where functions follow, or come before")
    return chain, _transform.Steps(rest, chain.native.count if chain is not None else 0) if rest else None


@dataclass
class _Loop:
    """A loop that runs: the position in its epoch where it began, and how many micro-batches of the epoch are done."""

    position: int
    done: int


class DataLoader:
    """Yields the micro-batches of a rank as dicts of tensors, in the order of the dataset's plan.

    This is not a ``torch.utils.data.DataLoader``. Accelerate and Lightning pass it through, and it finds its rank by itself
    (from ``torch.distributed``, else ``RANK`` and ``WORLD_SIZE``).

    ``batch_size`` is the number of samples of a virtual rank in a step. By default there is one virtual rank per rank, so this
    is the batch size of a rank. An iteration refuses a number of ranks that does not divide the plan's partitions. Or pass
    ``global_batch_size``, the number of samples of all ranks in a step. The number of virtual ranks then follows from it and
    the plan, for any number of ranks. ``virtual_ranks`` sets it in either case.

    With fewer ranks than virtual ranks, a step has several micro-batches; see :attr:`accumulation` and :attr:`is_last_micro`.
    Multiply the mean loss of each by its :attr:`weight`. Summed over the step and averaged over ranks (as DDP does), this has
    the gradient of the mean over all samples of the step. A weight of 0 marks a stand-in: one sample, for a rank that has
    nothing to read in a short last step.

    ``num_workers`` is the number of threads that gather batches, outside the interpreter's lock. ``transform`` receives single
    samples, and ``collate_fn`` the samples of a micro-batch. ``transform_processes`` is the number of processes that call them;
    with 0, this process does. If ``transform`` is a :class:`shardd.transforms.Compose`, or a list of one and a function, the
    ``Compose`` changes the pictures in the threads, and the function receives samples with changed pictures. A
    :class:`shardd.column_transforms.Compose` in the list changes other columns there, too. For each micro-batch, ``random``, ``numpy.random`` and the CPU generator of PyTorch are seeded: by
    ``torch.initial_seed()`` and the position, not by the process.

    ``pin_memory`` gathers batches into pinned memory that PyTorch allocates; see :func:`shardd.to_device`.

    ``last_batch`` is the use of samples that do not fill the last step. They make a ``"short"`` one, with smaller
    :attr:`weight`, or are left out (``"drop"``, or ``drop_last=True``). Or the epoch's first samples fill the step
    (``"wrap"``), or the samples begin the first step of the next epoch (``"carry"``).

    Each iteration reads an epoch, and the next iteration the next one. A loader has one position. So an iteration that
    continues after another has begun (a nested loop, ``zip(loader, loader)``) raises ``RuntimeError``. For concurrent loops,
    make several loaders from one dataset. ``state_dict`` is the exact position of the returned batches, without those read
    ahead. ``load_state_dict`` continues there, with any number of ranks up to the virtual ranks of the state. With more ranks,
    and ``batch_size`` alone, their number must divide the partitions.
    """

    def __init__(
        self,
        dataset: StreamingDataset,
        batch_size: int | None = None,
        *,
        global_batch_size: int | None = None,
        num_workers: int = 2,
        prefetch_factor: int = 4,
        drop_last: bool = False,
        last_batch: str | None = None,
        collate_fn: Callable[[list[dict[str, Any]]], Any] | None = None,
        transform: Compose | Callable[[dict[str, Any]], Any] | Sequence[Any] | None = None,
        transform_processes: int = 0,
        pin_memory: bool = False,
        virtual_ranks: int | None = None,
        check_ranks: bool = True,
        _turn: tuple[int, int] = (0, 1),
        _may_be_unequal: bool = False,
        _memory: _native.SharedBlocks | None = None,
        **foreign: Any,
    ) -> None:
        for name in foreign:
            remedy = _FOREIGN.get(name, "see help(shardd.DataLoader) for its arguments")
            raise TypeError(f"shardd.DataLoader has no argument {name!r}: {remedy}")
        if not isinstance(dataset, StreamingDataset):
            raise TypeError(
                f"shardd.DataLoader reads a shardd.StreamingDataset, and this is a {type(dataset).__name__}: fill a store with "
                "shardd.from_torch first (shardd.from_hf for a datasets.Dataset), and open it"
            )
        if batch_size is None and global_batch_size is None:
            batch_size = dataset.batch_size
        if (batch_size is None) == (global_batch_size is None):
            raise ValueError("pass either batch_size (of a virtual rank) or global_batch_size (of all ranks), one of them")
        for name, value in (("batch_size", batch_size), ("global_batch_size", global_batch_size)):
            if value is not None and value < 1:
                raise ValueError(f"{name}={value} reads nothing; use at least 1")
        if num_workers < 0 or prefetch_factor < 1:
            raise ValueError("num_workers counts threads, from 0; prefetch_factor counts steps for each thread, from 1")
        if transform_processes < 0:
            raise ValueError("transform_processes counts processes, from 0; with 0, this process calls transform")
        if last_batch is None:
            last_batch = "drop" if drop_last else "short"
        if last_batch not in LAST_BATCH:
            raise ValueError(f"last_batch={last_batch!r}: use one of {', '.join(LAST_BATCH)}")
        if pin_memory and (dataset._format or _formats.default_format()) != "torch":
            raise ValueError(f'pin_memory=True pins tensors of PyTorch, and the dataset gives format={dataset._format or "numpy"!r}')
        self.dataset = dataset
        self.pin_memory = pin_memory
        # What pins, once it was looked for.
        self._pinned: list[_device.Pinned | None] = []
        self.collate_fn = collate_fn
        self._chain, self._changes = _split(transform)
        if samples_of(self._chain) is not None and dataset._image != (None, None):
            raise ValueError("the Compose decides on layout and type of pictures: leave image_layout and image_dtype of the dataset out")
        if self._chain is not None:
            dataset._check_columns(self._chain)
        self.transform_processes = transform_processes
        self._processes: _transform.Processes | None = None
        self._batch_size = batch_size
        self._global_batch_size = global_batch_size
        self._last_batch = last_batch
        self._threads = max(num_workers, 1)
        self._ahead = prefetch_factor * self._threads
        # From the user.
        self._virtual_ranks = virtual_ranks if virtual_ranks is not None else dataset.virtual_ranks
        # From a state.
        self._taken: Taken | None = dataset._taken
        # For a world, by default.
        self._default_virtual_ranks: tuple[int, int] | None = None
        self._check_ranks = check_ranks
        # Single samples need no equal number of batches.
        self._may_be_unequal = _may_be_unequal
        self._turn = _turn
        # Of a worker: what its batches are gathered into, for another process.
        self._memory = _memory
        # Where the next iteration begins; `_inside` if the one before it ended early, and this epoch is not begun again.
        self._cursor = (0, 0)
        self._inside = False
        # Micro-batches that were handed out of a step that has more, of how many; and their samples.
        self._unfinished: tuple[int, int] | None = None
        self._given_of_step = 0
        # Counts iterations: only the last one that has begun may continue.
        self._iteration = 0
        # Whether the order is another than that of the batches that were read ahead.
        self._changed = False
        self._loop: _Loop | None = None
        self._native: _native.Loader | None = None
        self._native_at = (0, 0)
        self._pending: _native.Step | None = None
        self._times = _stats.Times()
        # Drawn for the batches of transform, without PyTorch.
        self._seed: int | None = None
        self._last: Any = None
        # Of the micro-batch that was handed out last.
        self.epoch = 0
        self.step = 0
        self.accumulation = 1
        self.is_last_micro = True
        self.weight = 1.0
        self.positions: tuple[int, int] = (0, 0)
        # Of a mixture, the number of each sample's stream.
        self.streams: list[int] = []

    # --- sizes ----------------------------------------------------------------------------------------------------------

    @property
    def transform(self) -> Any:
        """What Python does to samples: a function, several of them, or ``None``. Another one is called from the next batch on that no
        process has begun."""
        steps = self._changes.steps if self._changes is not None else ()
        return steps[0] if len(steps) == 1 else steps or None

    @transform.setter
    def transform(self, transform: Any) -> None:
        chain, changes = _split([self._chain, transform] if self._chain is not None else transform)
        if chain is not self._chain:
            raise ValueError("a Compose changes samples in the loader's threads: make a DataLoader with it, or assign a function")
        self._changes = changes

    @property
    def ranks(self) -> Ranks:
        """Which rank reads here, of how many."""
        return self.dataset.ranks

    @property
    def virtual_ranks(self) -> int:
        """V: the number of micro-batches of a step, on all ranks together."""
        if self._virtual_ranks is not None:
            return self._virtual_ranks
        if self._taken is not None and self._taken.virtual_ranks >= self.ranks.world:
            return self._taken.virtual_ranks
        own = self._own_choice()
        if own < self.ranks.world:
            self._refuse_unequal(self._taken)  # no state has virtual ranks that fit
        return own

    def _own_choice(self) -> int:
        """V, if neither the user nor a state gives it."""
        world = self.ranks.world
        if self._default_virtual_ranks is None or self._default_virtual_ranks[0] != world:
            self._default_virtual_ranks = world, self.dataset._default_virtual_ranks(world, self._global_batch_size)
        return self._default_virtual_ranks[1]

    def _refuse_unequal(self, taken: Taken | None) -> None:
        """Refuses an own choice of V, with the virtual ranks of this state or without any, that ranks cannot share equally."""
        world = self.ranks.world
        if self._virtual_ranks is not None or self._global_batch_size is not None or self._may_be_unequal:
            return
        if taken is None:
            refuse_unequal(world, self._own_choice(), self.dataset.partitions, self.dataset._grains, "StreamingDataset")
        elif taken.virtual_ranks < world:
            refuse_unequal_resumed(world, self._own_choice(), self.dataset.partitions)

    @property
    def batch_size(self) -> int:
        """The samples that a virtual rank reads in a step, at most."""
        if self._batch_size is not None:
            return self._batch_size
        assert self._global_batch_size is not None
        return -(-self._global_batch_size // self.virtual_ranks)

    @property
    def global_batch_size(self) -> int:
        """The samples that all ranks read in a step."""
        if self._global_batch_size is not None:
            return self._global_batch_size
        return self.batch_size * self.virtual_ranks

    def __len__(self) -> int:
        """The number of this rank's micro-batches in a whole epoch, also after resuming within one."""
        return self._own_batches(self._steps())

    @property
    def batches_done(self) -> int:
        """The number of this rank's micro-batches of the epoch that are done, out of ``len(loader)``. While no loop runs, the epoch
        is that of the next loop. So it is 0, unless a loaded state is within the epoch: ``tqdm(loader, initial=loader.batches_done)``."""
        return self._done_before(self._start()) if self._loop is None else self._loop.done

    def _done_before(self, start: int) -> int:
        """How many micro-batches this rank has before the position where a loop begins."""
        return self._own_batches(self._steps_of(start)) - self._own_batches(self._steps_from(start))

    def _own_batches(self, steps: int) -> int:
        """How many micro-batches this rank has in this number of steps."""
        turn, turns = self._turn
        return len(range(turn, steps, turns)) * self._own_virtual_ranks()

    def _steps(self) -> int:
        """How many steps a whole epoch has, of all workers: that of the loop that runs, or of the next one."""
        return self._steps_of(self._start())

    def _steps_of(self, start: int) -> int:
        """How many steps the whole epoch of a loop has that begins at this position."""
        if self._last_batch == "carry":
            # The first step is behind the samples that the epoch before has taken, and a resumed loop begins some steps later.
            return start // self.global_batch_size + self._steps_from(start)
        return self._steps_from(0)

    def _steps_from(self, position: int) -> int:
        """How many steps follow a position in an epoch."""
        samples, batch = self.dataset.num_samples - position, self.global_batch_size
        return samples // batch if self._last_batch == "drop" else -(-samples // batch)

    def _start(self) -> int:
        """The position where the loop began that runs, or where the next one begins."""
        if self._loop is not None:
            return self._loop.position
        return 0 if self._inside else self._cursor[1]

    def _own_virtual_ranks(self) -> int:
        ranks, virtual = self.ranks, self.virtual_ranks
        return (ranks.rank + 1) * virtual // ranks.world - ranks.rank * virtual // ranks.world

    # --- where it is ------------------------------------------------------------------------------------------------------

    def set_epoch(self, epoch: int) -> None:
        """The next iteration reads this epoch; if a loaded state is within it, the rest."""
        if epoch < 0:
            raise ValueError(f"there is no epoch {epoch}")
        if epoch != self._cursor[0] or self._inside:
            self._begin_at(epoch, 0)

    def state_dict(self) -> dict[str, Any]:
        """The position after the returned batches, in whole steps: less than 300 bytes as JSON, and the proportions that
        :meth:`set_proportions` has set, if any; the same on every rank. Between two micro-batches of a step it is the beginning of that step. ``unfinished_step`` is then the
        number of micro-batches that will be repeated, and the total; a warning names the samples."""
        state = self._state()
        state.warn()
        return state.as_dict()

    def _state(self) -> State:
        return State(
            self.dataset._order,
            *self._cursor,
            self.virtual_ranks,
            self.dataset.run,
            limit=self.dataset._limit,
            transforms=self._transforms_digest(),
            proportions=self.dataset._proportions,
            unfinished_step=self._unfinished,
            given_again=self._given_of_step,
        )

    def set_proportions(self, proportions: Sequence[float | str]) -> None:
        """Reads the streams in other proportions from the next step on, for example by their losses.

        ``proportions`` has one number for each stream, in their order, rounded to nine digits. They hold until the next call, in
        place of the schedules of the streams. States have all proportions that were set, so that a resumed training reads the same
        samples, with any number of ranks. Call this on all ranks after the same step, when :attr:`is_last_micro` is true. With a
        process group, the numbers of rank 0 hold on all of them, and ranks after different steps raise :class:`StateMismatch`.

        The loader forgets the batches that it has read ahead, and opens the streams again."""
        mixture = self.dataset._mixture
        if mixture is None:
            raise ValueError("set_proportions is for a StreamingDataset of streams, and this one has none")
        if not self.dataset.shuffle:
            raise ValueError("with shuffle=False, all epochs have the samples of the first: set_proportions is for a training")
        if self._unfinished is not None:
            raise RuntimeError("a step has more micro-batches: call set_proportions when is_last_micro is true")
        epoch, position = self._cursor
        at = epoch * self.dataset._samples + position
        phases = mixture.set_at(at, self._of_first_rank(at, proportions))
        self.dataset = self.dataset._with_proportions(phases)
        self._end_threads()
        self._changed = True

    def _of_first_rank(self, position: int, values: Any) -> list[Any]:
        """What rank 0 gives, on all ranks of the process group, which are at the same position."""
        if not self._has_peers():
            return list(values)
        group = sys.modules["torch"].distributed
        own = list(values) if group.get_rank() == 0 else None
        every: list[Any] = [None] * group.get_world_size()
        group.all_gather_object(every, (position, own))
        strange = [rank for rank, (other, _) in enumerate(every) if other != every[0][0]]
        if strange:
            raise StateMismatch(
                f"ranks set proportions after different steps: rank 0 at sample {every[0][0]}, and rank {strange[0]} at sample "
                f"{every[strange[0]][0]}"
            )
        return every[0][1]

    def _has_peers(self) -> bool:
        """Whether the ranks of a process group read together. A user who gives ranks has their own groups."""
        torch = sys.modules.get("torch")
        if torch is None or not torch.distributed.is_available() or self.dataset._given_ranks[0] is not None:
            return False
        return torch.distributed.is_initialized() and torch.distributed.get_world_size() > 1

    def _transforms_digest(self) -> str | None:
        """The first digits of the digest of all transforms, or of their digests if there are several."""
        steps = self._changes.steps if self._changes is not None else ()
        digests = [step.digest for step in (self._chain, *steps) if isinstance(step, Compose)]
        if len(digests) > 1:
            return hashlib.sha256("".join(digests).encode()).hexdigest()[:16]
        return digests[0][:16] if digests else None

    def load_state_dict(self, state: Mapping[str, Any], *, force: bool = False) -> None:
        """Continues at the position in the state, with the virtual ranks of the state unless you gave others.

        Any number of ranks up to these can continue. With more ranks, ``global_batch_size`` decides the virtual ranks. With
        ``batch_size`` there is one per rank, so the number of ranks must divide the partitions. The first iteration warns if its
        steps differ from those of a loader without the state. Other transforms of pictures than those of the state are a warning. A
        state of other data or another plan is refused, unless you pass
        ``force=True``."""
        read = State.of(state)
        dataset = self.dataset._of_state(read, force)
        if not force:
            read.check(dataset._order, repr(dataset), dataset._limit)
        if read.position > self.dataset.num_samples:
            raise StateMismatch(f"position {read.position} is beyond the {self.dataset.num_samples} samples of an epoch")
        if read.worker is not None:
            raise StateMismatch(f"the state is of worker {read.worker[0]} of {read.worker[1]} of another loader; load it there")
        read.warn_of_others(self._transforms_digest())
        self._take(Taken(read.virtual_ranks))
        self.close()
        self.dataset = dataset
        # A dataset may say that it is at the end of an epoch.
        is_over = read.position == self.dataset.num_samples
        self._begin_at(*((read.epoch + 1, 0) if is_over else (read.epoch, read.position)))

    def _take(self, taken: Taken) -> None:
        self._refuse_unequal(taken)
        self._taken = taken

    def _report_taken(self) -> None:
        """Warns if a state gives the training other steps than a loader without the state would have. Called by an iteration: a
        state may be loaded before the process group says how many ranks there are."""
        taken, world = self._taken, self.ranks.world
        if taken is None or taken.is_reported or self._virtual_ranks is not None:
            return
        taken.is_reported = True
        if self._may_be_unequal or self._turn[0] > 0:
            return  # single samples have no steps, and the first worker warns
        saved, own = taken.virtual_ranks, self._own_choice()
        if saved < world:
            warnings.warn(
                f"the state is of {saved} virtual ranks, too few for {world} ranks. This loader has {own}, so steps differ from those before "
                f"the state: a step now has {self.global_batch_size} samples",
                stacklevel=3,
            )
        elif own != saved and (self._global_batch_size is not None or own % world == 0):
            warnings.warn(
                f"the state is of {saved} virtual ranks, and without it this loader would have {own}. It keeps {saved}: a step has "
                f"{self.global_batch_size} samples, and {self._own_virtual_ranks()} micro-batches on this rank. Step when is_last_micro "
                f"is true, or pass virtual_ranks={own}",
                stacklevel=3,
            )

    def _begin_at(self, epoch: int, position: int) -> None:
        self._cursor, self._inside = (epoch, position), False
        self._unfinished = self._loop = None

    def _place(self) -> tuple[Any, ...]:
        """Where the next iteration begins, for :meth:`_return_to`."""
        return self._cursor, self._inside, self._unfinished, self._given_of_step

    def _return_to(self, place: tuple[Any, ...]) -> None:
        self.close()
        self._cursor, self._inside, self._unfinished, self._given_of_step = place
        self._loop = None

    # --- iterating ----------------------------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        self._refuse_unequal(self._taken)
        self._begin_at(*((self._cursor[0] + 1, 0) if self._inside else self._cursor))
        if self._steps() == 0:
            raise ValueError(
                f"no step in an epoch: {self.dataset.num_samples} samples, steps of {self.global_batch_size}, and "
                f"last_batch={self._last_batch!r}; use a smaller batch"
            )
        self._report_taken()
        ranks, virtual = self.ranks, self.virtual_ranks
        if virtual % ranks.world and not self._may_be_unequal:
            warnings.warn(
                f"{virtual} virtual ranks for {ranks.world} ranks: some ranks have more micro-batches in a step than others. Reduce "
                "gradients once in a step, when is_last_micro is true, or use virtual_ranks and partitions that are multiples of the number of ranks",
                stacklevel=2,
            )
        self._compare_ranks()
        self._iteration += 1
        return self._epoch_from(*self._cursor, self._iteration)

    def _check_latest(self, iteration: int) -> None:
        if iteration != self._iteration:
            raise RuntimeError(
                "another loop over this DataLoader has begun, and moved it to another place in the plan; for concurrent loops, make a "
                "DataLoader each from one dataset"
            )

    def _epoch_from(self, epoch: int, position: int, iteration: int) -> Iterator[Any]:
        self._check_latest(iteration)
        loop = _Loop(position, self._done_before(position))
        position += self._turn[0] * self.global_batch_size
        with self._running(loop):
            while (yield from self._stretch(epoch, position, iteration, loop)):
                position = self._cursor[1]
        # The epoch is over, if no call moved it meanwhile.
        if self._cursor[0] == epoch:
            self._cursor = (epoch + 1, 0)
        self._inside = False

    def _stretch(self, epoch: int, position: int, iteration: int, loop: _Loop) -> Generator[Any, None, bool]:
        """The micro-batches of an epoch from a position on, until it ends or the order changes; whether it has changed."""
        self._changed = False
        with closing(self._made(epoch, position)) as made:
            for (step, index), make in made:
                began = perf_counter()
                batch = make()
                took = perf_counter() - began
                self._times.python_s += took
                if self._native is not None and self._native.is_own():
                    self._native.note_batch_code(took)
                count, samples = len(step), step.micro_batch(index)[1]
                self._inside = True
                self._given_of_step = samples if index == 0 else self._given_of_step + samples
                self._unfinished = (index + 1, count) if index + 1 < count else None
                if index + 1 == count:
                    self._reached(step)
                self.epoch, self.step, self.positions = epoch, step.number, step.parts[0][1:3]
                self.streams = step.sources_of(index)
                self.accumulation, self.is_last_micro = count, index + 1 == count
                self.weight = samples * self.ranks.world / step.samples
                self._last = batch
                loop.done += 1
                began = perf_counter()
                yield batch
                self._times.user_s += perf_counter() - began
                self._check_latest(iteration)
                if index + 1 == count and self._cursor[0] != epoch:
                    break
                if self._changed:
                    return True
        return False

    @contextmanager
    def _running(self, loop: _Loop) -> Iterator[None]:
        """Notes the loop until it ends, or is left."""
        self._loop = loop
        try:
            yield
        finally:
            if self._loop is loop:
                self._loop = None

    def _read(self, epoch: int, position: int) -> Iterator[tuple[_native.Step, int]]:
        """The micro-batches of the epoch, from a position on."""
        while (step := self._next(epoch, position)) is not None:
            for index in range(len(step)):
                yield step, index
            if step.next[0] != epoch:
                return
            position = step.next[1]

    def _made(self, epoch: int, position: int) -> Iterator[tuple[tuple[_native.Step, int], Callable[[], Any]]]:
        """The micro-batches of the epoch, each with what makes it what the user gets."""
        read, pinned = self.dataset._reader(), self._pins()
        work = _transform.Work(self._changes, self.collate_fn) if self._has_work() else None

        base, order = self._base_seed() if work is not None else 0, self.dataset._order

        def seed_of(step: _native.Step, index: int) -> int:
            return _transform.seed_of(base, order, *step.parts[0][:2], step.micro_batch(index)[0])

        def places_of(step: _native.Step, index: int) -> _transform.Places:
            return _transform.Places(step.seed, step.places_of(index))

        def here(batch: Any, micro: tuple[_native.Step, int], places: _transform.Places) -> Any:
            if work is None:
                return batch
            with _transform.seeded(seed_of(*micro)):
                return work(batch, places)

        def stand_in(micro: tuple[_native.Step, int]) -> Any:
            # In a short last step a virtual rank may have nothing to read; but its peers wait for its gradient, and a mean over
            # nothing is not a number. One sample, of weight 0, takes the place.
            batch = self._last
            if batch is None:
                places = _transform.Places(micro[0].seed, [(0, 0)])
                batch = here(self.dataset._take(slice(1), self._chain and self._chain.native), micro, places)
            return {name: values[:1] for name, values in batch.items()} if isinstance(batch, dict) else batch

        def pin(batch: Any) -> Any:
            return batch if pinned is None else _device.apply(pinned.pin, batch)

        def batch_of(step: _native.Step, index: int) -> Any:
            for epoch, position, reason, skipped in step.failed(index):
                remedy = "the sample is left out" if skipped else "it is replaced by zeros"
                warnings.warn(f"at position {position} of epoch {epoch} {remedy}: {reason}", stacklevel=2)
            return read(step.columns(index)) if step.micro_batch(index)[1] else None

        every = self._read(epoch, position)
        if self.transform_processes and work is not None:

            def task_of(micro: tuple[_native.Step, int]) -> tuple[int, Any, _transform.Places] | None:
                return None if (batch := batch_of(*micro)) is None else (seed_of(*micro), batch, places_of(*micro))

            tasks = ((micro, task_of(micro)) for micro in every)
            for micro, result in _transform.in_order(self._own_processes, tasks):
                yield micro, lambda: pin(stand_in(micro) if result is None else result())
        else:
            for micro in every:

                def make() -> Any:
                    batch = batch_of(*micro)
                    return pin(stand_in(micro) if batch is None else here(batch, micro, places_of(*micro)))

                yield micro, make

    def _base_seed(self) -> int:
        """What the seeds of batches follow from: PyTorch's seed, without a draw; else one that is drawn from ``random``, once."""
        with _transform.own_generators():
            if (torch := sys.modules.get("torch")) is not None:
                return torch.initial_seed()
            if self._seed is None:
                self._seed = random.getrandbits(64)
            return self._seed

    def _has_work(self) -> bool:
        return self._changes is not None or self.collate_fn is not None

    def _own_processes(self) -> _transform.Processes:
        work = _transform.Work(self._changes, self.collate_fn)
        if self._processes is not None and self._processes.work != work:
            self._processes.kill()
        if self._processes is None or not self._processes.can_be_used():
            self._processes = _transform.Processes(self.transform_processes, work)
        return self._processes

    def _reached(self, step: _native.Step) -> None:
        """Notes a returned batch."""
        turn, turns = self._turn
        epoch, position = step.next
        self._inside = epoch == step.epoch
        if turns > 1 and self._inside:
            # Where the first worker has its next turn.
            first = step.parts[0][1]
            position = min(first + (turns - turn) * self.global_batch_size, self.dataset.num_samples)
        self._cursor = (epoch, position)

    def _next(self, epoch: int, position: int) -> _native.Step | None:
        """The next step of the epoch; `None` if it has no more."""
        if position >= self.dataset.num_samples:
            return None
        native = self._native_for(epoch, position)
        try:
            step, self._pending = self._pending or native.next(), None
        except Exception:
            self._end_threads()  # one that has failed gives nothing any more; the next iteration opens another
            raise
        if step is None or step.epoch != epoch:
            self._pending = step
            self._native_at = self._native_after(epoch)
            return None
        self._native_at = step.next if step.next[0] == epoch else self._native_after(epoch, step.next)
        return step

    def _native_after(self, epoch: int, following: tuple[int, int] | None = None) -> tuple[int, int]:
        """Where the threads continue after an epoch. With turns, they take each n-th step of all epochs. So they are at their turn
        in the next epoch only if n divides the steps of one."""
        turn, turns = self._turn
        if turns == 1:
            return following or self._native_at
        return (epoch + 1, turn * self.global_batch_size) if self._steps() % turns == 0 else _NOWHERE

    def _pins(self) -> _device.Pinned | None:
        if not self.pin_memory:
            return None
        if not self._pinned:
            self._pinned.append(_device.find_pinned())
        return self._pinned[0]

    def _native_for(self, epoch: int, position: int) -> _native.Loader:
        if self._native is not None and (not self._native.is_own() or self._native_at != (epoch, position)):
            self._end_threads()
        if self._native is None:
            ranks, pinned = self.ranks, self._pins()
            if pinned is not None and not self._has_work():
                _device.ends_at_exit(self)
            self._native = self.dataset._open(
                batch_size=self._batch_size,
                global_batch_size=self._global_batch_size,
                rank=ranks.rank,
                world=ranks.world,
                virtual_ranks=self.virtual_ranks,
                last_batch=self._last_batch,
                epoch=epoch,
                position=position,
                stride=self._turn[1],
                threads=self._threads,
                read_ahead=self._ahead,
                transforms=self._chain.native if self._chain is not None else None,
                allocate=pinned.allocate if pinned is not None and not self._has_work() else None,
                shared=self._memory,
            )
            self._native_at = (epoch, position)
        return self._native

    def _compare_ranks(self) -> None:
        """Refuses ranks that follow different plans: they would train on a mixture without an error."""
        if not self._check_ranks or not self._has_peers():
            return
        self._check_ranks, group = False, sys.modules["torch"].distributed
        order, chain = self.dataset._order, self._chain and self._chain.digest
        own = (order, self.virtual_ranks, self.global_batch_size, self._last_batch, self._cursor, self.dataset._limit, chain)
        every: list[Any] = [None] * group.get_world_size()
        group.all_gather_object(every, own)
        strange = [rank for rank, other in enumerate(every) if other != every[0]]
        if strange:
            raise StateMismatch(
                f"ranks do not read the same: rank 0 has (order, virtual ranks, batch size, last batch, cursor, limit, transforms) {every[0]}, and "
                f"rank {strange[0]} has {every[strange[0]]}"
            )

    @contextmanager
    def waiting_for_ranks(self) -> Generator[None, None, None]:
        """Notes that this rank waits for the others, such as in an ``all_reduce``:
        ``with loader.waiting_for_ranks(): torch.distributed.barrier()``.

        Nodes then tell a rank that works slowly from one that waits for data: without it, all of a loop's time outside of the
        loader is its own work. The time of an operation that runs on a device counts only if the block waits for its end.
        """
        began = perf_counter()
        try:
            yield
        finally:
            if self._native is not None and self._native.is_own():
                self._native.note_rank_waits(perf_counter() - began)

    def note_loss(self, loss: float) -> None:
        """Notes the loss of the last step: the metric ``shardd_rank_loss`` of the rank's node has it. Take a float, not a tensor of a
        device: ``loss.item()`` waits for the device, so note it every few steps."""
        if self._native is not None and self._native.is_own():
            self._native.note_loss(float(loss))

    def facts(self) -> dict[str, str | int | float]:
        """The ids of the data and of its order, for the configuration of a run in an experiment tracker:
        ``wandb.init(config={**loader.facts(), "lr": 0.1})``, ``mlflow.log_params(loader.facts())``.

        ``version`` and ``plan`` name the samples and their order. The others are ``dataset``, ``samples``, ``q``, ``plan_seed``,
        ``virtual_ranks``, ``global_batch_size`` and ``world_size``, and, where there are such, ``run``, ``limit``, ``transforms`` (the
        first digits of their digest) and a ``stream_N`` (``NAME@VERSION``) for each stream. ``shardtrain --log-to`` has the same names.
        """
        return _facts.of(self)

    # --- the end ------------------------------------------------------------------------------------------------------------

    def stats(self, since: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Steps and samples of this rank, where the time went, and the bottleneck of the loop; since the loader was made, or
        since the earlier result ``since``.

        In seconds: the loop waited for threads (``waited_s``), for ``transform`` and ``collate_fn`` (``python_s``), and did its own
        work (``user_s``). During the latter, the next batch was ready for ``kept_s``. Meanwhile a thread was busy with the store
        and nodes (``network_s``) and with files of this machine (``disk_s``), and others, on average, with gathering (``decode_s``).
        ``waits_for`` is the bottleneck: ``"network"``, ``"disk"``, ``"decode"``, ``"python"`` or, if the loop's own work takes the
        time, ``"nothing"``. ``advice`` is a sentence with the remedy.
        """
        own = self._native is not None and self._native.is_own()
        counted = self._times.told(self._native.stats() if own else None)
        return _stats.told(counted, since, has_processes=self._processes is not None)

    def exchange_stats(self) -> dict[str, Any]:
        """The volume of the exchanges after the epochs before this one.

        With nodes, these are their counts for the run since they were started. ``"nodes"`` is the number that answered, and
        ``"silent"`` names the others. For each epoch: the grains due, received and not sent, bytes, seconds of sending, and the
        part of these that was hidden behind reading. Over all runs: the grains that arrived in another way
        (``"misses_from_peers"``, ``"misses_from_origin"``, ``"miss_bytes"``), bytes read from the store, and seconds that loaders
        waited.

        Without nodes (``"nodes": 0``) nothing is sent. For the last few epochs, this is the number of samples that the plan moves to
        another partition, and their ``"share"`` of all samples; for a mixture, those of each of its ``"streams"``.
        """
        return _stats.exchange(self.dataset, self._cursor[0])

    def plot(self, ax: Any = None) -> Any:
        """Draws with matplotlib the seconds of :meth:`stats`: those of the loop, and those of the threads meanwhile. Returns the
        ``Axes``."""
        from . import _plot

        return _plot.loader(self, ax)

    def __repr__(self) -> str:
        size = f"global_batch_size={self._global_batch_size}" if self._batch_size is None else f"batch_size={self._batch_size}"
        epoch, position = self._cursor
        return f"DataLoader({self.dataset.name}, {size}, epoch {epoch}, position {position} of {self.dataset.num_samples})"

    def _repr_html_(self) -> str:
        from . import _notebook

        return _notebook.loader(self)

    def close(self) -> None:
        """Ends the threads and processes. Batches that were handed out stay; iterating starts others."""
        processes, self._processes = self._processes, None
        if processes is not None:
            processes.kill()
        self._end_threads()

    def _end_threads(self) -> None:
        native, self._native, self._pending = self._native, None, None
        if native is not None and native.is_own():
            self._times.keep(native.stats())
            native.close()

    def __getstate__(self) -> dict[str, Any]:
        state = self.__dict__.copy()
        state["_native"] = state["_pending"] = state["_last"] = state["_processes"] = state["_memory"] = state["_loop"] = None
        return state
