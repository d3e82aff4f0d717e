"""Transforms of columns of tables, computed by the loader's threads: numbers and words become what a model takes.

.. code-block:: python

    from shardd import column_transforms as C

    loader = shardd.DataLoader(dataset, 4096, transform=C.Compose({
        "age": [C.FillNull(40), C.Normalize(mean=38.6, std=13.6)],
        "hours": [C.Bucketize([20, 40, 60]), C.OneHot(4)],
        "city": C.Hash(bins=100_000),
        "work": C.Vocabulary(["private", "state"], unknown=0),
    }))

An operation changes each value for itself, in whole batches and outside the interpreter's lock. A sample has the same values in
any batch, for any number of threads and ranks, and on every processor. Where rows are lists, an operation changes each value of the
lists.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from . import _formats, _native, transforms

__all__ = [
    "Bucketize",
    "Cast",
    "Clip",
    "Compose",
    "FillNull",
    "Hash",
    "Log1p",
    "MinMaxScale",
    "MultiHot",
    "Normalize",
    "OneHot",
    "Vocabulary",
    "from_json",
]

_Numbers = float | Sequence[float]


class Operation:
    """An operation on the values of a column."""

    def document(self) -> dict[str, Any]:
        """It as JSON."""
        arguments = {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]
        return {"type": type(self).__name__} | {name: _argument(name, value) for name, value in arguments.items()}


def _argument(name: str, value: Any) -> Any:
    """An argument as JSON: words may be of any kind, all others are numbers."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_argument(name, item) for item in value]
    # A number of NumPy or PyTorch, or an array of them; types of NumPy have the method, too.
    return transforms._plain(name, value.tolist() if name != "dtype" and hasattr(value, "tolist") else value)


@dataclass(frozen=True)
class FillNull(Operation):
    """Puts ``value`` in the place of each null, and with ``nan`` of NaN, too. In lists it fills the nulls among the values; a null in the
    place of a list becomes an empty list, or, in a column of one shape, a row of the value."""

    value: float | bool | str
    nan: bool = False


@dataclass(frozen=True)
class Normalize(Operation):
    """``(x - mean) / std``, in 64 bits, rounded once to ``dtype``: ``"float32"`` or ``"float64"``. In a column of one shape, ``mean`` and
    ``std`` may have one number for each place in the last dimension."""

    mean: _Numbers
    std: _Numbers
    dtype: Any = "float32"


@dataclass(frozen=True)
class MinMaxScale(Operation):
    """``(x - min) / (max - min)``, which is 0 to 1 between the two. Arguments are as those of :class:`Normalize`."""

    min: _Numbers
    max: _Numbers
    dtype: Any = "float32"


@dataclass(frozen=True)
class Log1p(Operation):
    """``log(1 + x)``, as ``numpy.log1p``: -inf of -1, and NaN below."""

    dtype: Any = "float32"


@dataclass(frozen=True)
class Clip(Operation):
    """The nearest value from ``min`` to ``max``, of the same type; either may be left out. NaN stays NaN."""

    min: float | None = None
    max: float | None = None


@dataclass(frozen=True)
class Cast(Operation):
    """The same numbers as another type. A number that the type does not hold is an error. Floats lose their fraction where they become
    integers. A date, time or duration becomes the count of its units (``"int64"``), a decimal a float."""

    dtype: Any


@dataclass(frozen=True)
class Bucketize(Operation):
    """The number of ``boundaries`` below each value, as ``torch.bucketize``: int64. NaN is above all boundaries."""

    boundaries: Sequence[float]
    right: bool = False


@dataclass(frozen=True)
class Hash(Operation):
    """A hash of text, binary values or integers, from 0 to ``bins - 1``: int64, the same on every machine and in every release.

    For a word it is ``xxhash.xxh3_64_intdigest(word.encode(), seed) % bins``. An integer is hashed as 8 bytes:
    ``number.to_bytes(8, "little", signed=True)``."""

    bins: int
    seed: int = 0


@dataclass(frozen=True)
class Vocabulary(Operation):
    """The number of each word, or integer, in the list ``words``: int64, from 0, or from 1 with ``unknown=0``.

    Nulls and all other words have the number ``unknown``: 0, a negative number, or one from ``len(words)`` on. Without it they are
    errors."""

    words: Sequence[str] | Sequence[int]
    unknown: int | None = None


@dataclass(frozen=True)
class OneHot(Operation):
    """A vector of ``classes`` zeros for each integer, with a one in its place. Another integer than 0 to ``classes - 1`` is an error."""

    classes: int
    dtype: Any = "float32"


@dataclass(frozen=True)
class MultiHot(Operation):
    """A vector of ``classes`` zeros for each list of integers, with ones in their places. Another integer than 0 to ``classes - 1`` is an
    error."""

    classes: int
    dtype: Any = "float32"


class Compose(transforms.Compose):
    """Operations on columns, for the ``transform`` of a :class:`shardd.DataLoader`.

    ``columns`` has an operation, or a list of them, for each column that changes. ``samples`` are transforms of pictures or sounds beside
    them; a list does the same: ``transform=[T.Compose(…), C.Compose(…)]``.
    """

    def __init__(self, columns: Mapping[str, Operation | Sequence[Operation]], *, samples: transforms.Compose | None = None) -> None:
        if not isinstance(columns, Mapping):
            raise TypeError(f"Compose takes a mapping of columns to operations, and gets {columns!r}")
        self.columns = {name: _operations(name, ops) for name, ops in columns.items()}
        if isinstance(samples, Compose):
            raise TypeError("samples are transforms of pictures or sounds: put all columns into one mapping")
        self.samples = samples
        self.transforms = samples.transforms if samples is not None else ()
        self._companions = samples.companions if samples is not None else {}
        document: dict[str, Any] = {"columns": {name: [op.document() for op in ops] for name, ops in self.columns.items()}}
        if samples is not None:
            document["samples"] = json.loads(samples.to_json())
        self._chain = self._checked(document)

    @property
    def column(self) -> str | None:
        """The column of pictures or sounds, if one was named."""
        return self.samples.column if self.samples is not None else None

    @property
    def mixes(self) -> bool:
        """Whether it mixes the samples of batches."""
        return self.samples is not None and self.samples.mixes

    def document(self) -> dict[str, Any]:
        """Nothing: it is a part of no other ``Compose``."""
        raise ValueError("transforms of columns are no operation on pictures: pass them beside the Compose, transform=[compose, columns]")

    def __call__(self, batch: Any, **at: Any) -> dict[str, Any]:
        """The columns of a batch, or of a sample, as the loader gives them.

        ``batch`` is a record batch of Arrow, such as ``pyarrow.RecordBatch.from_pandas(frame)``. A sample is a mapping of columns to
        values, and needs PyArrow. Pictures and sounds stay as they are."""
        if at:
            raise TypeError(f"transforms of columns are the same at each position: leave {', '.join(at)} out")
        is_sample = isinstance(batch, Mapping)
        if not is_sample and not hasattr(batch, "__arrow_c_array__"):
            raise TypeError(f"give a record batch of Arrow, or a mapping with the values of one sample, and not {type(batch).__name__}")
        given = _batch_of(batch) if is_sample else batch
        changed = self._chain.apply_to_columns(_native.Batch(given))
        convert = _formats.converter(_formats.default_format())
        values = {column.name: convert(column) for column in changed}
        return {name: value[0] for name, value in values.items()} if is_sample else values

    def at(self, sample: Any, *, seed: int, epoch: int, position: int, first: int = 0) -> Any:
        """The sample, as at any position."""
        return self(sample)

    def stages(self, sample: Any, **at: Any) -> list[tuple[str, Any]]:
        """Those of pictures and sounds: call ``samples.stages``."""
        raise TypeError("transforms of columns have no stages: call a Compose with fewer operations")

    def __repr__(self) -> str:
        samples = f", samples={self.samples!r}" if self.samples is not None else ""
        return f"Compose({self.columns!r}{samples})"


def from_json(text: str) -> Compose:
    """Transforms of columns from their JSON."""
    document = json.loads(_native.Chain(text).json)
    if "columns" not in document:
        raise ValueError("these transforms are of no columns: read them with shardd.transforms.from_json")
    columns = {name: [_of_document(op) for op in ops] for name, ops in document["columns"].items()}
    samples = document.get("samples")
    return Compose(columns, samples=transforms.from_json(json.dumps(samples)) if samples is not None else None)


def samples_of(chain: transforms.Compose | None) -> transforms.Compose | None:
    """Those of pictures or sounds."""
    return chain.samples if isinstance(chain, Compose) else chain


def together(steps: Sequence[Any]) -> list[Any]:
    """The steps of a loader, of which transforms of columns are one with those of pictures or sounds: the first."""
    found = [step for step in steps if isinstance(step, Compose)]
    if not found:
        return list(steps)
    if len(found) > 1:
        raise ValueError("transform has several Composes of columns: put all columns into one mapping")
    behind = [step for step in steps[: steps.index(found[0])] if step is not None and not isinstance(step, transforms.Compose)]
    if behind:
        raise ValueError(f"threads transform whole columns before {behind[0]!r} gets samples: put the Compose of columns before functions")
    [columns], rest = found, [step for step in steps if step is not found[0]]
    samples = rest[0] if rest and isinstance(rest[0], transforms.Compose) else None
    if samples is None:
        return [columns, *rest]
    if columns.samples is not None:
        raise ValueError("the Compose of columns has samples already: leave the other Compose out")
    return [Compose(columns.columns, samples=samples), *rest[1:]]


def _operations(name: str, ops: Any) -> list[Operation]:
    every = list(ops) if isinstance(ops, Sequence) else [ops]
    for op in every:
        if isinstance(op, transforms.Transform):
            raise TypeError(f"column {name!r} has {op!r}, an operation on pictures: use those of shardd.column_transforms")
        if not isinstance(op, Operation):
            raise TypeError(f"column {name!r} has {op!r}, which is no operation of shardd.column_transforms")
    return every


def _of_document(document: Mapping[str, Any]) -> Operation:
    kind: type[Operation] = globals()[document["type"]]
    return kind(**{name: value for name, value in document.items() if name != "type"})


def _batch_of(sample: Mapping[str, Any]) -> Any:
    """A record batch of one row."""
    try:
        import pyarrow
    except ImportError:
        raise ImportError("a single sample becomes a record batch by PyArrow: install pyarrow, or pass a record batch") from None
    columns = {}
    for name, value in sample.items():
        # Numbers of NumPy and PyTorch keep their type.
        array = None if value is None or isinstance(value, bool | int | float | str | bytes | Sequence) else _array(value)
        if array is None or not array.shape:
            columns[name] = pyarrow.array([value] if array is None else array[None])
        else:
            columns[name] = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(array.reshape(-1)), array.size)
    return pyarrow.RecordBatch.from_pydict(columns)


def _array(value: Any) -> Any:
    import numpy

    return numpy.asarray(value)


def __getattr__(name: str) -> Callable[..., Any]:
    """Names the nearest operation to one that does not exist."""
    if name.startswith("_"):
        raise AttributeError(name)
    nearest = _native.Chain.nearest_of_columns(name)
    raise AttributeError(f"shardd.column_transforms has no {name}: the nearest is {nearest}; or pass a function beside the Compose")
