"""Datasets made of what Python gives."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from . import _native
from ._place import open_store

# Rows and bytes of a record batch.
_ROWS = 8192
_BYTES = 16 << 20


def from_iter(
    rows: Iterable[Mapping[str, Any]],
    out: str | os.PathLike[str],
    *,
    name: str,
    classes: Mapping[str, Sequence[str]] | None = None,
    mix: str = "random",
    seed: int = 0,
    shard_size: str | None = None,
    message: str = "",
    storage_options: Mapping[str, Any] | None = None,
) -> str:
    """Makes a version of dataset ``name`` in the store ``out`` (a directory or a URL) of the rows, and returns its id.

    A row is a dict of numbers, arrays, tensors, pictures (PIL), ``bytes`` and ``str``. The first row decides the columns, and the
    type and shape that a column has in all rows. ``mix`` is the order of the samples in the store: ``"random"``,
    ``"sequential"``, or the name of a column whose values are spread evenly over the shards. ``classes`` names the classes of
    columns of labels. Rows that memory does not hold lie in temporary files (``TMPDIR``) meanwhile.

    A value is copied when its row comes, so ``rows`` may use one array again for the next row. If ``rows`` raises, nothing is
    committed, and the exception is yours.

    One process, the calling one, iterates over ``rows``. Threads outside the interpreter make the shards meanwhile. If the rows
    take long to compute, do that in processes of your own (``multiprocessing.Pool.imap``), or write files and ingest these with
    ``shardctl ingest``.
    """
    store = open_store(os.fspath(out), **(storage_options or {}))

    def begin(columns: Sequence[_Column]) -> _native.Rows:
        return _native.Rows(store, name, columns, mix=mix, seed=seed, shard_size=shard_size, message=message)

    return _write(begin, rows, classes or {})


def from_arrow(
    data: Any,
    out: str | os.PathLike[str],
    *,
    name: str,
    classes: Mapping[str, Sequence[str]] | None = None,
    mix: str = "random",
    seed: int = 0,
    shard_size: str | None = None,
    message: str = "",
    storage_options: Mapping[str, Any] | None = None,
) -> str:
    """As :func:`from_iter`, of Arrow data, in the memory of the library that made it. The columns are those that ``shardctl ingest``
    makes of a Parquet file with these rows.

    ``data`` is one of:

    a table or a stream
        whatever has ``__arrow_c_stream__``: a ``pyarrow.Table``, a ``RecordBatchReader``, a DataFrame of Polars or pandas, a
        relation of DuckDB.
    a dataset or a scanner
        with ``to_batches()``, such as those of ``pyarrow.dataset`` and of Lance.
    an iterable
        of record batches or tables, such as a generator.

    All record batches need the columns and types of the first. At most a few wait to be ingested, so ``data`` may be larger than
    memory. Do not change the memory of a batch after you yield it: it is not copied.

    If ``data`` raises, nothing is committed, and the exception is yours. Of a stream of another language, the message is.
    """
    store = open_store(os.fspath(out), **(storage_options or {}))
    names = {key: [str(each) for each in values] for key, values in (classes or {}).items()}
    writer: _native.Batches | None = None
    try:
        for number, batch in enumerate(_batches(data)):
            if writer is None:
                _check_classes(names, batch.columns)
                writer = _native.Batches(store, name, batch, names, mix=mix, seed=seed, shard_size=shard_size, message=message)
            writer.write(batch, number)
        if writer is None:
            raise ValueError("there are no rows")
    except BaseException:
        if writer is not None:
            writer.abandon()
        raise
    return writer.finish()


def _batches(data: Any) -> Iterator[_native.Batch]:
    """Its record batches."""
    # A stream of the interface has only the messages of exceptions, and an iterator of PyArrow's the exceptions themselves.
    if hasattr(data, "__arrow_c_stream__") and not hasattr(data, "read_next_batch"):
        yield from _native.BatchStream(data)
        return
    if hasattr(data, "__arrow_c_array__"):
        yield _native.Batch(data)
        return
    if hasattr(data, "to_batches"):
        data = data.to_batches()
    if isinstance(data, (str, bytes, Mapping)) or not hasattr(data, "__iter__"):
        raise TypeError(
            f"{type(data).__name__} has no Arrow data: pass a table, a stream or an iterable of record batches; rows are for "
            "shardd.from_iter, and files for shardctl ingest"
        )
    for number, part in enumerate(data):
        if hasattr(part, "__arrow_c_array__"):
            yield _native.Batch(part)
        elif hasattr(part, "__arrow_c_stream__"):
            yield from _native.BatchStream(part)
        else:
            raise TypeError(
                f"item {number} is a {type(part).__name__}: give record batches or tables of Arrow; rows are for shardd.from_iter"
            )


def _check_classes(classes: Iterable[str], columns: Sequence[str]) -> None:
    if unknown := [key for key in classes if key not in columns]:
        raise ValueError(f"classes names column {unknown[0]!r}; there are {', '.join(columns)}")


def from_torch(
    dataset: Any, out: str | os.PathLike[str], *, name: str, columns: Sequence[str] | None = None, **how: Any
) -> str:
    """As :func:`from_iter`, of a ``torch.utils.data.Dataset``, map-style or iterable. Classes are those of ``dataset.classes``, if
    it has them.

    A sample is one of:

    a dict
        whose keys are the columns.
    a tuple or list
        whose parts ``columns`` names. The default is ``("image", "label")`` for two parts, the field names of a named tuple, and
        ``("data",)`` for one part.
    a single value
        such as a tensor or an array of any shape. It is the column that ``columns`` names, by default ``"data"``.
    """
    # Every dataset of torch has `__getitem__`, even one that can only be iterated.
    items = iter(dataset) if hasattr(dataset, "__iter__") else (dataset[index] for index in range(len(dataset)))
    rows: Iterator[Mapping[str, Any]] = (_row_of(item, columns) for item in items)
    names = getattr(dataset, "classes", None)
    if names is not None and "classes" not in how and (first := next(rows, None)) is not None:
        rows = chain([first], rows)
        if "label" in first:
            how["classes"] = {"label": [str(each) for each in names]}
    return from_iter(rows, out, name=name, **how)


_PAIR, _ONE = ("image", "label"), ("data",)


def _row_of(item: Any, columns: Sequence[str] | None) -> Mapping[str, Any]:
    """A sample of PyTorch's by columns."""
    if isinstance(item, Mapping):
        return item
    # Not by its length, which tensors and texts have, too.
    parts = item if isinstance(item, (tuple, list)) else (item,)
    if columns is None:
        columns = getattr(item, "_fields", None) or (_ONE if len(parts) == 1 else _PAIR)
    if len(parts) != len(columns):
        raise ValueError(f"a sample has {_counted(parts)}, and columns names {len(columns)}: {', '.join(columns)}")
    return dict(zip(columns, parts))


def _counted(parts: Sequence[Any]) -> str:
    return f"{len(parts)} parts" if len(parts) != 1 else "one part"


def from_hf(dataset: Any, out: str | os.PathLike[str], *, name: str, **how: Any) -> str:
    """As :func:`from_iter`, of a ``datasets.Dataset``. Pictures stay encoded; the names of a ``ClassLabel`` are kept."""
    how.setdefault("classes", {key: list(of.names) for key, of in dataset.features.items() if hasattr(of, "names")})
    plain = dataset
    for key, of in dataset.features.items():
        if type(of).__name__ in ("Image", "Audio"):
            plain = plain.cast_column(key, type(of)(decode=False))

    def value(of: Any) -> Any:
        if isinstance(of, dict) and set(of) == {"bytes", "path"}:
            if of["bytes"] is not None:
                return of["bytes"]
            with open(of["path"], "rb") as file:
                return file.read()
        return of

    rows = ({key: value(of) for key, of in row.items()} for row in plain)
    return from_iter(rows, out, name=name, **how)


# Name, type, shape of a value (``None``: one number), names of classes.
_Column = tuple[str, str, Sequence[int] | None, Sequence[str] | None]


def _write(
    begin: Callable[[Sequence[_Column]], _native.Rows],
    rows: Iterable[Mapping[str, Any]],
    classes: Mapping[str, Sequence[str]],
) -> str:
    import numpy as np

    writer: _native.Rows | None = None
    kinds: dict[str, tuple[str, tuple[int, ...] | None]] = {}
    # Of columns of numbers an array with a row for each value, of others a list.
    waiting: dict[str, Any] = {}
    most = count = total = size = 0

    def flush() -> None:
        nonlocal count, size
        assert writer is not None
        values = (part if isinstance(part, list) else part[:count].reshape(-1).view(np.uint8) for part in waiting.values())
        writer.write(count, list(values))
        for part in waiting.values():
            if isinstance(part, list):
                part.clear()
        count = size = 0

    try:
        for row in rows:
            if not isinstance(row, Mapping):
                raise ValueError(f"row {total} is a {type(row).__name__}: give a dict of values by column")
            values = {key: _value(value, f"row {total}, column {key!r}", np) for key, value in row.items()}
            if writer is None:
                kinds = {key: (kind, shape) for key, (kind, shape, _) in values.items()}
                _check_classes(classes, list(kinds))
                writer = begin([(key, kind, shape, classes.get(key)) for key, (kind, shape) in kinds.items()])
                fixed = sum(value.nbytes for kind, _, value in values.values() if kind not in ("bytes", "text"))
                most = max(1, min(_ROWS, _BYTES // max(fixed, 1)))
                for key, (kind, shape, _) in values.items():
                    waiting[key] = [] if kind in ("bytes", "text") else np.empty((most, *(shape or ())), dtype=kind)
            if values.keys() != kinds.keys():
                raise ValueError(
                    f"row {total} has the columns {', '.join(values)}, and the rows before {', '.join(kinds)}"
                )
            for key, (kind, shape, value) in values.items():
                if (kind, shape) != kinds[key]:
                    raise ValueError(
                        f"row {total}, column {key!r}: {_shown(kind, shape, np)}, and the rows before have "
                        f"{_shown(*kinds[key], np)}; give all rows one type and shape, or keep the values as bytes"
                    )
                part = waiting[key]
                if kind in ("bytes", "text"):
                    part.append(value)
                    size += len(value)
                else:
                    part[count] = value
            count += 1
            total += 1
            if count == most or size >= _BYTES:
                flush()
        if writer is None:
            raise ValueError("there are no rows")
        if count:
            flush()
    except BaseException:
        if writer is not None:
            writer.abandon()
        raise
    return writer.finish()


def _value(value: Any, where: str, np: Any) -> tuple[str, tuple[int, ...] | None, Any]:
    """Its type, its shape, and itself: bytes, text, or an array."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return "bytes", None, bytes(value)
    if isinstance(value, str):
        return "text", None, value
    if hasattr(value, "detach"):  # a tensor of torch
        value = value.detach().cpu().numpy()
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise ValueError(f"{where}: {type(value).__name__} cannot be kept: {error}") from None
    if array.dtype.kind not in "biuf" or array.dtype.itemsize > 8:
        raise ValueError(
            f"{where}: {type(value).__name__} of {array.dtype} cannot be kept: give numbers, arrays, bytes or text"
        )
    kind = array.dtype.newbyteorder("<").str if array.dtype.itemsize > 1 else array.dtype.str
    return kind, array.shape if np.ndim(value) else None, array


def _shown(kind: str, shape: tuple[int, ...] | None, np: Any) -> str:
    if kind not in ("bytes", "text"):
        kind = np.dtype(kind).name
    return kind if shape is None else f"{kind} of shape {tuple(shape)}"
