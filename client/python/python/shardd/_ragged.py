"""Values that differ in length."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, overload

from . import _native

if TYPE_CHECKING:
    import numpy as np


class Ragged:
    """The binaries of a batch, or its lists of numbers with different lengths, in the batch's memory: in sequence in :attr:`values`,
    value ``i`` from ``offsets[i]`` up to ``offsets[i + 1]``. Both are tensors in the dataset's format, without a copy.

    An index or a loop yields binaries as ``bytes``, lists as views of :attr:`values`, and nulls as ``None``. This is not a
    ``Sequence``, and has the methods that move tensors, because libraries that move batches rebuild sequences from their items.
    """

    __slots__ = ("is_bytes", "nulls", "offsets", "values")

    def __init__(self, values: Any, offsets: Any, *, is_bytes: bool, nulls: frozenset[int] = frozenset()) -> None:
        #: All numbers, of shape ``[numbers]``; of binaries uint8; of lists of tensors of one shape, ``[tensors, …]``.
        self.values = values
        #: From 0 on, of shape ``[len(self) + 1]``, int64.
        self.offsets = offsets
        #: Whether these are binaries.
        self.is_bytes = is_bytes
        #: The numbers of those that are missing, which take no room in :attr:`values`.
        self.nulls = nulls

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> Ragged: ...
    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step != 1:
                raise ValueError("a slice of a Ragged has consecutive values: leave out the step, or take values one at a time")
            stop = max(start, stop)
            offsets = self.offsets[start : stop + 1]
            first, end = int(offsets[0]), int(offsets[-1])
            nulls = frozenset(number - start for number in self.nulls if start <= number < stop)
            return Ragged(self.values[first:end], offsets - first, is_bytes=self.is_bytes, nulls=nulls)
        number = index + len(self) if index < 0 else index
        if not 0 <= number < len(self):
            raise IndexError(f"there is no value {index} of {len(self)}")
        if number in self.nulls:
            return None
        value = self.values[int(self.offsets[number]) : int(self.offsets[number + 1])]
        return _array(value).tobytes() if self.is_bytes else value

    def __iter__(self) -> Iterator[Any]:
        values = memoryview(_array(self.values)) if self.is_bytes else self.values
        ends = self.offsets.tolist()
        for number, (start, end) in enumerate(zip(ends, ends[1:])):
            value = values[start:end]
            yield None if number in self.nulls else value.tobytes() if self.is_bytes else value

    def to_list(self) -> list[Any]:
        """As Python objects: ``bytes``, or lists of numbers."""
        return [value if value is None or self.is_bytes else value.tolist() for value in self]

    def map(self, change: Callable[[Any], Any]) -> Ragged:
        """With both values and offsets changed, such as moved to a device."""
        return Ragged(change(self.values), change(self.offsets), is_bytes=self.is_bytes, nulls=self.nulls)

    def to(self, *where: Any, **how: Any) -> Ragged:
        """On a device, as ``Tensor.to`` says it; as it is, if it is of another library."""
        return self.map(lambda tensor: tensor.to(*where, **how)) if hasattr(self.values, "to") else self

    def pin_memory(self, *device: Any) -> Ragged:
        """In pinned memory, as ``Tensor.pin_memory`` says it; as it is, if it is of another library."""
        return self.map(lambda tensor: tensor.pin_memory(*device)) if hasattr(self.values, "pin_memory") else self

    def __repr__(self) -> str:
        what = "binaries" if self.is_bytes else f"lists of {self.values.dtype}"
        return f"Ragged({len(self)} {what}, {len(self.values)} values)"


def _array(values: Any) -> np.ndarray[Any, Any]:
    from numpy import asarray

    return values.cpu().numpy() if hasattr(values, "cpu") else asarray(values)


def of_column(column: _native.Column, convert: Callable[[_native.Column], Any]) -> Ragged | None:
    """What a column has, if it is of binaries or of lists of numbers."""
    if (parts := column.ragged()) is None:
        return None
    values, offsets, nulls, is_bytes = parts
    return Ragged(convert(values), convert(offsets), is_bytes=is_bytes, nulls=frozenset(nulls))
