"""Transforms of pictures with the names and arguments of ``torchvision.transforms.v2``, computed by the loader's threads.

.. code-block:: python

    from shardd import transforms as T

    augment = T.Compose([
        T.RandomResizedCrop(224),
        T.RandomHorizontalFlip(),
        T.ToDtype("float32", scale=True),
        T.Normalize(mean=[0.485, 0.456, 0.406], std=[0.229, 0.224, 0.225]),
    ])
    loader = shardd.DataLoader(dataset, batch_size=256, transform=augment)

Each random number is a pure function of a seed, the epoch, the position of the sample in the epoch's order, and the operation.
So a sample has the same pixels for any number of threads, processes, ranks and restarts. You can compute a number yourself::

    generator = numpy.random.Generator(numpy.random.Philox(key=[seed, 0], counter=[0, operation, position, epoch]))

``seed`` is that of the plan unless the ``Compose`` has one. ``operation`` counts the operations from 0; those inside of others
follow these.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

from . import _companions, _native
from ._companions import BoundingBoxes, Companion, KeyPoints, Labels, Mask

_Numbers = float | Sequence[float]
_Size = int | Sequence[int]


def _plain(name: str, value: Any) -> Any:
    """An argument as JSON."""
    if isinstance(value, Transform):
        return value.document()
    if name == "transforms" and not isinstance(value, Sequence):
        raise TypeError(_not_ours(value))
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        raise TypeError(f"{name} differs by type of input, which these transforms do not know: pass one value")
    if name == "dtype":
        return str(value).removeprefix("torch.").removeprefix("<class 'numpy.").removesuffix("'>")
    if name == "interpolation":
        return getattr(value, "value", value)
    if hasattr(value, "tolist"):
        return value.tolist()
    if not isinstance(value, Sequence):
        raise TypeError(f"{name} is {value!r}: give a number or a list of numbers")
    return [_plain(name, item) for item in value]


class InterpolationMode(str, Enum):
    """How pixels between pixels are found."""

    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"


class AutoAugmentPolicy(str, Enum):
    """The learned policies of :class:`AutoAugment`."""

    IMAGENET = "imagenet"
    CIFAR10 = "cifar10"
    SVHN = "svhn"


class Transform:
    """An operation."""

    def document(self) -> dict[str, Any]:
        """It as JSON."""
        arguments = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        if arguments.pop("antialias", True) is not True:
            raise ValueError(f"{type(self).__name__} always averages over the pixels that become one: leave antialias out")
        return {"type": type(self).__name__} | {name: _plain(name, value) for name, value in arguments.items()}


@dataclass(frozen=True)
class Resize(Transform):
    """Resizes: ``size`` is height and width, or one number for the shorter side."""

    size: _Size | None
    interpolation: Any = "bilinear"
    max_size: int | None = None
    antialias: bool = True


@dataclass(frozen=True)
class CenterCrop(Transform):
    """Cuts a rectangle out of the middle. A picture that is too small gets black margins first."""

    size: _Size


@dataclass(frozen=True)
class RandomCrop(Transform):
    """Cuts a rectangle out at a random place."""

    size: _Size
    padding: _Size | None = None
    pad_if_needed: bool = False
    fill: _Numbers = 0
    padding_mode: str = "constant"


@dataclass(frozen=True)
class RandomResizedCrop(Transform):
    """Cuts a rectangle of random place, size and ratio out, and resizes it."""

    size: _Size
    scale: Sequence[float] = (0.08, 1.0)
    ratio: Sequence[float] = (3.0 / 4.0, 4.0 / 3.0)
    interpolation: Any = "bilinear"
    antialias: bool = True


@dataclass(frozen=True)
class Pad(Transform):
    """Adds margins."""

    padding: _Size
    fill: _Numbers = 0
    padding_mode: str = "constant"


@dataclass(frozen=True)
class RandomHorizontalFlip(Transform):
    """Swaps left and right of some pictures."""

    p: float = 0.5


@dataclass(frozen=True)
class RandomVerticalFlip(Transform):
    """Swaps above and below in some pictures."""

    p: float = 0.5


@dataclass(frozen=True)
class RandomRotation(Transform):
    """Rotates by a random angle, in degrees."""

    degrees: _Numbers
    interpolation: Any = "nearest"
    expand: bool = False
    center: Sequence[float] | None = None
    fill: _Numbers = 0


@dataclass(frozen=True)
class RandomAffine(Transform):
    """Rotates, moves, scales and shears."""

    degrees: _Numbers
    translate: Sequence[float] | None = None
    scale: Sequence[float] | None = None
    shear: _Numbers | None = None
    interpolation: Any = "nearest"
    fill: _Numbers = 0
    center: Sequence[float] | None = None


@dataclass(frozen=True)
class RandomPerspective(Transform):
    """Looks at some pictures from another side."""

    distortion_scale: float = 0.5
    p: float = 0.5
    interpolation: Any = "bilinear"
    fill: _Numbers = 0


@dataclass(frozen=True)
class ElasticTransform(Transform):
    """Moves each pixel by a random field that is smooth."""

    alpha: _Numbers = 50.0
    sigma: _Numbers = 5.0
    interpolation: Any = "bilinear"
    fill: _Numbers = 0


@dataclass(frozen=True)
class RandomZoomOut(Transform):
    """Puts some pictures into larger ones, at a random place."""

    fill: _Numbers = 0
    side_range: Sequence[float] = (1.0, 4.0)
    p: float = 0.5


@dataclass(frozen=True)
class RandomShortestSize(Transform):
    """Resizes so that the shorter side has one of these lengths."""

    min_size: _Size
    max_size: int | None = None
    interpolation: Any = "bilinear"
    antialias: bool = True


@dataclass(frozen=True)
class ScaleJitter(Transform):
    """Resizes to fit a size that is scaled by a random factor (Ghiasi et al., 2021)."""

    target_size: Sequence[int]
    scale_range: Sequence[float] = (0.1, 2.0)
    interpolation: Any = "bilinear"
    antialias: bool = True


@dataclass(frozen=True)
class RandomResize(Transform):
    """Resizes so that the shorter side has a random length."""

    min_size: int
    max_size: int
    interpolation: Any = "bilinear"
    antialias: bool = True


@dataclass(frozen=True)
class ColorJitter(Transform):
    """Changes brightness, contrast, saturation and hue in random order."""

    brightness: _Numbers | None = None
    contrast: _Numbers | None = None
    saturation: _Numbers | None = None
    hue: _Numbers | None = None


@dataclass(frozen=True)
class RandomPhotometricDistort(Transform):
    """Changes brightness, contrast, saturation, hue and the order of channels, each in some pictures."""

    brightness: Sequence[float] = (0.875, 1.125)
    contrast: Sequence[float] = (0.5, 1.5)
    saturation: Sequence[float] = (0.5, 1.5)
    hue: Sequence[float] = (-0.05, 0.05)
    p: float = 0.5


@dataclass(frozen=True)
class RandomChannelPermutation(Transform):
    """Puts the channels into random order."""


@dataclass(frozen=True)
class Grayscale(Transform):
    """Makes colours grey."""

    num_output_channels: int = 1


@dataclass(frozen=True)
class RandomGrayscale(Transform):
    """Makes the colours of some pictures grey; the number of channels stays."""

    p: float = 0.1


@dataclass(frozen=True)
class RGB(Transform):
    """Gives grey pictures three equal channels."""


@dataclass(frozen=True)
class GaussianBlur(Transform):
    """Blurs by a Gaussian of random width."""

    kernel_size: _Size
    sigma: _Numbers = (0.1, 2.0)


@dataclass(frozen=True)
class RandomAdjustSharpness(Transform):
    """Blurs or sharpens some pictures."""

    sharpness_factor: float
    p: float = 0.5


@dataclass(frozen=True)
class RandomInvert(Transform):
    """Inverts some pictures."""

    p: float = 0.5


@dataclass(frozen=True)
class RandomPosterize(Transform):
    """Keeps the highest bits of the numbers of some pictures."""

    bits: int
    p: float = 0.5


@dataclass(frozen=True)
class RandomSolarize(Transform):
    """Inverts the numbers that are not below a threshold, in some pictures."""

    threshold: float
    p: float = 0.5


@dataclass(frozen=True)
class RandomAutocontrast(Transform):
    """Stretches the channels of some pictures to all values."""

    p: float = 0.5


@dataclass(frozen=True)
class RandomEqualize(Transform):
    """Makes all values of a channel about equally frequent, in some pictures."""

    p: float = 0.5


@dataclass(frozen=True)
class RandAugment(Transform):
    """Applies ``num_ops`` random operations of one magnitude (Cubuk et al., 2020)."""

    num_ops: int = 2
    magnitude: int = 9
    num_magnitude_bins: int = 31
    interpolation: Any = "nearest"
    fill: _Numbers | None = None


@dataclass(frozen=True)
class TrivialAugmentWide(Transform):
    """Applies one random operation of a random magnitude (Müller and Hutter, 2021)."""

    num_magnitude_bins: int = 31
    interpolation: Any = "nearest"
    fill: _Numbers | None = None


@dataclass(frozen=True)
class AutoAugment(Transform):
    """Applies one of the learned policies ``imagenet``, ``cifar10`` and ``svhn`` (Cubuk et al., 2019)."""

    policy: Any = "imagenet"
    interpolation: Any = "nearest"
    fill: _Numbers | None = None

    def document(self) -> dict[str, Any]:
        """It as JSON."""
        return super().document() | {"policy": getattr(self.policy, "value", self.policy)}


@dataclass(frozen=True)
class AugMix(Transform):
    """Mixes a picture with chains of random operations on it (Hendrycks et al., 2020)."""

    severity: int = 3
    mixture_width: int = 3
    chain_depth: int = -1
    alpha: float = 1.0
    all_ops: bool = True
    interpolation: Any = "bilinear"
    fill: _Numbers | None = None


@dataclass(frozen=True)
class RandomErasing(Transform):
    """Overwrites a rectangle of some pictures."""

    p: float = 0.5
    scale: Sequence[float] = (0.02, 0.33)
    ratio: Sequence[float] = (0.3, 3.3)
    value: _Numbers | str = 0.0
    inplace: bool = False


@dataclass(frozen=True)
class ToDtype(Transform):
    """Makes the numbers ``uint8``, ``float16``, ``bfloat16`` or ``float32``; with ``scale``, 255 becomes 1.0."""

    dtype: Any
    scale: bool = False


@dataclass(frozen=True)
class Normalize(Transform):
    """Subtracts the mean of each channel, and divides by its standard deviation."""

    mean: _Numbers
    std: _Numbers
    inplace: bool = False


@dataclass(frozen=True)
class Identity(Transform):
    """Changes nothing."""


@dataclass(frozen=True)
class ToImage(Transform):
    """Changes nothing: pictures are tensors from the beginning."""


@dataclass(frozen=True)
class ToPureTensor(Transform):
    """Changes nothing: batches are plain tensors at the end."""


@dataclass(frozen=True)
class RandomIoUCrop(Transform):
    """Cuts out a random rectangle with the middle of a box in it, which overlaps it enough (Liu et al., 2016). Boxes whose middles are
    outside become zeros: put :class:`SanitizeBoundingBoxes` behind it."""

    min_scale: float = 0.3
    max_scale: float = 1.0
    min_aspect_ratio: float = 0.5
    max_aspect_ratio: float = 2.0
    sampler_options: Sequence[float] | None = None
    trials: int = 40


@dataclass(frozen=True)
class SanitizeBoundingBoxes(Transform):
    """Drops boxes that are too small or not all inside of their picture, with their labels: the :class:`Labels` among the
    ``companions`` of the :class:`Compose`."""

    min_size: float = 1.0
    min_area: float = 1.0
    labels_getter: str | None = "default"

    def document(self) -> dict[str, Any]:
        """It as JSON."""
        if self.labels_getter not in ("default", None):
            raise ValueError('SanitizeBoundingBoxes finds labels by companions={"labels": Labels()} of the Compose: leave labels_getter out')
        return {"type": type(self).__name__, "min_size": self.min_size, "min_area": self.min_area}


@dataclass(frozen=True)
class ClampBoundingBoxes(Transform):
    """Cuts off the parts of boxes outside of their picture."""

    clamping_mode: str | None = "auto"


@dataclass(frozen=True)
class ConvertBoundingBoxFormat(Transform):
    """Writes boxes as ``"XYXY"``, ``"XYWH"`` or ``"CXCYWH"``."""

    format: str

    def document(self) -> dict[str, Any]:
        """It as JSON."""
        return {"type": type(self).__name__, "format": BoundingBoxes(self.format).document()["format"]}


@dataclass(frozen=True, kw_only=True)
class MixUp(Transform):
    """Makes each sample of a batch a weighted mean of itself and the one before it, and its label likewise (Zhang et al., 2018).

    It stands at the end of a :class:`Compose`. A batch is that of one virtual rank, so the result is the same for any number of
    ranks. ``labels_getter`` is the name of the column of labels. The labels of a batch become float32 of ``[n, num_classes]``."""

    alpha: float = 1.0
    num_classes: int | None = None
    labels_getter: str | None = "default"


@dataclass(frozen=True, kw_only=True)
class CutMix(Transform):
    """Replaces a rectangle of each picture of a batch by that of the one before it, and its label in proportion (Yun et al., 2019).

    Otherwise as :class:`MixUp`."""

    alpha: float = 1.0
    num_classes: int | None = None
    labels_getter: str | None = "default"


@dataclass(frozen=True)
class RandomApply(Transform):
    """Applies all of its operations, or none."""

    transforms: Sequence[Transform]
    p: float = 0.5


@dataclass(frozen=True)
class RandomChoice(Transform):
    """Applies one of its operations."""

    transforms: Sequence[Transform]
    p: Sequence[float] | None = None


@dataclass(frozen=True)
class RandomOrder(Transform):
    """Applies its operations in random order."""

    transforms: Sequence[Transform]


class Compose(Transform):
    """Operations one after the other, for the ``transform`` of a :class:`shardd.DataLoader`.

    The pictures are the column ``column`` of the dataset: encoded images, which are decoded as ``mode`` (``"RGB"`` or
    ``"GRAY"``), or uint8 of a shape. A batch has them as ``layout`` (``"CHW"`` or ``"HWC"``). ``seed`` is that of the plan unless
    you give one. With ``on_error="zero"``, pictures that cannot be decoded are zeros, and with ``"skip"`` their samples are left
    out of the batch; a warning names each. Else the first of them ends the epoch with an error. ``truncated="fill"`` keeps the pixels
    of JPEGs that end too soon, with grey for the others. Pictures of more than ``max_pixels`` are errors before they take memory.

    ``companions`` are the columns that move with the pictures, by their names: :class:`BoundingBoxes`, :class:`KeyPoints`,
    :class:`Mask` and :class:`Labels`.
    """

    def __init__(
        self,
        transforms: Sequence[Transform],
        *,
        column: str | None = None,
        mode: str = "RGB",
        apply_exif_orientation: bool = False,
        max_pixels: int = 178_956_970,
        truncated: str = "raise",
        layout: str = "CHW",
        seed: int | None = None,
        on_error: str = "raise",
        companions: Mapping[str, Companion] | None = None,
    ) -> None:
        self.transforms = tuple(transforms)
        for transform in self.transforms:
            if not isinstance(transform, Transform):
                raise TypeError(_not_ours(transform))
        decode = {"mode": mode, "apply_exif_orientation": apply_exif_orientation, "max_pixels": max_pixels, "truncated": truncated}
        self._companions = _companions.checked(companions)
        beside = {name: companion.document() for name, companion in self._companions.items()}
        self._options = {"column": column, "decode": decode, "layout": layout, "seed": seed, "on_error": on_error}
        self._options |= {"companions": beside} if beside else {}
        single, mixing = _parted(self.transforms)
        document = {"transforms": [transform.document() for transform in single], **self._options}
        if mixing:
            document["batch"] = _mixing(mixing)
        self._chain = self._checked(document)

    def _checked(self, document: Mapping[str, Any]) -> _native.Chain:
        """The chain of this JSON."""
        try:
            return _native.Chain(json.dumps(document, allow_nan=False))
        except ValueError as error:
            if "Out of range float" in str(error):
                raise ValueError(f"an argument of {self.transforms!r} is not finite") from None
            raise

    @property
    def native(self) -> _native.Chain:
        """It, checked."""
        return self._chain

    @property
    def mixes(self) -> bool:
        """Whether it mixes the samples of batches."""
        return bool(_parted(self.transforms)[1])

    @property
    def column(self) -> str | None:
        """The column of pictures, if one was named."""
        return self._options["column"]

    def finds(self, value: Any) -> bool:
        """Whether it may change a value."""
        return is_picture(value)

    @property
    def companions(self) -> dict[str, Companion]:
        """The columns that move with the pictures."""
        return dict(self._companions)

    def document(self) -> dict[str, Any]:
        """Its operations as JSON, for other operations."""
        if self._options != Compose([])._options:
            raise ValueError("a Compose inside of another one has operations alone: give column, mode, layout and so on to the outer one")
        if _parted(self.transforms)[1]:
            raise ValueError("MixUp and CutMix mix finished batches: put them at the end of the outer Compose")
        return {"type": "Compose", "transforms": [transform.document() for transform in self.transforms]}

    def to_json(self) -> str:
        """All of it as JSON, for ``shardtrain --transforms`` and for records."""
        return self._chain.json

    @property
    def digest(self) -> str:
        """The BLAKE3 of its JSON: equal for equal transforms."""
        return self._chain.digest

    def __call__(self, sample: Any, *, epoch: int = 0, position: int = 0, seed: int = 0) -> Any:
        """A sample's picture as a batch would have it, at this position of this epoch.

        ``sample`` is an encoded image (``bytes``) or an array of uint8, ``[height, width, channels]`` or ``[channels, height,
        width]``; with one more dimension in front, it is a clip, whose frames are changed alike. The result is a tensor of PyTorch where PyTorch is installed, else an array of NumPy. It is not mixed with others.
        With ``companions``, ``sample`` and the result are mappings with them and the picture."""
        return self.at(sample, seed=seed, epoch=epoch, position=position)

    def at(self, sample: Any, *, seed: int, epoch: int, position: int, first: int = 0) -> Any:
        """The same behind other operations: its own have numbers from ``first`` on."""
        column, picture, given = self._parts(sample)
        if getattr(picture, "ndim", 0) == 4 and not given:
            frames = (self._chain.apply(*_bytes_of(frame), seed, epoch, position, first, []) for frame in picture)
            dtypes, shapes, numbers, _ = zip(*frames, strict=True)
            return _array(dtypes[0], [len(numbers), *shapes[0]], bytearray().join(numbers))
        data, shape = _bytes_of(picture)
        *numbers, moved = self._chain.apply(data, shape, seed, epoch, position, first, given)
        return self._whole(sample, column, _array(*numbers), moved)

    def stages(self, sample: Any, *, epoch: int = 0, position: int = 0, seed: int = 0) -> list[tuple[str, Any]]:
        """The operations and the picture behind each, to look at; the decoded picture comes first. These are uint8, or float32 behind
        ``ToDtype``, with the channels last."""
        column, picture, given = self._parts(sample)
        data, shape = _bytes_of(picture)
        stages = self._chain.stages(data, shape, seed, epoch, position, given)
        return [(op or "decoded", self._whole(sample, column, _array(*numbers), moved)) for op, (*numbers, moved) in stages]

    def _parts(self, sample: Any) -> tuple[str | None, Any, list[tuple[str, list[float], list[int], bytes, int]]]:
        """The column of the picture, the picture, and its companions, as the native transforms take them."""
        if not self._companions:
            return None, sample, []
        if not isinstance(sample, Mapping):
            raise TypeError(f"these transforms have companions: give a mapping of the picture and {', '.join(self._companions)}")
        if missing := [name for name in self._companions if name not in sample]:
            raise ValueError(f"the sample lacks {', '.join(missing)}, which the transforms declare as companions")
        column = self.column
        if column is None:
            found = [name for name, value in sample.items() if name not in self._companions and is_picture(value)]
            if len(found) != 1:
                raise ValueError(f"the transforms find {len(found)} pictures in a sample of {', '.join(sample)}: name one (column)")
            [column] = found
        if column not in sample:
            raise ValueError(f"the sample lacks {column}, the column of the transforms' pictures; it has {', '.join(sample)}")
        return column, sample[column], [one.given(sample[name]) for name, one in self._companions.items()]

    def _whole(self, sample: Any, column: str | None, picture: Any, moved: list[tuple[list[float], list[int], bytes, list[int]]]) -> Any:
        """The picture, or the sample with it and its companions."""
        if column is None:
            return picture
        beside = zip(self._companions.items(), moved, strict=True)
        return {**sample, column: picture, **{name: one.moved(sample[name], *parts) for (name, one), parts in beside}}

    def __repr__(self) -> str:
        return f"Compose({list(self.transforms)!r})"

    def _repr_html_(self) -> str:
        from . import _notebook

        return _notebook.chain(self)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Compose) and self.to_json() == other.to_json()

    def __hash__(self) -> int:
        return hash(self.to_json())

    def __reduce__(self) -> tuple[Callable[[str], Compose], tuple[str]]:
        return from_json, (self.to_json(),)


def from_json(text: str) -> Compose:
    """Transforms from their JSON: those of sounds and of columns, too."""
    document = json.loads(_native.Chain(text).json)
    if "columns" in document:
        from . import column_transforms

        return column_transforms.from_json(text)
    if "audio" in document:
        from . import audio_transforms

        return audio_transforms.from_json(text)
    options = {name: document[name] for name in ("column", "layout", "seed", "on_error")}
    mixing = dict(document.get("batch") or {"transforms": []})
    of_labels = {"num_classes": mixing.get("num_classes"), "labels_getter": mixing.get("labels") or "default"}
    transforms = [_of_document(op) for op in document["transforms"]] + [_of_document(op, of_labels) for op in mixing["transforms"]]
    companions = _companions.of_document(document.get("companions") or {})
    return Compose(transforms, **document["decode"], **options, companions=companions)


def _of_document(document: Mapping[str, Any], of_labels: Mapping[str, Any] | None = None) -> Transform:
    arguments = {name: value for name, value in document.items() if name != "type"}
    if "transforms" in arguments:
        arguments["transforms"] = [_of_document(op, of_labels) for op in arguments["transforms"]]
    kind: type[Transform] = globals()[document["type"]]
    return kind(**arguments, **(of_labels or {} if kind in (MixUp, CutMix) else {}))


def _mixes(transform: Transform) -> bool:
    """Whether it mixes finished batches; an error if it has operations of both kinds."""
    if isinstance(transform, RandomApply | RandomChoice) and isinstance(transform.transforms, Sequence):
        mixes = {_mixes(inside) for inside in transform.transforms}
        if len(mixes) > 1:
            raise ValueError(f"{transform!r} has operations on samples beside MixUp or CutMix, which mix finished batches: part them")
        return mixes == {True}
    return isinstance(transform, MixUp | CutMix)


def _parted(transforms: Sequence[Transform]) -> tuple[Sequence[Transform], Sequence[Transform]]:
    """The operations on samples, and those at the end that mix finished batches."""
    count = len(transforms)
    while count and _mixes(transforms[count - 1]):
        count -= 1
    for transform in transforms[:count]:
        if _mixes(transform):
            raise ValueError(f"{transform!r} mixes finished batches: put it behind the operations on samples")
    return transforms[:count], transforms[count:]


def _mixing(transforms: Sequence[Transform]) -> dict[str, Any]:
    """Operations that mix batches, as JSON: the column of labels and the number of classes are those of all of them."""
    of_labels: set[tuple[int | None, str | None]] = set()

    def document(transform: Any) -> dict[str, Any]:
        if isinstance(transform, MixUp | CutMix):
            of_labels.add((transform.num_classes, transform.labels_getter))
            return {"type": type(transform).__name__, "alpha": transform.alpha}
        return {**transform.document(), "transforms": [document(inside) for inside in transform.transforms]}

    documents = [document(transform) for transform in transforms]
    if len(of_labels) > 1:
        raise ValueError("MixUp and CutMix of one Compose mix the same labels: give all of them equal num_classes and labels_getter")
    [(classes, labels)] = of_labels
    if labels is not None and not isinstance(labels, str):
        raise TypeError(f"labels_getter is {labels!r}: give the name of the column of labels")
    return {"transforms": documents, "num_classes": classes, "labels": None if labels == "default" else labels}


def _not_ours(transform: Any) -> str:
    name = type(transform).__name__
    if name in _HINTS:
        return f"{name}: {_HINTS[name]}"
    if name in _native.Chain.names() or name in ("MixUp", "CutMix"):
        return f"{name} is that of {type(transform).__module__}: take shardd.transforms.{name}, with the same arguments"
    if callable(transform):
        return (
            f"{transform!r} is no transform of shardd.transforms. Call Python functions in a function that you pass as transform of "
            "shardd.DataLoader, and this Compose within it"
        )
    return f"{transform!r} is no transform"


# Names of torchvision's that are none here, and the way out.
_HINTS = {
    "ConvertImageDtype": 'use ToDtype("float32", scale=True)',
    "Lambda": "pass transform=[compose, function] to shardd.DataLoader",
    "PILToTensor": "leave it out: pictures are tensors from the beginning",
    "ToPILImage": "leave it out: pictures are tensors",
    "ToTensor": 'use ToDtype("float32", scale=True)',
}


def is_picture(value: Any) -> bool:
    """Whether a value may be an encoded image, or uint8 of a shape."""
    is_bytes = "uint8" in str(getattr(value, "dtype", ""))
    return isinstance(value, bytes | bytearray | memoryview) or is_bytes and len(value.shape) in (2, 3, 4)


def _bytes_of(sample: Any) -> tuple[bytes, list[int] | None]:
    """The bytes of a sample, and the shape of its pixels if it is not encoded."""
    if isinstance(sample, bytes | bytearray | memoryview):
        return bytes(sample), None
    import numpy

    array = numpy.asarray(sample)
    if array.dtype != numpy.uint8:
        raise TypeError(f"pictures are encoded images or uint8, and this is {array.dtype}")
    return array.tobytes(), list(array.shape)


def _array(dtype: str, shape: list[int], data: bytearray) -> Any:
    try:
        import torch
    except ImportError:
        import numpy

        # NumPy has no bfloat16: its bits are those of uint16.
        return numpy.frombuffer(data, dtype="uint16" if dtype == "bfloat16" else dtype).reshape(shape)
    return torch.frombuffer(data, dtype=getattr(torch, dtype)).reshape(shape)


def __getattr__(name: str) -> Any:
    """Names the nearest operation to one that does not exist."""
    if name.startswith("_"):
        raise AttributeError(name)
    nearest = f"the nearest is {_native.Chain.nearest(name)}; or pass a function beside the Compose: transform=[compose, function]"
    raise AttributeError(f"shardd.transforms has no {name}: {_HINTS.get(name) or nearest}")
