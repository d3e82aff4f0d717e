"""Batches in pinned memory, and on their way to a device."""

from __future__ import annotations

import atexit
import warnings
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ._csr import Csr
from ._ragged import Ragged

if TYPE_CHECKING:
    from ._state import State
    import torch

    from ._loader import DataLoader


class Pinned:
    """Pinned memory. PyTorch allocates it, for it alone knows how long a copy to a device reads memory
    without references."""

    def allocate(self, bytes: int) -> torch.Tensor:
        import torch

        return torch.empty(bytes, dtype=torch.uint8, pin_memory=True)

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor, or a copy of it if it lies elsewhere."""
        return tensor if tensor.is_pinned() else tensor.pin_memory()


def find_pinned() -> Pinned | None:
    """`None`, with a warning, if no accelerator would read it."""
    import torch

    if torch.cuda.is_available() or (hasattr(torch, "xpu") and torch.xpu.is_available()):
        return Pinned()
    warnings.warn("pin_memory=True, but no accelerator is found that reads pinned memory: batches are not pinned", stacklevel=4)
    return None


# Threads that gather into PyTorch's memory ask the interpreter for it, so they end before it does.
_gathering: weakref.WeakSet[DataLoader] = weakref.WeakSet()


def ends_at_exit(loader: DataLoader) -> None:
    """Ends the loader's threads before the interpreter ends."""
    if not _gathering:
        atexit.unregister(_end)
        atexit.register(_end)
    _gathering.add(loader)


def _end() -> None:
    for loader in list(_gathering):
        loader.close()


def apply(change: Callable[[torch.Tensor], Any], batch: Any) -> Any:
    """The batch with all its tensors changed, in dicts, lists and tuples of any depth."""
    import torch

    if isinstance(batch, torch.Tensor):
        return change(batch)
    if isinstance(batch, (Csr, Ragged)):
        return batch.map(change)
    if isinstance(batch, Mapping):
        changed = {name: apply(change, value) for name, value in batch.items()}
        return changed if type(batch) is dict else type(batch)(changed)
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(apply(change, value) for value in batch))
    if isinstance(batch, (tuple, list)):
        return type(batch)(apply(change, value) for value in batch)
    return batch


# What a loader says of the micro-batch that it has given last.
_TOLD = ("epoch", "step", "accumulation", "is_last_micro", "weight", "positions", "streams", "batches_done")


def to_device(loader: DataLoader, device: Any) -> ToDevice | DataLoader:
    """Yields the batches of ``loader``, with all tensors on ``device``.

    Each batch is copied on a stream of its own while you work on the previous one. With ``DataLoader(pin_memory=True)``, the
    training does not wait for the copy. :meth:`~ToDevice.state_dict`, ``weight`` and similar members refer to the returned
    batch, not to the next one. For ``device="cpu"``, this is the loader itself.
    """
    import torch

    device = torch.device(device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise RuntimeError("no CUDA device is available; leave shardd.to_device out")
    return loader if device.type == "cpu" else ToDevice(loader, device)


class ToDevice:
    """A loader whose batches are on a device; see :func:`to_device`."""

    def __init__(self, loader: DataLoader, device: torch.device) -> None:
        self.loader = loader
        self.device = device
        # Of the batch that was handed out, while the loader is one ahead.
        self._told: dict[str, Any] | None = None
        self._state: State | None = None
        # The loop that runs.
        self._loop: object = None

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self.loader)
        self._told = self._state = None
        return self._looped(batches)

    def _looped(self, batches: Iterator[Any]) -> Iterator[Any]:
        self._loop = own = object()
        try:
            yield from self._one_ahead(batches)
        finally:
            if self._loop is own:
                self._loop = None

    @property
    def batches_done(self) -> int:
        """The number of this rank's batches of the epoch that are done; see :attr:`DataLoader.batches_done`."""
        if self._loop is not None and self._told is not None:
            return self._told["batches_done"]
        return self.loader.batches_done

    def __repr__(self) -> str:
        return f"to_device({self.loader!r}, {str(self.device)!r})"

    def _one_ahead(self, batches: Iterator[Any]) -> Iterator[Any]:
        copies = _Copies(self.device)
        ahead = self._begin(batches, copies)
        while ahead is not None:
            begun, told, state = ahead
            batch, ahead, failed = copies.take(begun), None, None
            del begun
            try:
                ahead = self._begin(batches, copies)
            except Exception as error:
                failed = error  # of the next batch; this one is handed out
            self._told, self._state = told, state
            yield batch
            del batch
            if failed is not None:
                raise failed
        self._told = self._state = None

    def _begin(self, batches: Iterator[Any], copies: _Copies) -> tuple[Any, dict[str, Any], State] | None:
        for batch in batches:
            return copies.begin(batch), {name: getattr(self.loader, name) for name in _TOLD}, self.loader._state()
        return None

    def __getattr__(self, name: str) -> Any:
        if name in _TOLD and self.__dict__.get("_told") is not None:
            return self._told[name]
        if name.startswith("__") or "loader" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.loader, name)

    def state_dict(self) -> dict[str, Any]:
        """The position after the returned batches; see :meth:`DataLoader.state_dict`."""
        state = self.loader._state() if self._state is None else self._state
        state.warn()
        return state.as_dict()

    def load_state_dict(self, state: Mapping[str, Any], *, force: bool = False) -> None:
        """Continues at the position in the state; see :meth:`DataLoader.load_state_dict`."""
        self._told = self._state = None
        self.loader.load_state_dict(state, force=force)

    def set_epoch(self, epoch: int) -> None:
        """The next iteration reads this epoch."""
        self._told = self._state = None
        self.loader.set_epoch(epoch)

    def close(self) -> None:
        """Ends the loader's threads."""
        self.loader.close()


class _Copies:
    """Copies to a device; on a stream of their own, if it is CUDA's."""

    def __init__(self, device: torch.device) -> None:
        import torch

        self._device = device
        self._stream = torch.cuda.Stream(device=device) if device.type == "cuda" else None

    def begin(self, batch: Any) -> tuple[Any, torch.cuda.Event | None]:
        """Begins to copy a batch."""
        import torch

        with torch.cuda.stream(self._stream):  # of `None` it is the current one
            copied = apply(lambda tensor: tensor.to(self._device, non_blocking=True), batch)
        return copied, self._stream.record_event() if self._stream is not None else None

    def take(self, begun: tuple[Any, torch.cuda.Event | None]) -> Any:
        """The copy, for whatever the current stream does next."""
        import torch

        copied, done = begun
        if done is not None:
            current = torch.cuda.current_stream(self._device)
            current.wait_event(done)
            # Its memory is not used again before what the current stream does with it is done.
            apply(lambda tensor: tensor.record_stream(current), copied)
        return copied
