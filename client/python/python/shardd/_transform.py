"""Changes of samples in Python: in this process, or in others."""

from __future__ import annotations

import inspect
import os
import pickle
import random
import signal
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import fields, is_dataclass
from functools import partial
from hashlib import blake2b
from multiprocessing import connection, forkserver, get_all_start_methods, get_context
from time import perf_counter
from typing import Any, NamedTuple, TypeVar

from ._csr import Csr
from ._ragged import Ragged
from ._shared import SharedBatches
from .transforms import Compose

T = TypeVar("T")

# How many micro-batches each process has before it: at least, and at most.
_AHEAD, _MOST_AHEAD = 2, 16

# How many bytes of micro-batches may be in work beyond the least number of them.
_MOST_BYTES = 256 << 20

# Of how many micro-batches the durations and sizes count.
_REMEMBERED = 256

# Seconds that processes have to end when one of them has died, before the error names it.
_PATIENCE = 5


class Places(NamedTuple):
    """The seed of an order, and the epoch and position of each sample of a batch."""

    seed: int
    samples: list[tuple[int, int]]


class Steps:
    """What Python does to a sample, one after the other: functions, and transforms of pictures behind these.

    Each function counts as one operation, as each of a ``Compose``: the random numbers of those behind it follow from that. A
    function with a parameter ``rng`` gets a generator of NumPy there, whose numbers are those of its place and operation.
    """

    def __init__(self, steps: Sequence[Any], first: int) -> None:
        self.steps = tuple(steps)
        self._numbers: list[int] = []
        for step in self.steps:
            self._numbers.append(first)
            first += step.native.count if isinstance(step, Compose) else 1
        self._wants_rng = [not isinstance(step, Compose) and _has_rng(step) for step in self.steps]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Steps) and [*map(id, other.steps)] == [*map(id, self.steps)] and other._numbers == self._numbers

    def __call__(self, sample: Any, seed: int, place: tuple[int, int]) -> Any:
        for step, number, wants_rng in zip(self.steps, self._numbers, self._wants_rng):
            if isinstance(step, Compose):
                sample = _changed(step, sample, number, seed, place)
            elif wants_rng:
                sample = step(sample, rng=_generator(seed, number, place))
            else:
                sample = step(sample)
        return sample


def _has_rng(function: Callable[..., Any]) -> bool:
    try:
        return "rng" in inspect.signature(function).parameters
    except (TypeError, ValueError):  # a function that does not describe itself
        return False


def _generator(seed: int, operation: int, place: tuple[int, int]) -> Any:
    import numpy

    epoch, position = place
    words = [numpy.array(numbers, dtype=numpy.uint64) for numbers in ([seed, 0], [0, operation, position, epoch])]
    return numpy.random.Generator(numpy.random.Philox(key=words[0], counter=words[1]))


def _changed(by: Compose, sample: Any, number: int, seed: int, place: tuple[int, int]) -> Any:
    """A sample with its picture changed."""
    if not isinstance(sample, dict):
        raise TypeError(f"a Compose behind a function changes the picture of a sample, and the function gives {type(sample).__name__}")
    epoch, position = place
    if by.companions:
        return by.at(sample, seed=seed, epoch=epoch, position=position, first=number)
    if (column := by.column) is None:
        found = [name for name, value in sample.items() if by.finds(value)]
        if len(found) != 1:
            raise ValueError(f"a Compose behind a function finds {len(found)} pictures or sounds in a sample of {', '.join(sample)}: name one (column)")
        [column] = found
    return sample | {column: by.at(sample[column], seed=seed, epoch=epoch, position=position, first=number)}


class Work:
    """Makes a batch of samples that ``transform`` has changed one by one, put together by ``collate_fn``."""

    def __init__(self, transform: Steps | None, collate_fn: Callable[[list[Any]], Any] | None) -> None:
        self.transform = transform
        self.collate_fn = collate_fn
        # What puts batches together without a `collate_fn`.
        self.collate_default: Callable[[list[Any]], Any] = _default_collate

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Work) and other.transform == self.transform and other.collate_fn is self.collate_fn

    def __call__(self, batch: dict[str, Any], places: Places) -> Any:
        samples: list[Any] = [dict(zip(batch, values)) for values in zip(*batch.values())]
        if self.transform is not None:
            samples = [self.transform(sample, places.seed, place) for sample, place in zip(samples, places.samples, strict=True)]
        return (self.collate_fn or self.collate_default)(samples)


def _default_collate(samples: list[Any]) -> Any:
    from torch.utils.data import default_collate

    return default_collate(samples)


# --- random numbers ---------------------------------------------------------------------------------------------------------


def seed_of(base: int, *place: Any) -> int:
    """The seed of the batch at a place: of 64 bits, and nothing else decides it."""
    text = "/".join(map(str, (base, *place)))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


# Held by the thread whose transform draws from the generators of the process: two threads at once would restore each other's
# states. A transform may read another loader, so a thread can hold it twice.
_generators = threading.RLock()


def _free_generators() -> None:
    global _generators
    _generators = threading.RLock()


# A child has no copy of the thread that may have held it.
os.register_at_fork(after_in_child=_free_generators)


@contextmanager
def own_generators() -> Iterator[None]:
    """Waits until no other thread's transform has seeded the generators: their seeds are those of the process then."""
    with _generators:
        yield


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seeds the generators that transforms draw from, and restores them at the end: the training draws from the same ones. One
    thread at a time does so."""
    with _generators, _restored():
        _seed(seed)
        yield


@contextmanager
def _restored() -> Iterator[None]:
    torch, numpy = sys.modules.get("torch"), _numpy_random()
    of_random = random.getstate()
    of_numpy = numpy.get_state() if numpy is not None else None
    of_torch = torch.default_generator.get_state() if torch is not None else None
    try:
        yield
    finally:
        random.setstate(of_random)
        if of_numpy is not None:
            numpy.set_state(of_numpy)
        if of_torch is not None:
            torch.default_generator.set_state(of_torch)


def _seed(seed: int) -> None:
    random.seed(seed)
    if (numpy := _numpy_random()) is not None:
        numpy.seed([seed & 0xFFFF_FFFF, seed >> 32])
    if (torch := sys.modules.get("torch")) is not None:
        # Not `torch.manual_seed`, which seeds all devices, too.
        torch.default_generator.manual_seed(seed)


def _numpy_random() -> Any:
    """NumPy's module of random numbers, if NumPy is in use: it is imported with the first draw, which would be too late."""
    if "numpy" not in sys.modules:
        return None
    import numpy.random

    return numpy.random


# --- look-ahead -------------------------------------------------------------------------------------------------------------


class Window:
    """How many micro-batches may be in work at once, so that a slow one holds up no others.

    Results leave in order. While one process works on the slowest micro-batch, each of the others finishes ``slowest / mean``,
    which wait for it.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._seconds: deque[float] = deque(maxlen=_REMEMBERED)
        self._bytes: deque[int] = deque(maxlen=_REMEMBERED)

    @property
    def least(self) -> int:
        """In micro-batches, however even they are."""
        return _AHEAD * self._count

    def note(self, seconds: float, held: int | None) -> None:
        """How long a process has worked on a micro-batch, and how many bytes are held for it; `None` if that is unknown."""
        self._seconds.append(seconds)
        self._bytes.append(_MOST_BYTES if held is None else held)

    @property
    def size(self) -> int:
        """In micro-batches."""
        if not (total := sum(self._seconds)):
            return self.least
        slowest = max(self._seconds) * len(self._seconds) / total
        wanted = self.least + round((self._count - 1) * (slowest - 1))
        most = min(_MOST_AHEAD * self._count, _MOST_BYTES * len(self._bytes) // max(sum(self._bytes), 1))
        return max(self.least, min(wanted, most))


def bytes_of(batch: Any) -> int | None:
    """Bytes of a batch in memory, about; `None` if a part of it is of an unknown type."""
    if batch is None or isinstance(batch, (bool, int, float)):
        return 8
    if isinstance(batch, (bytes, bytearray, str)):
        return len(batch)
    if isinstance(batch, Mapping):
        return _sum(bytes_of(value) for value in batch.values())
    if isinstance(batch, (list, tuple)):
        return _sum(map(bytes_of, batch))
    if isinstance(batch, (Csr, Ragged)):
        parts: list[Any] = []
        batch.map(lambda part: parts.append(part) or part)
        return _sum(map(bytes_of, parts))
    if is_dataclass(batch) and not isinstance(batch, type):
        return _sum(bytes_of(getattr(batch, field.name)) for field in fields(batch))
    try:
        size = batch.nbytes
    except Exception:  # sparse tensors raise their own
        return None
    return size if isinstance(size, int) else None


def _sum(sizes: Iterable[int | None]) -> int | None:
    total = 0
    for size in sizes:
        if size is None:
            return None
        total += size
    return total


# --- processes --------------------------------------------------------------------------------------------------------------


class TransformDied(RuntimeError):
    """A process ended that was transforming samples, or the fork server that starts these."""


class Processes:
    """Processes that do some work to one batch after another. Tensors go there and back in shared memory, whose pages are used
    again."""

    def __init__(self, count: int, work: Work) -> None:
        try:
            pickle.dumps(work)
        except Exception as error:
            raise TypeError(
                f"transform and collate_fn cannot be sent to processes ({error}): define them at the top level of a module, or "
                "pass transform_processes=0"
            ) from error
        if (torch := sys.modules.get("torch")) is not None:
            import torch.multiprocessing  # says how tensors are sent
        method = "forkserver" if "forkserver" in get_all_start_methods() else "spawn"
        context = get_context(method)
        if method == "forkserver":
            # Loaded once, and forked.
            context.set_forkserver_preload(["__main__", "shardd._transform", *(["torch"] if torch is not None else [])])
        self.work = work
        # Memory that all of them have. With them it is given up, and so is what lies in it for a process that is gone.
        batches = SharedBatches() if torch is not None else None
        self._batches = batches if batches is not None and batches.is_usable else None
        self._started = _Started(context)
        self._executor = ProcessPoolExecutor(count, self._started, _start, (work, self._batches))
        self._owner = os.getpid()
        self._were_killed = False
        self._have_worked = False
        self.window = Window(count)
        _running.add(self)

    def can_be_used(self) -> bool:
        """Whether they are there, and are children of this process and not of one that this was forked from."""
        return not self._were_killed and self._owner == os.getpid()

    def begin(self, task: tuple[int, Any, Places]) -> Future[Any]:
        """The result of a batch, whose seed comes before it and whose places behind it."""
        seed, batch, places = task
        try:
            return self._executor.submit(_run, seed, batch if self._batches is None else self._batches.packed(batch), places)
        except BrokenProcessPool as error:
            raise self._died() from error
        except (EOFError, ConnectionError) as error:
            # The fork server was asked for a process.
            self.kill()
            raise self._server_died() from error

    def result(self, begun: Future[Any]) -> Any:
        """The result."""
        try:
            seconds, held, result = begun.result()
            self._have_worked = True
            self.window.note(seconds, held)
            return result
        except BrokenProcessPool as error:
            raise self._died() from error

    def _died(self) -> TransformDied:
        """The finished results, now that the rest is of no use either."""
        # The executor's own thread asks for exit codes, too, and each can be read once: the second caller
        # gets 255.
        waiting = threading.Thread(target=self._executor.shutdown, daemon=True)
        waiting.start()
        waiting.join(_PATIENCE)
        ends = [(process.pid, process.exitcode) for process in self._started.processes if process.exitcode]
        # When one dies, the others are asked to end.
        first = [end for end in ends if end[1] != -signal.SIGTERM] or ends
        self.kill()
        if not first:
            return TransformDied("the processes of transform could not be started")
        # A process that ended with this status, or whose end the fork server cannot report any more.
        if all(code == _NO_REPORT for _, code in first) and self._started.server_has_ended():
            return self._server_died()
        hint = "" if self._have_worked or all(code != 1 for _, code in first) else _NO_GUARD
        return TransformDied("; ".join(_ended(f"process {pid} of transform", code) for pid, code in first) + hint)

    def _server_died(self) -> TransformDied:
        if not self._started.server_has_ended() or (code := self._started.server_code) is None:
            return TransformDied("the fork server of transform's processes has ended")
        hint = "" if self._have_worked or code != 1 else _NO_GUARD
        return TransformDied(_ended(f"the fork server of transform's processes, process {self._started.server},", code) + hint)

    def kill(self) -> None:
        """Ends them, whatever they are doing."""
        if self.can_be_used():
            self._were_killed = True
            self._executor.shutdown(wait=False, cancel_futures=True)
            for process in self._started.processes:
                if process.pid is not None:  # it was started
                    process.kill()


# What multiprocessing gives as the exit status of processes whose fork server has ended.
_NO_REPORT = 255

# Each process imports the script first, and would train, too.
_NO_GUARD = '; does the script train outside `if __name__ == "__main__":`?'


def _ended(who: str, code: int) -> str:
    if code >= 0:
        return f"{who} ended by itself, with exit status {code}"
    name = signal.Signals(-code).name
    hint = {"SIGKILL": "; is there too little memory?", "SIGBUS": "; is there too little room in /dev/shm?"}.get(name, "")
    return f"{who} was killed by {name}{hint}"


class _Started:
    """A context of multiprocessing that remembers the processes it makes, and the fork server that starts them."""

    def __init__(self, context: Any) -> None:
        self._context = context
        self.processes: list[Any] = []
        # The process of the fork server, if there is one, and its exit code if it has ended and the code is known.
        self.server: int | None = None
        self.server_code: int | None = None

    def Process(self, *arguments: Any, **how: Any) -> Any:
        # In the place of a fork server that has ended, multiprocessing starts another one, and the exit code is lost.
        if self._context.get_start_method() == "forkserver" and not self.server_has_ended(0):
            forkserver.ensure_running()
            self.server = getattr(forkserver._forkserver, "_forkserver_pid", None)
        process = self._context.Process(*arguments, **how)
        self.processes.append(process)
        return process

    def server_has_ended(self, patience: float = _PATIENCE) -> bool:
        """Whether the fork server has ended, or does within these seconds."""
        if self.server is None or self.server_code is not None:
            return self.server is not None
        try:
            with open(os.pidfd_open(self.server), "rb", buffering=0) as ending:
                connection.wait([ending], patience)
        except OSError:
            pass  # this process has taken its exit code, or the system has no such descriptors
        try:
            # It stays for multiprocessing, which asks for it, too.
            end = os.waitid(os.P_PID, self.server, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return True
        if end is not None:
            self.server_code = end.si_status if end.si_code == os.CLD_EXITED else -end.si_status
        return end is not None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)


def in_order(
    processes: Callable[[], Processes], items: Iterator[tuple[T, Any]]
) -> Iterator[tuple[T, Callable[[], Any] | None]]:
    """For each item, in order, how to get the result of its batch, of which several are being worked on;
    `None` if it has none. A batch comes with its seed.

    ``processes`` gives the same ones, or others if those were ended meanwhile, and these do the rest.
    """
    begun: deque[tuple[T, Any, Future[Any] | None]] = deque()
    doing = processes()
    is_over = False
    try:
        while True:
            if (now := processes()) is not doing:
                doing = now
                begun = deque((item, batch, None if batch is None else doing.begin(batch)) for item, batch, _ in begun)
            started = 0
            while not is_over and len(begun) < doing.window.size:
                # A result that is done does not wait for reads: the window grows by one with each result.
                if started > 1 and len(begun) >= doing.window.least and _is_done(begun[0][2]):
                    break
                started += 1
                if (following := next(items, None)) is None:
                    is_over = True
                else:
                    item, batch = following
                    begun.append((item, batch, None if batch is None else doing.begin(batch)))
            if not begun:
                return
            item, batch, _ = begun[0]
            if batch is None:
                begun.popleft()
                yield item, None
            else:
                yield item, partial(_take, begun, doing)
    finally:
        if begun:
            # The work is not wanted any more, and may take long.
            doing.kill()


def _is_done(future: Future[Any] | None) -> bool:
    return future is None or future.done()


def _take(begun: deque[tuple[T, Any, Future[Any] | None]], doing: Processes) -> Any:
    _, _, future = begun[0]
    assert future is not None
    result = doing.result(future)
    begun.popleft()
    return result


# --- in the processes -------------------------------------------------------------------------------------------------------

_work: Work | None = None


def _start(work: Work, batches: SharedBatches | None) -> None:
    global _work
    _work = work
    if batches is not None:
        if batches.hand_over() is None:
            raise MemoryError("a process of transform has too few addresses for the memory of batches: raise its limit (ulimit -v)")
        work.collate_default = batches.collate
    # An interruption is meant for the process that trains, which ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)


def _run(seed: int, batch: Any, places: Places) -> tuple[float, int | None, Any]:
    """How many seconds the batch took, how many bytes are held for it, and the result."""
    assert _work is not None
    begun = perf_counter()
    _seed(seed)
    result = _work(batch, places)
    # The training keeps the batch until its result is taken, beside the copy that came here.
    given = bytes_of(batch)
    held = _sum((given, given, bytes_of(result)))
    return perf_counter() - begun, held, result


# --- at the end of the interpreter ------------------------------------------------------------------------------------------

_running: weakref.WeakSet[Processes] = weakref.WeakSet()


def _kill_all() -> None:
    for processes in list(_running):
        processes.kill()


# Executors wait at exit for their work, in a function that is registered in this way; functions are called
# from the last one on.
if hasattr(threading, "_register_atexit"):
    threading._register_atexit(_kill_all)
