"""Batches that processes hand over in shared memory: workers of PyTorch's loader, and processes of `transform`."""

from __future__ import annotations

import mmap
import multiprocessing
import os
import weakref
from collections.abc import Sequence
from multiprocessing import reduction
from multiprocessing.context import get_spawning_popen
from typing import TYPE_CHECKING, Any

from . import _native

if TYPE_CHECKING:
    import torch

# Room for blocks. The file takes memory only for the pages that were written.
_SIZE = 1 << 34
# Free blocks that keep their pages.
_KEPT = 16


class SharedBatches:
    """Memory that the process which made a dataset shares with its workers, forked or spawned.

    PyTorch copies each tensor of a worker into new shared memory, and sends a descriptor of it through a socket. Here the worker
    gathers its batches into this memory, which all processes have from the beginning, and sends the numbers of blocks. A block is
    used again when the last tensor of it is gone. The memory has no name, and is gone with the last process that has it.
    """

    def __init__(self) -> None:
        self._take(os.memfd_create("shardd-batches"), os.getpid())
        try:
            os.ftruncate(self._file.fileno(), _SIZE)
        except OSError:
            self._is_refused = True  # a limit on files: PyTorch hands the batches over
        # Before there are workers: they use the memory only if this process has it.
        self._map()

    def _take(self, descriptor: int, maker: int, is_refused: bool = False) -> None:
        self._file = open(descriptor, "r+b", buffering=0)
        self._maker = maker
        self._mapped: tuple[mmap.mmap, _native.SharedBlocks] | None = None
        self._is_refused = is_refused
        # The same in all processes, and different for each memory.
        self._token = os.fstat(descriptor).st_ino
        _known[self._token] = self

    @property
    def is_usable(self) -> bool:
        """Whether this process has the memory."""
        return self._map() is not None

    def _map(self) -> tuple[mmap.mmap, _native.SharedBlocks] | None:
        if self._mapped is None and not self._is_refused:
            try:
                memory = mmap.mmap(self._file.fileno(), _SIZE)
            except (OSError, ValueError):
                self._is_refused = True  # a limit on addresses
            else:
                self._mapped = memory, _native.SharedBlocks(memory)
        return self._mapped

    def hand_over(self) -> _native.SharedBlocks | None:
        """In a worker: tensors that are sent from now on go through this memory. Gives the memory for batches; `None` if the process
        that receives them does not have it."""
        parent = multiprocessing.parent_process()
        if parent is None or parent.pid != self._maker or (mapped := self._map()) is None:
            return None
        import torch

        _sending[0] = self
        reduction.ForkingPickler.register(torch.Tensor, _reduce)
        return mapped[1]

    def send(self, tensor: torch.Tensor) -> tuple[Any, ...] | None:
        """The tensor as a message; `None` if it is to go PyTorch's way."""
        if (
            (mapped := self._mapped) is None
            or not _is_plain(tensor)
            # Memory of the user's that other processes have, too, is to stay the same.
            or tensor.is_shared()
            or not tensor.numel()
        ):
            return None
        shape, strides, width = tuple(tensor.shape), tensor.stride(), tensor.element_size()
        span = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides))
        if span > 2 * tensor.numel() or (found := mapped[1].send(tensor.data_ptr(), span * width)) is None:
            return None
        number, uses, offset = found
        return self._token, number, uses, offset // width, tensor.dtype, shape, strides

    def packed(self, batch: Any) -> Any:
        """The batch as it goes to a process that has this memory: its tensors are copied into it."""
        from . import _device

        def pack(tensor: torch.Tensor) -> Any:
            message = self.send(tensor)
            return tensor if message is None else _Sent(message)

        return _device.apply(pack, batch)

    def collate(self, samples: list[Any]) -> Any:
        """The samples as a batch, as PyTorch's ``default_collate`` makes it, gathered into this memory."""
        from torch.utils.data import default_collate

        try:
            from torch.utils.data._utils.collate import collate, default_collate_fn_map
        except ImportError:
            return default_collate(samples)
        import torch

        return collate(samples, collate_fn_map={**default_collate_fn_map, torch.Tensor: self._stack})

    def _stack(self, tensors: Sequence[torch.Tensor], *, collate_fn_map: Any = None) -> torch.Tensor:
        import torch

        first = tensors[0]
        if any(type(it) is not torch.Tensor or not _is_plain(it) for it in tensors):
            return self._default_stack(tensors, collate_fn_map)
        if any(it.shape != first.shape or it.dtype != first.dtype for it in tensors):
            return self._default_stack(tensors, collate_fn_map)
        memory = self._map()
        block = memory and memory[1].claim(len(tensors) * first.numel() * first.element_size())
        if block is None:
            return self._default_stack(tensors, collate_fn_map)
        storage = torch.from_dlpack(block).untyped_storage()
        shape = (len(tensors), *first.shape)
        return torch.stack(tensors, 0, out=torch.empty(0, dtype=first.dtype).set_(storage, 0, shape))

    @staticmethod
    def _default_stack(tensors: Sequence[torch.Tensor], collate_fn_map: Any) -> torch.Tensor:
        from torch.utils.data._utils.collate import collate_tensor_fn

        return collate_tensor_fn(tensors, collate_fn_map=collate_fn_map)

    def receive(self, number: int, uses: int, offset: int, dtype: torch.dtype, shape: Sequence[int], strides: Sequence[int]) -> torch.Tensor:
        """The tensor of a message."""
        import torch

        memory, blocks = self._map() or _refuse()
        block = torch.from_dlpack(blocks.receive(number, uses))
        for free, start, size in blocks.surplus(_KEPT):
            is_empty = False
            try:
                memory.madvise(mmap.MADV_REMOVE, start, size)
                is_empty = True
            except OSError:
                pass  # pages are larger than the block's alignment, or the system does not take them: it is used as it is
            finally:
                blocks.release(free, is_empty)
        return torch.empty(0, dtype=dtype).set_(block.untyped_storage(), offset, shape, strides)

    def __del__(self) -> None:
        # Python warns of a file that was not closed. The mapping stays for as long as batches need it.
        if hasattr(self, "_file"):
            self._file.close()

    def __getstate__(self) -> Any:
        if get_spawning_popen() is None:
            return ()
        return reduction.DupFd(self._file.fileno()), self._maker, not self.is_usable

    def __setstate__(self, state: Any) -> None:
        if state:
            self._take(state[0].detach(), *state[1:])
        else:
            self.__init__()


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether its numbers in memory are all there is to it."""
    import torch

    if tensor.is_nested or tensor.is_quantized or tensor.requires_grad:
        return False
    return (tensor.device.type, tensor.layout) == ("cpu", torch.strided) and not tensor.is_conj() and not tensor.is_neg()


class _Sent:
    """A message, which a tensor takes the place of where it is received."""

    def __init__(self, message: tuple[Any, ...]) -> None:
        self._message = message

    def __reduce__(self) -> tuple[Any, ...]:
        return _receive, self._message


# The memories of this process, by what messages call them.
_known: weakref.WeakValueDictionary[int, SharedBatches] = weakref.WeakValueDictionary()
# That of a worker. It keeps it for as long as messages may be on their way.
_sending: list[SharedBatches | None] = [None]


def _reduce(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What the queues of a worker send of a tensor."""
    from torch.multiprocessing.reductions import reduce_tensor

    batches = _sending[0]
    message = batches.send(tensor) if batches is not None else None
    return (_receive, message) if message is not None else reduce_tensor(tensor)


def _receive(token: int, *message: Any) -> torch.Tensor:
    return (_known.get(token) or _refuse()).receive(*message)


def _refuse() -> Any:
    raise RuntimeError(
        "a batch of a worker has reached a process that does not have the memory of its StreamingDataset: keep the dataset until the "
        "last batch, and receive batches in the process that made it"
    )
