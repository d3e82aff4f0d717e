"""Reads shards and manifests with pyarrow, DuckDB and polars, and compares every value with the input.

  compat.py shard FILE        the rows of tests/tests/stories/compat.rs, in one shard
  compat.py manifest FOLDER   manifest.arrow, and the shards that it lists: 0.arrow, 1.arrow, ...
  compat.py table FILE        a manifest without its shards
"""

import datetime
import decimal
import json
import sys
from pathlib import Path

import blake3
import duckdb
import polars
import pyarrow as pa

decimal.getcontext().prec = 50
START = 1_700_000_000
DAY = 86_400_000_000_000


def row_of(row):
    """The row of that number: the formulas of compat.rs."""

    def some(every):
        return row % every != every - 1

    def wrap(value, bits):
        return (value + 2 ** (bits - 1)) % 2**bits - 2 ** (bits - 1)

    text = f"row {row} é" + "x" * (row % 50)
    raw = bytes([row % 256]) * (row % 20)
    features_before = sum(range(5)) * (row // 5) + sum(range(row % 5))
    inner = {"deep": row % 2 == 0, "name": "b" * (row % 6) if some(3) else None}
    return {
        "label": row % 10,
        "i8": wrap(row, 8) if some(7) else None,
        "i16": wrap(row * 31, 16),
        "i32": row * -400_003,
        "i64": row * -1_800_000_000_000_007,
        "u8": row % 256,
        "u16": row * 13 % 2**16,
        "u32": row * 800_000,
        "u64": 2**64 - 1 - row,
        "f16": row % 2048 / 4 - 100,
        "f32": row % 2048 / 4 - 100,
        "f64": row / 7,
        "flag": row % 3 == 0 if some(5) else None,
        "price": decimal.Decimal(row * 100 - 5) / 100 if some(13) else None,
        "large": decimal.Decimal(row * 10**33 - 7) / 10**10,
        "nothing": None,
        "text": text if some(11) else None,
        "long_text": text if row % 4 else "",
        "bytes": raw if some(6) else None,
        "long_bytes": raw,
        "hash": bytes([row % 256]) * 5,
        "day": (row - 2000) * DAY,
        "clock": row * 17_000_003 * 1000,
        "seconds": (START + row) * 10**9,
        "millis": (START * 1000 - row) * 10**6 if some(9) else None,
        "micros": (START * 10**6 + row) * 10**3,
        "nanos": START * 10**9 + row,
        "took": row * 1001 * 1000,
        "tensor": [row + at / 8 for at in range(6)],
        "pair": [float(row), 0.5 if some(4) else None] if some(9) else None,
        "tokens": [row + at if at != 2 else None for at in range(row % 4)] if some(6) else None,
        "words": [f"{row}/{at}" for at in range(row % 3)],
        "features": [{"index": at * 1000, "value": (features_before + at) / 2} for at in range(row % 5)],
        "box": {"x": row, "inner": inner if some(10) else None} if some(8) else None,
        "counts": [(f"k{at}", row if some(4) else None) for at in range(row % 3)] if some(12) else None,
    }


def pyarrow(path):
    return pa.ipc.open_file(pa.memory_map(str(path))).read_all()


def through_duckdb(path):
    table = pyarrow(path)
    halves = [field.name for field in table.schema if field.type == pa.float16()]  # DuckDB has no such numbers
    shard = table.drop_columns(halves)  # DuckDB finds it by its name and reads it in place
    return duckdb.sql("SELECT * FROM shard").to_arrow_table()


def through_polars(path):
    frame = polars.read_ipc(path)
    assert polars.scan_ipc(path).collect().equals(frame)
    return frame.to_arrow()


READERS = {"pyarrow": pyarrow, "duckdb": through_duckdb, "polars": through_polars}


def values(column):
    """The values of a column as Python has them; points in time in nanoseconds."""
    column = pa.chunked_array([getattr(chunk, "storage", chunk) for chunk in column.chunks])
    kind = column.type
    if pa.types.is_timestamp(kind):
        column = column.cast(pa.timestamp("ns", kind.tz)).cast(pa.int64())
    if pa.types.is_time(kind):
        column = column.cast(pa.time64("ns")).cast(pa.int64())
    if pa.types.is_duration(kind):
        column = column.cast(pa.duration("ns")).cast(pa.int64())
    return [plain(value) for value in column.to_pylist()]


def plain(value):
    """Dates and intervals in nanoseconds, and maps as lists of pairs."""
    if isinstance(value, datetime.date):
        return (value - datetime.date(1970, 1, 1)).days * DAY
    if isinstance(value, pa.MonthDayNano):
        assert value.months == 0
        return value.days * DAY + value.nanoseconds
    if isinstance(value, list) and value and isinstance(value[0], dict) and list(value[0]) == ["key", "value"]:
        return [(pair["key"], pair["value"]) for pair in value]
    return value


def check_shard(path):
    for reader, read in READERS.items():
        table = read(path)
        columns = {name: values(table[name]) for name in table.column_names}
        expected = [row_of(row) for row in range(table.num_rows)]
        missing = set(expected[0]) - set(columns)
        assert missing == ({"f16"} if reader == "duckdb" else set()), f"{reader} does not read {missing}"
        for name, found in columns.items():
            for row, value in enumerate(found):
                wanted = expected[row][name]
                assert value == wanted, f"{reader} reads {value!r} and not {wanted!r} in row {row} of {name}"
        print(f"{reader}: {table.num_rows} rows, {len(columns)} columns")


def check_manifest(folder):
    files = [(folder / f"{index}.arrow").read_bytes() for index in range(4)]
    tables = [pa.ipc.open_file(file).read_all() for file in files]
    for read in READERS.values():
        entries = read(folder / "manifest.arrow").to_pylist()
        assert [entry["shard"] for entry in entries] == [blake3.blake3(file).digest() for file in files]
        assert [entry["bytes"] for entry in entries] == [len(file) for file in files]
        assert [entry["rows"] for entry in entries] == [table.num_rows for table in tables]
        for entry, table in zip(entries, tables):
            labels = table["label"].to_pylist()
            assert json.loads(entry["labels"]) == {str(label): labels.count(label) for label in sorted(set(labels))}
    check_table(folder / "manifest.arrow")


def check_table(path):
    for reader, read in READERS.items():
        manifest = read(path)
        assert manifest.to_pylist() == pyarrow(path).to_pylist(), reader
        print(f"{reader}: {manifest.num_rows} shards of {sum(manifest['rows'].to_pylist())} rows")


if __name__ == "__main__":
    checks = {"shard": check_shard, "manifest": check_manifest, "table": check_table}
    checks[sys.argv[1]](Path(sys.argv[2]))
