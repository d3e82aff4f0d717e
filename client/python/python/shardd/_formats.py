"""From the columns of a batch to what training takes."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable
from typing import Any

from . import _native

FORMATS = ("torch", "numpy", "jax", "arrow")


def default_format() -> str:
    return "torch" if importlib.util.find_spec("torch") else "numpy"


def converter(name: str) -> Callable[[_native.Column], Any]:
    """What makes a column a tensor of the library, without a copy. Columns that are no tensor become lists."""
    if name not in FORMATS:
        raise ValueError(f"format={name!r}: use one of {', '.join(FORMATS)}")
    return _CONVERTERS[name]()


def _torch() -> Callable[[_native.Column], Any]:
    from torch import from_dlpack

    return lambda column: from_dlpack(column) if column.is_tensor else column.to_list()


def _numpy() -> Callable[[_native.Column], Any]:
    from numpy import asarray

    return lambda column: asarray(column) if column.is_tensor else column.to_list()


def _jax() -> Callable[[_native.Column], Any]:
    from jax.dlpack import from_dlpack

    return lambda column: from_dlpack(column) if column.is_tensor else column.to_list()


def _arrow() -> Callable[[_native.Column], Any]:
    from pyarrow import array

    return array


_CONVERTERS = {"torch": _torch, "numpy": _numpy, "jax": _jax, "arrow": _arrow}


def reader(
    names: Iterable[str], format: str | None, layout: str | None, dtype: str | None
) -> Callable[[Iterable[_native.Column]], dict[str, Any]]:
    """What makes columns a batch: those of these names, as the library's tensors, images changed as :func:`image` says."""
    wanted = frozenset(names)
    convert = converter(format or default_format())
    change = image(layout, dtype)

    def read(columns: Iterable[_native.Column]) -> dict[str, Any]:
        batch = {column.name: convert(column) for column in columns if column.name in wanted}
        if change is not None:
            batch = {name: change(values) if hasattr(values, "shape") else values for name, values in batch.items()}
        return batch

    return read


def image(layout: str | None, dtype: str | None) -> Callable[[Any], Any] | None:
    """What is done to tensors of images, ``[n, height, width, channels]`` of uint8: ``layout="chw"`` puts the channels first,
    ``dtype="float32"`` (or another floating type) makes them 0 to 1."""
    if layout not in (None, "hwc", "chw"):
        raise ValueError(f'image_layout={layout!r}: use "hwc" or "chw"')
    if layout in (None, "hwc") and dtype is None:
        return None

    def change(tensor: Any) -> Any:
        shape = tuple(tensor.shape)
        is_image = len(shape) == 4 and shape[-1] in (1, 3, 4) and str(tensor.dtype).removeprefix("torch.") == "uint8"
        if not is_image:
            return tensor
        is_torch = hasattr(tensor, "permute")
        if layout == "chw":
            tensor = tensor.permute(0, 3, 1, 2) if is_torch else tensor.transpose(0, 3, 1, 2)
        if dtype is not None:
            if is_torch:
                import torch

                tensor = tensor.to(getattr(torch, dtype)).div_(255)
            else:
                tensor = tensor.astype(dtype) / 255
        return tensor

    return change
