"""Transforms of sounds with the names and arguments of ``torchaudio.transforms``, computed by the loader's threads.

.. code-block:: python

    from shardd import audio_transforms as A

    augment = A.Compose([
        A.RandomTimeCrop(A.Seconds(4), pad=True),
        A.MelSpectrogram(sample_rate=16_000, n_mels=80),
        A.AmplitudeToDB(top_db=80),
        A.FrequencyMasking(20),
        A.TimeMasking(40),
    ], sample_rate=16_000, channels=1)
    loader = shardd.DataLoader(dataset, batch_size=64, transform=augment)

A batch has waveforms as ``[n, channels, samples]`` and spectrograms as ``[n, channels, bins, frames]``. All its sounds have one
length: :class:`RandomTimeCrop` or :class:`PadOrTrim` settles it.

Each random number is a pure function of a seed, the epoch, the position of the sample in the epoch's order, and the operation, as
in :mod:`shardd.transforms`. So a sample has the same numbers for any number of threads, processes, ranks and restarts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from . import _native, transforms
from .transforms import Identity, RandomApply, RandomChoice, RandomOrder, Transform

__all__ = [
    "AmplitudeToDB",
    "Compose",
    "Fade",
    "FrequencyMasking",
    "Identity",
    "LogMel",
    "MFCC",
    "MelScale",
    "MelSpectrogram",
    "MuLawEncoding",
    "Normalize",
    "PadOrTrim",
    "RandomApply",
    "RandomChoice",
    "RandomOrder",
    "RandomTimeCrop",
    "Resample",
    "Seconds",
    "SpecAugment",
    "Spectrogram",
    "TimeMasking",
    "ToDtype",
    "Vol",
    "from_json",
    "is_sound",
]


@dataclass(frozen=True)
class Seconds:
    """A length of time in seconds. Where a length is an ``int``, it is a number of samples."""

    seconds: float


_Length = int | Seconds

# Arguments of torchaudio's that have one value here.
_FIXED = {
    "wkwargs": ((None,), "windows have no further arguments"),
    "onesided": ((None, True), "spectrograms have the lower half of the frequencies: the upper half mirrors it"),
    "return_complex": ((None, False), "spectrograms are real numbers"),
}


def _argument(name: str, value: Any) -> Any:
    """An argument as JSON."""
    if name in ("length", "start"):
        return _span(name, value)
    if name == "window_fn":
        return getattr(value, "__name__", value)
    if name == "melkwargs":
        return _arguments("MFCC", value or {})
    return transforms._plain(name, value)


def _arguments(op: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments as JSON, without those that have one value."""
    for name, (values, reason) in _FIXED.items():
        if arguments.get(name) not in values:
            raise ValueError(f"{op}: {reason}; leave {name} out")
    if arguments.get("power", 2.0) is None:
        raise ValueError(f"{op}: spectrograms are real numbers, and power=None asks for complex ones: give a power over 0")
    return {name: _argument(name, value) for name, value in arguments.items() if name not in _FIXED}


def _span(name: str, value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, Seconds):
        return {"seconds": value.seconds}
    if isinstance(value, bool) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} is {value!r}: give a number of samples, or Seconds({value!r})")
    return {"samples": value.__index__()}


def _of_span(document: Any) -> _Length | None:
    return document if document is None else Seconds(document["seconds"]) if "seconds" in document else document["samples"]


class _Operation(Transform):
    """An operation on sounds."""

    def document(self) -> dict[str, Any]:
        """It as JSON."""
        name = type(self).__name__
        return {"type": name} | _arguments(name, {field.name: getattr(self, field.name) for field in fields(self)})  # type: ignore[arg-type]


@dataclass(frozen=True)
class Resample(_Operation):
    """Changes the samples per second, by a windowed sinc function. Without ``orig_freq`` it takes sounds of any rate."""

    orig_freq: int | None = None
    new_freq: int = 16_000
    resampling_method: str = "sinc_interp_hann"
    lowpass_filter_width: int = 6
    rolloff: float = 0.99
    beta: float | None = None


@dataclass(frozen=True)
class RandomTimeCrop(_Operation):
    """Cuts a part of this length out at a random place. With ``pad``, a shorter waveform gets zeros at its end, or with
    ``pad_mode="circular"`` itself again; else it is an error. If it comes first, only that part of a file is decoded."""

    length: _Length
    pad: bool = False
    pad_mode: str = "constant"


@dataclass(frozen=True)
class PadOrTrim(_Operation):
    """Gives waveforms this length, as ``whisper.pad_or_trim``: keeps the start, or with ``anchor="center"`` the middle. A shorter one
    gets zeros, or with ``pad_mode="circular"`` itself again. If it comes first, only that part of a file is decoded."""

    length: _Length
    anchor: str = "start"
    pad_mode: str = "constant"


@dataclass(frozen=True)
class Vol(_Operation):
    """Multiplies samples by a gain, and cuts them off at -1 and 1."""

    gain: float
    gain_type: str = "amplitude"


@dataclass(frozen=True)
class Fade(_Operation):
    """Rises from silence and falls back to it."""

    fade_in_len: int = 0
    fade_out_len: int = 0
    fade_shape: str = "linear"


@dataclass(frozen=True)
class MuLawEncoding(_Operation):
    """Makes levels of samples: uint8 for up to 256 ``quantization_channels``, else float32."""

    quantization_channels: int = 256


@dataclass(frozen=True)
class Spectrogram(_Operation):
    """Magnitudes of short-time Fourier transforms, raised to ``power``."""

    n_fft: int = 400
    win_length: int | None = None
    hop_length: int | None = None
    pad: int = 0
    window_fn: str | Callable[..., Any] = "hann_window"
    power: float | None = 2.0
    normalized: bool | str = False
    wkwargs: Mapping[str, Any] | None = None
    center: bool = True
    pad_mode: str = "reflect"
    onesided: bool = True
    return_complex: bool | None = None


@dataclass(frozen=True)
class MelScale(_Operation):
    """Sums the bins of spectrograms by triangles on the mel scale."""

    n_mels: int = 128
    sample_rate: int = 16_000
    f_min: float = 0.0
    f_max: float | None = None
    n_stft: int = 201
    norm: str | None = None
    mel_scale: str = "htk"


@dataclass(frozen=True)
class MelSpectrogram(_Operation):
    """:class:`Spectrogram` and :class:`MelScale` in one pass."""

    sample_rate: int = 16_000
    n_fft: int = 400
    win_length: int | None = None
    hop_length: int | None = None
    f_min: float = 0.0
    f_max: float | None = None
    pad: int = 0
    n_mels: int = 128
    window_fn: str | Callable[..., Any] = "hann_window"
    power: float = 2.0
    normalized: bool | str = False
    wkwargs: Mapping[str, Any] | None = None
    center: bool = True
    pad_mode: str = "reflect"
    onesided: bool | None = None
    norm: str | None = None
    mel_scale: str = "htk"


@dataclass(frozen=True)
class MFCC(_Operation):
    """The cosine transform of a mel spectrogram in decibels. ``melkwargs`` has arguments of :class:`MelSpectrogram`."""

    sample_rate: int = 16_000
    n_mfcc: int = 40
    dct_type: int = 2
    norm: str | None = "ortho"
    log_mels: bool = False
    melkwargs: Mapping[str, Any] | None = None

    def __hash__(self) -> int:
        return hash(json.dumps(self.document()))


@dataclass(frozen=True)
class LogMel(_Operation):
    """The log-mel spectrogram of Whisper, ``[channels, n_mels, samples // hop_length]``. Put ``PadOrTrim(Seconds(30))`` before it."""

    sample_rate: int = 16_000
    n_fft: int = 400
    hop_length: int = 160
    n_mels: int = 80


@dataclass(frozen=True)
class AmplitudeToDB(_Operation):
    """Makes decibels of energy (``stype="power"``) or of magnitudes, at most ``top_db`` under the maximum."""

    stype: str = "power"
    top_db: float | None = None


@dataclass(frozen=True)
class FrequencyMasking(_Operation):
    """Sets random neighbouring bins to 0, fewer than ``freq_mask_param``."""

    freq_mask_param: int
    iid_masks: bool = False


@dataclass(frozen=True)
class TimeMasking(_Operation):
    """Sets random neighbouring frames to 0, fewer than ``time_mask_param`` and at most a part ``p`` of all."""

    time_mask_param: int
    iid_masks: bool = False
    p: float = 1.0


@dataclass(frozen=True)
class SpecAugment(_Operation):
    """Masks frames and bins several times with the mean, or with zeros (Park et al., 2019)."""

    n_time_masks: int
    time_mask_param: int
    n_freq_masks: int
    freq_mask_param: int
    iid_masks: bool = True
    p: float = 1.0
    zero_masking: bool = False


@dataclass(frozen=True)
class Normalize(_Operation):
    """Subtracts a mean from all numbers, and divides them by a standard deviation."""

    mean: float
    std: float


@dataclass(frozen=True)
class ToDtype(_Operation):
    """Makes the numbers of a batch ``float16``, ``bfloat16`` or ``float32``."""

    dtype: Any


class Compose(transforms.Compose):
    """Operations on sounds one after the other, for the ``transform`` of a :class:`shardd.DataLoader`.

    The sounds are the column ``column`` of the dataset: encoded as WAV, FLAC, MP3 or Ogg Vorbis; or float32 or int16, ``[samples]`` or
    ``[channels, samples]``, whose samples per second are ``rate``. They are resampled to ``sample_rate``. With ``channels=1`` they
    become the mean of their channels; a sound of one channel has it ``channels`` times. ``start`` and ``length`` choose a part of each
    file. ``truncated="keep"`` keeps the samples before damage. A sound of more than ``max_samples`` numbers, all channels together, is an
    error. ``seed`` and ``on_error`` are as those of :class:`shardd.transforms.Compose`.
    """

    def __init__(
        self,
        transforms: Sequence[Transform],
        *,
        column: str | None = None,
        sample_rate: int | None = None,
        channels: int | None = None,
        rate: int | None = None,
        start: _Length = 0,
        length: _Length | None = None,
        truncated: str = "raise",
        max_samples: int = 1 << 25,
        seed: int | None = None,
        on_error: str = "raise",
    ) -> None:
        self.transforms = tuple(transforms)
        for transform in self.transforms:
            if not isinstance(transform, Transform):
                raise TypeError(_not_ours(transform))
        self._companions = {}
        audio = {
            "sample_rate": sample_rate,
            "channels": channels,
            "rate": rate,
            "start": _span("start", start),
            "length": _span("length", length),
            "truncated": truncated,
            "max_samples": max_samples,
        }
        self._options = {"column": column, "audio": audio, "seed": seed, "on_error": on_error}
        document = {"transforms": [transform.document() for transform in self.transforms], **self._options}
        self._chain = self._checked(document)

    @property
    def mixes(self) -> bool:
        """Whether it mixes the samples of batches: never."""
        return False

    def finds(self, value: Any) -> bool:
        """Whether it may change a value."""
        return is_sound(value)

    def document(self) -> dict[str, Any]:
        """Its operations as JSON, for other operations."""
        if self._options != Compose([])._options:
            raise ValueError("a Compose inside of another one has operations alone: give column, sample_rate and so on to the outer one")
        return {"type": "Compose", "transforms": [transform.document() for transform in self.transforms]}

    def at(self, sample: Any, *, seed: int, epoch: int, position: int, first: int = 0) -> Any:
        """A sample's sound as a batch would have it, at this position of this epoch. ``sample`` is an encoded sound (``bytes``), or an
        array of float32 or int16. The operations have numbers from ``first`` on."""
        data, shape = _bytes_of(sample)
        dtype, shape, data, _ = self._chain.apply(data, shape, seed, epoch, position, first, [])
        return transforms._array(dtype, shape, data)

    def stages(self, sample: Any, *, epoch: int = 0, position: int = 0, seed: int = 0) -> list[tuple[str, Any]]:
        """The operations and the sound behind each as float32, to look at; the decoded and resampled waveform comes first."""
        data, shape = _bytes_of(sample)
        stages = self._chain.stages(data, shape, seed, epoch, position, [])
        return [(op or "decoded", transforms._array(dtype, shape, data)) for op, (dtype, shape, data, _) in stages]


def from_json(text: str) -> Compose:
    """Transforms of sounds from their JSON."""
    document = json.loads(_native.Chain(text).json)
    audio = document["audio"]
    audio |= {name: _of_span(audio[name]) for name in ("start", "length")}
    options = {name: document[name] for name in ("column", "seed", "on_error")}
    return Compose([_of_document(op) for op in document["transforms"]], **audio, **options)


def _of_document(document: Mapping[str, Any]) -> Transform:
    arguments = {name: value for name, value in document.items() if name != "type"}
    if "transforms" in arguments:
        arguments["transforms"] = [_of_document(op) for op in arguments["transforms"]]
    if "length" in arguments:
        arguments["length"] = _of_span(arguments["length"])
    kind: type[Transform] = globals()[document["type"]]
    return kind(**arguments)


def _not_ours(transform: Any) -> str:
    name = type(transform).__name__
    if name in _native.Chain.names(audio=True):
        return f"{name} is that of {type(transform).__module__}: take shardd.audio_transforms.{name}, with the same arguments"
    if type(transform).__module__.startswith("torchaudio"):
        return f"{name} is not computed by the loader: pass transform=[compose, function] to shardd.DataLoader, and call it in the function"
    return transforms._not_ours(transform)


def is_sound(value: Any) -> bool:
    """Whether a value may be an encoded sound, or samples of a shape."""
    is_samples = str(getattr(value, "dtype", "")).removeprefix("torch.") in ("float32", "int16")
    return isinstance(value, bytes | bytearray | memoryview) or is_samples and len(value.shape) in (1, 2)


def _bytes_of(sample: Any) -> tuple[bytes, list[int] | None]:
    """The bytes of a sample, and the shape of its samples as float32 if it is not encoded."""
    if isinstance(sample, bytes | bytearray | memoryview):
        return bytes(sample), None
    import numpy

    array = numpy.asarray(sample)
    if array.dtype == numpy.int16:
        # Exact: the loader does the same.
        array = array.astype(numpy.float32) / numpy.float32(32768)
    if array.dtype != numpy.float32:
        raise TypeError(f"sounds are encoded, float32 or int16, and this is {array.dtype}")
    return array.tobytes(), list(array.shape)


def __getattr__(name: str) -> Any:
    """Names the nearest operation to one that does not exist."""
    if name.startswith("_"):
        raise AttributeError(name)
    raise AttributeError(f"shardd.audio_transforms has no {name}: the nearest is {_native.Chain.nearest(name, audio=True)}")
