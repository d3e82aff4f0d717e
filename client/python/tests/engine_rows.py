"""The rows that the ingests with Ray and with Spark lay into shards, and how their versions are compared."""

from decimal import Decimal
from pathlib import Path

import pyarrow
import pyarrow.dataset
import pyarrow.parquet
import pytest

ROWS = 4000
LAYOUT = {"seed": 7, "shard_size": "16KiB"}
FLAGS = ("--mix", "hash", "--seed", "7", "--shard-size", "16KiB")


def table() -> pyarrow.Table:
    """Rows with nulls, nested lists and bytes; some are equal."""
    numbers = [number % (ROWS - 100) for number in range(ROWS)]
    some = lambda number, value: value if number % 7 else None  # noqa: E731
    return pyarrow.table(
        {
            "id": pyarrow.array(numbers, pyarrow.int64()),
            "half": pyarrow.array([some(n, n / 2) for n in numbers], pyarrow.float32()),
            "text": [some(n + 1, f"row {n}") for n in numbers],
            "blob": [some(n + 2, bytes([n % 256]) * (n % 9)) for n in numbers],
            "lists": [some(n + 3, [[n], [], [n, n + 1]][: n % 4]) for n in numbers],
            "boxes": [some(n + 4, {"x": n, "name": f"b{n % 3}"}) for n in numbers],
        }
    )


def write(folder: Path) -> None:
    """The rows as four files."""
    rows = table()
    for part in range(4):
        pyarrow.parquet.write_table(rows.slice(part * ROWS // 4, ROWS // 4), folder / f"part-{part}.parquet", row_group_size=300)


def typed() -> pyarrow.Table:
    """Rows of the types that Spark and Arrow share."""
    return pyarrow.table(
        {
            "flag": [True, None, False],
            "small": pyarrow.array([1, None, -3], pyarrow.int8()),
            "short": pyarrow.array([1, None, -3], pyarrow.int16()),
            "number": pyarrow.array([1, None, -3], pyarrow.int32()),
            "double": [0.5, None, float("inf")],
            "day": pyarrow.array([1, None, 20_000], pyarrow.date32()),
            "moment": pyarrow.array([1, None, 1_700_000_000_000_000], pyarrow.timestamp("us", "UTC")),
            "local": pyarrow.array([1, None, 1_700_000_000_000_000], pyarrow.timestamp("us")),
            "price": pyarrow.array([Decimal("1.250"), None, Decimal("-3.000")], pyarrow.decimal128(12, 3)),
            "words": pyarrow.array([[("a", 1)], None, [("b", None), ("c", 3)]], pyarrow.map_(pyarrow.string(), pyarrow.int32())),
            "deep": pyarrow.array([[{"at": [1]}], None, []], pyarrow.list_(pyarrow.struct({"at": pyarrow.list_(pyarrow.int64())}))),
        }
    )


def shard_files(place: Path) -> list[str]:
    """The names of all shards in a store."""
    return sorted(path.name for path in (place / "store").rglob("*.arrow"))


def assert_same_rows(found: pyarrow.Table, expected: pyarrow.Table) -> None:
    """The same columns, types and rows, in whatever order."""
    assert found.schema.remove_metadata() == expected.schema.remove_metadata()
    assert sorted(map(repr, found.to_pylist())) == sorted(map(repr, expected.to_pylist()))


QUERY = "select count(*), sum(id), sum(half), count(text), sum(octet_length(blob)), sum(len(lists)), count(boxes.x) from {}"


def assert_read_by_others(place: Path) -> None:
    """PyArrow and DuckDB find the rows in the files of the shards."""
    shards = [str(path) for path in (place / "store" / "shards").rglob("*.arrow")]
    rows = pyarrow.dataset.dataset(shards, format="arrow")
    expected = table()
    duckdb = pytest.importorskip("duckdb")
    assert_same_rows(rows.to_table(), expected)
    assert duckdb.sql(QUERY.format("rows")).fetchall() == duckdb.sql(QUERY.format("expected")).fetchall()
