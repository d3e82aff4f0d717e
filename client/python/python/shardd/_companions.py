"""The columns that belong to pictures and move with them: boxes, key points, masks and labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


class Companion:
    """A column that belongs to the pictures."""

    def document(self) -> dict[str, Any]:
        """It as JSON."""
        raise NotImplementedError

    def given(self, value: Any) -> tuple[str, list[float], list[int], bytes, int]:
        """A sample's, for the native transforms: kind, numbers, shape, bytes and count."""
        raise NotImplementedError

    def moved(self, value: Any, numbers: list[float], shape: list[int], data: bytes, kept: list[int]) -> Any:
        """What became of it."""
        raise NotImplementedError


@dataclass(frozen=True)
class BoundingBoxes(Companion):
    """Boxes, ``[n, 4]``: left, top, right, bottom (``"XYXY"``); left, top, width, height (``"XYWH"``); or the middle's x and y, width,
    height (``"CXCYWH"``). Batches have them as :class:`shardd.Ragged` of float32, ``[n, 4]`` for each picture."""

    format: str = "XYXY"

    def document(self) -> dict[str, Any]:
        """It as JSON."""
        return {"type": "boxes", "format": str(getattr(self.format, "value", self.format)).upper()}

    def given(self, value: Any) -> tuple[str, list[float], list[int], bytes, int]:
        """Its numbers."""
        return "boxes", _numbers(value, 4), [], b"", 0

    def moved(self, value: Any, numbers: list[float], shape: list[int], data: bytes, kept: list[int]) -> Any:
        """Float32 of ``[n, 4]``."""
        return _floats(numbers, 4)


@dataclass(frozen=True)
class KeyPoints(Companion):
    """Points, ``[n, 2]``: x and y. Batches have them as :class:`shardd.Ragged` of float32, ``[n, 2]`` for each picture."""

    def document(self) -> dict[str, Any]:
        """It as JSON."""
        return {"type": "keypoints"}

    def given(self, value: Any) -> tuple[str, list[float], list[int], bytes, int]:
        """Its numbers."""
        return "keypoints", _numbers(value, 2), [], b"", 0

    def moved(self, value: Any, numbers: list[float], shape: list[int], data: bytes, kept: list[int]) -> Any:
        """Float32 of ``[n, 2]``."""
        return _floats(numbers, 2)


@dataclass(frozen=True)
class Mask(Companion):
    """Class numbers of pixels, from 0 to 255: a PNG, or uint8 of ``[height, width]`` or ``[planes, height, width]``. Batches have
    them as uint8 of the size of the pictures."""

    def document(self) -> dict[str, Any]:
        """It as JSON."""
        return {"type": "mask"}

    def given(self, value: Any) -> tuple[str, list[float], list[int], bytes, int]:
        """Its pixels."""
        if isinstance(value, bytes | bytearray | memoryview):
            return "encoded", [], [], bytes(value), 0
        import numpy

        pixels = numpy.asarray(value)
        if pixels.dtype != numpy.uint8:
            raise TypeError(f"masks are PNGs or uint8, and this is {pixels.dtype}")
        return "pixels", [], list(pixels.shape), pixels.tobytes(), 0

    def moved(self, value: Any, numbers: list[float], shape: list[int], data: bytes, kept: list[int]) -> Any:
        """Uint8 of the size of the picture."""
        import numpy

        return _tensor(numpy.frombuffer(data, dtype=numpy.uint8).reshape(shape).copy())


@dataclass(frozen=True)
class Labels(Companion):
    """One entry for each box, of any type: :class:`SanitizeBoundingBoxes` drops it with its box."""

    def document(self) -> dict[str, Any]:
        """It as JSON."""
        return {"type": "labels"}

    def given(self, value: Any) -> tuple[str, list[float], list[int], bytes, int]:
        """How many there are."""
        return "labels", [], [], b"", len(value)

    def moved(self, value: Any, numbers: list[float], shape: list[int], data: bytes, kept: list[int]) -> Any:
        """Those of the boxes that are left."""
        return value[kept] if hasattr(value, "shape") else [value[index] for index in kept]


def checked(companions: Mapping[str, Companion] | None) -> dict[str, Companion]:
    """The companions by the names of their columns, in the order of these."""
    for name, companion in (companions or {}).items():
        if not isinstance(companion, Companion):
            raise TypeError(f"companion {name!r} is {companion!r}: give BoundingBoxes(), KeyPoints(), Mask() or Labels()")
    return dict(sorted((companions or {}).items()))


def of_document(document: Mapping[str, Mapping[str, Any]]) -> dict[str, Companion]:
    """Companions from their JSON."""
    kinds = {"boxes": BoundingBoxes, "keypoints": KeyPoints, "mask": Mask, "labels": Labels}
    return {
        name: kinds[one["type"]](**{key: value for key, value in one.items() if key != "type"}) for name, one in document.items()
    }


def _numbers(value: Any, width: int) -> list[float]:
    import numpy

    numbers = numpy.asarray(value, dtype=numpy.float32)
    is_flat = numbers.ndim == 1 and numbers.size % width == 0
    if numbers.size and not is_flat and (numbers.ndim != 2 or numbers.shape[1] != width):
        raise ValueError(f"an array of [n, {width}] was expected, and this has the shape {list(numbers.shape)}")
    return numbers.ravel().tolist()


def _floats(numbers: list[float], width: int) -> Any:
    import numpy

    return _tensor(numpy.asarray(numbers, dtype=numpy.float32).reshape(-1, width))


def _tensor(array: Any) -> Any:
    try:
        import torch
    except ImportError:
        return array
    return torch.from_numpy(array)
