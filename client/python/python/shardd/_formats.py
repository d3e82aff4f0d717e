"""From the columns of a batch to what training takes."""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from . import _csr, _native, _ragged

FORMATS = ("torch", "numpy", "jax", "arrow")


def default_format() -> str:
    return "torch" if importlib.util.find_spec("torch") else "numpy"


def converter(name: str, features: int | None = None) -> Callable[[_native.Column], Any]:
    """Makes a column a tensor of the library, without a copy. Values that differ in length become
    :class:`shardd.Ragged`, pairs of index and value :class:`shardd.Csr`, and columns without numbers become lists."""
    if name not in FORMATS:
        raise ValueError(f"format={name!r}: use one of {', '.join(FORMATS)}")
    convert = _CONVERTERS[name]()
    if name == "arrow":
        return convert

    def of_any(column: _native.Column) -> Any:
        if column.is_tensor:
            return convert(column)
        if (ragged := _ragged.of_column(column, convert)) is not None:
            return ragged
        sparse = _csr.of_column(column, convert, features)
        return sparse if sparse is not None else column.to_list()

    return of_any


def _torch() -> Callable[[_native.Column], Any]:
    import torch

    def convert(column: _native.Column) -> Any:
        if (block := column.block) is None:
            return torch.from_dlpack(column)
        # A view of PyTorch's own tensor: so it knows when the memory may be used again.
        dtype, shape = getattr(torch, column.dtype), column.shape
        return block[: math.prod(shape) * dtype.itemsize].view(dtype).view(shape)

    return convert


def _numpy() -> Callable[[_native.Column], Any]:
    from numpy import asarray

    return asarray


def _jax() -> Callable[[_native.Column], Any]:
    from jax.dlpack import from_dlpack

    return from_dlpack


def _arrow() -> Callable[[_native.Column], Any]:
    from pyarrow import array

    return array


_CONVERTERS = {"torch": _torch, "numpy": _numpy, "jax": _jax, "arrow": _arrow}


def reader(
    names: Iterable[str], format: str | None, layout: str | None, dtype: str | None, features: int | None = None
) -> Callable[[Iterable[_native.Column]], dict[str, Any]]:
    """What makes columns a batch: those of these names, as the library's tensors, images changed as :func:`image` says, sparse
    rows of this number of features."""
    wanted = frozenset(names)
    convert = converter(format or default_format(), features)
    change = image(layout, dtype)

    def read(columns: Iterable[_native.Column]) -> dict[str, Any]:
        batch = {column.name: convert(column) for column in columns if column.name in wanted}
        if change is not None:
            batch = {name: change(values) if hasattr(values, "dtype") else values for name, values in batch.items()}
        return batch

    return read


def _layout_of(shape: Sequence[int], number: str) -> str | None:
    """Of an image as it is stored: ``"hwc"``, or ``"chw"`` with the channels first; ``None`` of anything else."""
    if len(shape) != 3 or number != "uint8":
        return None
    if shape[-1] in _CHANNELS:
        return "hwc"
    return "chw" if shape[0] in _CHANNELS else None


_CHANNELS = (1, 3, 4)
# How the axes of a batch of images are to be arranged, from one layout to another.
_AXES = {("hwc", "chw"): (0, 3, 1, 2), ("chw", "hwc"): (0, 2, 3, 1)}


def image_spec(shape: Sequence[int], number: str, layout: str | None, dtype: str | None) -> tuple[Sequence[int], str]:
    """The shape of a value and the type of its numbers after :func:`image` has changed it."""
    stored = _layout_of(shape, number)
    if stored is None:
        return shape, number
    axes = _AXES.get((stored, layout or stored), (0, 1, 2, 3))
    return tuple(shape[axis - 1] for axis in axes[1:]), dtype or number


def image(layout: str | None, dtype: str | None) -> Callable[[Any], Any] | None:
    """The normalisation of tensors of images of uint8, ``[n, height, width, channels]`` or ``[n, channels, height, width]``:
    ``layout="chw"`` puts the channels first, ``"hwc"`` last, and ``dtype="float32"`` (or another floating type) makes them 0 to 1."""
    if layout not in (None, "hwc", "chw"):
        raise ValueError(f'image_layout={layout!r}: use "hwc" or "chw"')
    if layout is None and dtype is None:
        return None

    def change(tensor: Any) -> Any:
        stored = _layout_of(tensor.shape[1:], str(tensor.dtype).removeprefix("torch."))
        if stored is None:
            return tensor
        is_torch = hasattr(tensor, "permute")
        if axes := _AXES.get((stored, layout or stored)):
            tensor = tensor.permute(*axes) if is_torch else tensor.transpose(*axes)
        if dtype is not None:
            if is_torch:
                import torch

                tensor = tensor.to(getattr(torch, dtype)).div_(255)
            else:
                tensor = tensor.astype(dtype) / 255
        return tensor

    return change
