"""Which epoch the workers of a foreign loader read."""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing import reduction
from multiprocessing.context import get_spawning_popen
from typing import Any

_RECORD = struct.Struct("<4q")
_NOBODY = (0, 0)
# Behind the record a byte for each worker that has begun.
_BEGUN = b"1"


class SharedEpoch:
    """An epoch on which a process and its workers, forked or spawned, agree.

    PyTorch starts new workers for every iteration, each with a copy of a dataset that was never iterated. So
    what the present iteration is, and where in which epoch it began, stands in memory that all copies share;
    it has no name, and is gone with the last process that has it.
    """

    def __init__(self) -> None:
        self._file = open(os.memfd_create("shardd-epoch"), "r+b", buffering=0)
        self.set(0, 0)

    def set(self, epoch: int, position: int) -> None:
        """The next iteration begins there."""
        with self._locked():
            self._write(_NOBODY, epoch, position)

    def begin(self, iteration: tuple[int, int], worker: int = 0) -> tuple[int, int]:
        """Where ``worker`` begins ``iteration``: where others of its workers did, if they were here; else at
        the given place, or with the next epoch. Who comes again has begun another one, whatever it is known
        by."""
        with self._locked():
            present, epoch, position = self._read()
            if present != iteration or os.pread(self._file.fileno(), 1, _RECORD.size + worker) == _BEGUN:
                epoch, position = self._after(present, epoch, position)
                self._write(iteration, epoch, position)
            os.pwrite(self._file.fileno(), _BEGUN, _RECORD.size + worker)
            return epoch, position

    def agree(self, iteration: tuple[int, int], epoch: int) -> None:
        """One worker of ``iteration`` knows its place in ``epoch``."""
        with self._locked():
            if self._read()[:2] != (iteration, epoch):
                self._write(iteration, epoch, 0)

    def next(self) -> tuple[int, int]:
        """Where another iteration would begin."""
        with self._locked():
            return self._after(*self._read())

    @staticmethod
    def _after(present: tuple[int, int], epoch: int, position: int) -> tuple[int, int]:
        return (epoch, position) if present == _NOBODY else (epoch + 1, 0)

    def _read(self) -> tuple[tuple[int, int], int, int]:
        *present, epoch, position = _RECORD.unpack(os.pread(self._file.fileno(), _RECORD.size, 0))
        return (present[0], present[1]), epoch, position

    def _write(self, iteration: tuple[int, int], epoch: int, position: int) -> None:
        os.ftruncate(self._file.fileno(), 0)  # no worker has begun it
        os.pwrite(self._file.fileno(), _RECORD.pack(*iteration, epoch, position), 0)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        # A lock of the process, which ends with it.
        fcntl.lockf(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)

    def __del__(self) -> None:
        # Python warns of a file that was not closed.
        if hasattr(self, "_file"):
            self._file.close()

    def __getstate__(self) -> Any:
        if get_spawning_popen() is not None:
            return reduction.DupFd(self._file.fileno())
        return self.next()

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, tuple):
            self.__init__()
            self.set(*state)
        else:
            self._file = open(state.detach(), "r+b", buffering=0)
