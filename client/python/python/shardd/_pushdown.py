"""Filters of Spark as predicates of Arrow, where both mean the same."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_COMPARISONS: dict[str, Callable[[pc.Expression, pa.Scalar], pc.Expression]] = {
    "EqualTo": lambda column, value: column == value,
    "GreaterThan": lambda column, value: column > value,
    "GreaterThanOrEqual": lambda column, value: column >= value,
    "LessThan": lambda column, value: column < value,
    "LessThanOrEqual": lambda column, value: column <= value,
}


def predicate(found: Any, columns: pa.Schema) -> tuple[pc.Expression, bool] | None:
    """A filter of Spark as a predicate, and whether it is true of the same rows: of others, it is at least true where the filter is
    and all numbers are finite. `None` if Arrow has none."""
    kind = type(found).__name__
    is_negated = kind == "Not"
    if is_negated:
        found = found.child
        kind = type(found).__name__
    path = found.attribute
    if len(path) != 1 or path[0] not in columns.names:
        return None
    name, of = path[0], columns.field(path[0]).type
    column = pc.field(name)
    if kind in ("IsNull", "IsNotNull"):
        return (column.is_null() if (kind == "IsNull") != is_negated else column.is_valid()), True
    values = found.value if kind == "In" else (found.value,)
    scalars = [_scalar(value, of) for value in values] if kind == "In" or kind in _COMPARISONS else []
    if not scalars or None in scalars:
        return None
    if kind == "In":
        made = pc.is_in(column, value_set=pa.array([scalar.as_py() for scalar in scalars], of))
        made = (~made if is_negated else made) & column.is_valid()
    else:
        made = _COMPARISONS[kind](column, scalars[0])
        made = ~made if is_negated else made
    # To Spark, NaN is equal to itself and larger than any number.
    return made, not pa.types.is_floating(of)


def _scalar(value: Any, of: pa.DataType) -> pa.Scalar | None:
    """A value of a filter in the type of its column, if that holds it exactly."""
    types = pa.types
    fits = (
        (types.is_boolean(of) and isinstance(value, bool))
        or (types.is_integer(of) and of != pa.uint64() and isinstance(value, int) and not isinstance(value, bool))
        or ((types.is_float32(of) or types.is_float64(of)) and isinstance(value, float))
        or ((types.is_string(of) or types.is_large_string(of)) and isinstance(value, str))
        or (types.is_date32(of) and type(value) is datetime.date)
        or (types.is_timestamp(of) and isinstance(value, datetime.datetime) and (of.tz is None) == (value.tzinfo is None))
    )
    if not fits:
        return None
    try:
        scalar = pa.scalar(value, of)
    except (pa.ArrowInvalid, OverflowError):
        return None
    return scalar if scalar.as_py() == value else None
