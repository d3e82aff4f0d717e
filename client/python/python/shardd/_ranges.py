"""Which shards a predicate cannot be true in: by what the manifest says of the values of each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset
import pyarrow.fs

# The manifest has 64-bit floats: integers from here on may have been rounded to them.
_EXACT = 2**53


def known(column: pa.Field, rows: int, found: tuple[int, tuple[float, float] | None] | None) -> pc.Expression | None:
    """What is true of the values of a column in all rows of a shard, which `found` says of them; `None` if nothing is known."""
    if found is None:
        return None
    count, spread = found
    kind, values = column.type, pc.field(column.name)
    if pa.types.is_floating(kind) and count < rows:
        return None  # The others are null, infinite or no numbers.
    if spread is None:
        return values.is_null() if rows > 0 else None
    bounds = _bounds(kind, *spread)
    if bounds is None:
        return None
    least, greatest = bounds
    if count < rows:
        return ((values >= least) | values.is_null()) & ((values <= greatest) | values.is_null())
    return values == least if least.equals(greatest) else (values >= least) & (values <= greatest)


def _bounds(kind: pa.DataType, least: float, greatest: float) -> tuple[pa.Scalar, pa.Scalar] | None:
    """Values of the type that are certainly not larger than the least one and not smaller than the greatest one."""
    if pa.types.is_float32(kind) or pa.types.is_float64(kind):
        return pa.scalar(least, kind), pa.scalar(greatest, kind)
    stored = _stored(kind)
    if stored is None:
        return None
    low, high = (int(value) for value in (_beyond(least, -math.inf), _beyond(greatest, math.inf)))
    if pa.types.is_integer(stored):
        bits, signed = stored.bit_width, pa.types.is_signed_integer(stored)
        low = max(low, -(1 << bits - 1) if signed else 0)
        high = min(high, (1 << bits - signed) - 1)
    both: Any = pa.array([low, high] if pa.types.is_integer(stored) else [bool(low), bool(high)], stored).view(kind)
    return both[0], both[1]


def _beyond(value: float, direction: float) -> float:
    return value if abs(value) < _EXACT else math.nextafter(value, direction)


def _stored(kind: pa.DataType) -> pa.DataType | None:
    """The type of the integers in which the values are stored, or that of truth values."""
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind):
        return kind
    if pa.types.is_date32(kind) or pa.types.is_time32(kind):
        return pa.int32()
    if pa.types.is_date64(kind) or pa.types.is_time64(kind) or pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        return pa.int64()
    return None


def satisfiable(schema: pa.Schema, shards: Sequence[Sequence[pc.Expression | None]], predicate: pc.Expression) -> list[int]:
    """The numbers of the shards in which the predicate may be true of a row, by what is known of all rows of each."""
    # Arrow decides it, as for the row groups of Parquet files: each shard stands for a file, which is not read.
    form, files = pyarrow.dataset.IpcFileFormat(), pyarrow.fs.LocalFileSystem()
    fragments = []
    for number, known in enumerate(shards):
        all_known = pc.scalar(True)
        for fact in known:
            all_known = all_known if fact is None else fact if all_known.equals(pc.scalar(True)) else all_known & fact
        fragments.append(form.make_fragment(str(number), files, partition_expression=all_known))
    dataset = pyarrow.dataset.FileSystemDataset(fragments, schema, form, files)
    return sorted(int(fragment.path) for fragment in dataset.get_fragments(filter=predicate))
