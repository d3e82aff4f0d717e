"""Datasets made of Arrow data: whatever gives it, its rows come back, and are those that `shardctl` makes of a file."""

import datetime
import decimal
import os
import signal
import threading
from pathlib import Path

import datasets
import numpy as np
import pandas
import pyarrow
import pyarrow.dataset
import pyarrow.parquet
import pytest

import shardd
from helpers import ingest

ROWS = 1000


def table(start: int = 0, stop: int = ROWS) -> pyarrow.Table:
    numbers = range(start, stop)
    return pyarrow.table({"id": list(numbers), "text": [f"row {n}" for n in numbers], "half": [n / 2 for n in numbers]})


def back(store, **how) -> dict:
    """All rows by their column, in the order of the store."""
    dataset = shardd.StreamingDataset(str(store), **how)
    batch = dataset[:]
    return {name: values if isinstance(values, list) else values.tolist() for name, values in batch.items()}


def shards(store) -> set[str]:
    """The names of the shards, which are the digests of their bytes."""
    return {path.name for path in Path(store).rglob("*") if path.is_file() and "shards" in path.parts}


def write(data, store, **how) -> str:
    return shardd.from_arrow(data, store, name="rows", **{"mix": "sequential", **how})


def polars_frame(rows: pyarrow.Table):
    return pytest.importorskip("polars").from_arrow(rows)


def duckdb_relation(rows: pyarrow.Table):
    return pytest.importorskip("duckdb").connect().sql("select * from rows")


def lance_dataset(rows: pyarrow.Table):
    lance = pytest.importorskip("lance")
    return lance.write_dataset(rows, "memory://rows")


GIVERS = {
    "table": lambda rows: rows,
    "record batch": lambda rows: rows.combine_chunks().to_batches()[0],
    "reader": lambda rows: rows.to_reader(max_chunksize=97),
    "generator of record batches": lambda rows: iter(rows.to_batches(max_chunksize=97)),
    "generator of tables": lambda rows: (rows.slice(start, 97) for start in range(0, len(rows), 97)),
    "dataset": pyarrow.dataset.dataset,
    "scanner": lambda rows: pyarrow.dataset.dataset(rows).scanner(batch_size=97),
    "pandas": lambda rows: rows.to_pandas(),
    "Hugging Face": lambda rows: datasets.Dataset(rows).with_format("arrow").iter(97),
    "polars": polars_frame,
    "duckdb": duckdb_relation,
    "lance": lance_dataset,
}


@pytest.mark.parametrize("giver", GIVERS)
def test_rows_come_back_whatever_gives_them(tmp_path, giver):
    version = write(GIVERS[giver](table()), tmp_path)
    assert back(tmp_path) == table().to_pydict()
    assert shardd.StreamingDataset(tmp_path).version == version


def wide() -> pyarrow.Table:
    """A column of every kind that a file of Parquet may have, half of them with nulls. Items of lists have the name that they have
    in Parquet."""
    numbers = range(ROWS)
    some = lambda value: [None if n % 7 == 0 else value(n) for n in numbers]  # noqa: E731
    day = datetime.datetime(2026, 1, 1)
    return pyarrow.table(
        {
            "bool": some(lambda n: n % 2 == 0),
            "u8": pyarrow.array([n % 256 for n in numbers], pyarrow.uint8()),
            "f16": pyarrow.array(np.arange(ROWS, dtype=np.float16)),
            "nullable": pyarrow.array(some(lambda n: n), pyarrow.int32()),
            "words": pyarrow.array([f"word {n % 5}" for n in numbers]).dictionary_encode(),
            "bytes": some(lambda n: bytes([n % 256]) * (n % 9)),
            "large": pyarrow.array(some(str), pyarrow.large_string()),
            "time": pyarrow.array([day + datetime.timedelta(seconds=n) for n in numbers], pyarrow.timestamp("us", "UTC")),
            "date": [(day + datetime.timedelta(days=n)).date() for n in numbers],
            "money": pyarrow.array([decimal.Decimal(n) / 4 for n in numbers], pyarrow.decimal128(9, 2)),
            "list": pyarrow.array(some(lambda n: list(range(n % 4))), of(pyarrow.int64())),
            "nested": pyarrow.array(some(lambda n: {"a": n, "b": [str(n)]}), pyarrow.struct({"a": pyarrow.int64(), "b": of(pyarrow.string())})),
            "fixed": pyarrow.array([[n, n + 1] for n in numbers], of(pyarrow.int64(), 2)),
        }
    )


def of(items: pyarrow.DataType, size: int = -1) -> pyarrow.DataType:
    return pyarrow.list_(pyarrow.field("element", items), size)


@pytest.mark.parametrize("mix", ["sequential", "random", "u8"])
def test_shards_and_columns_are_those_that_shardctl_makes_of_parquet(tmp_path, mix):
    pyarrow.parquet.write_table(wide(), tmp_path / "rows.parquet")
    how = ("--mix", "stratified", "--label", mix) if mix == "u8" else ("--mix", mix)
    ingest(tmp_path / "cli", "rows", tmp_path / "rows.parquet", *how)
    write(wide(), tmp_path / "arrow", mix=mix)
    columns = [{name: of["type"] for name, of in shardd.StreamingDataset(tmp_path / name)._schema.items()} for name in ("arrow", "cli")]
    assert columns[0] == columns[1]
    assert shards(tmp_path / "arrow") == shards(tmp_path / "cli") != set()


def test_maps_tensors_and_lists_come_back(tmp_path):
    numbers = range(ROWS)
    tensors = pyarrow.array([[n] * 4 for n in numbers], pyarrow.list_(pyarrow.float32(), 4))
    columns = {
        "map": pyarrow.array([[(str(n), n)] for n in numbers], pyarrow.map_(pyarrow.string(), pyarrow.int64())),
        "tensor": pyarrow.ExtensionArray.from_storage(pyarrow.fixed_shape_tensor(pyarrow.float32(), [2, 2]), tensors),
        "list": [list(range(n % 4)) for n in numbers],
    }
    write(pyarrow.table(columns), tmp_path)
    read = shardd.StreamingDataset(tmp_path)[:]
    assert read["map"] == [{str(n): n} for n in numbers] and read["list"].to_list() == columns["list"]
    assert read["tensor"].shape == (ROWS, 2, 2) and read["tensor"][:, 1, 1].tolist() == list(numbers)


def test_views_and_dictionaries_of_other_libraries_become_plain(tmp_path):
    words = [f"word {n % 11}, which is longer than a view holds" for n in range(ROWS)]
    batch = {
        "view": pyarrow.array(words, pyarrow.string_view()),
        "binary": pyarrow.array([word.encode() for word in words], pyarrow.binary_view()),
        "runs": pyarrow.compute.run_end_encode(pyarrow.array(np.arange(ROWS) // 100)),
    }
    write(pyarrow.table(batch), tmp_path)
    read = shardd.StreamingDataset(tmp_path)[:]
    assert read["view"] == words and read["binary"].to_list() == [word.encode() for word in words]
    assert read["runs"].tolist() == [n // 100 for n in range(ROWS)]


def test_dictionaries_may_differ_from_batch_to_batch(tmp_path):
    parts = [pyarrow.table({"word": pyarrow.array([f"{start + n % 3}" for n in range(100)]).dictionary_encode()}) for start in (0, 50, 7)]
    write(iter(parts), tmp_path)
    assert back(tmp_path)["word"] == [f"{start + n % 3}" for start in (0, 50, 7) for n in range(100)]


def test_classes_are_kept_and_the_same_batches_are_the_same_version(tmp_path):
    rows = pyarrow.table({"id": range(100), "label": [n % 2 for n in range(100)]})
    first = write(rows, tmp_path / "a", classes={"label": ["cat", "dog"]})
    assert shardd.StreamingDataset(tmp_path / "a").class_to_idx == {"cat": 0, "dog": 1}
    assert write(rows, tmp_path / "b", classes={"label": ["cat", "dog"]}) == first
    with pytest.raises(ValueError, match="classes names column 'lable'; there are id, label"):
        write(rows, tmp_path / "c", classes={"lable": ["cat"]})
    assert not (tmp_path / "c").exists()


def union() -> pyarrow.Array:
    return pyarrow.UnionArray.from_sparse(pyarrow.array([0, 1], pyarrow.int8()), [pyarrow.array([1, 2]), pyarrow.array(["a", "b"])])


BATCH = pyarrow.record_batch({"id": [1, 2], "x": [1.0, 2.0]})


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (pyarrow.table({"id": [1, 2], "u": union()}), ValueError, 'column "u" of type .* cannot be ingested: .*; drop or convert it'),
        (pyarrow.table([[1], [2]], names=["a", "a"]), ValueError, 'column "a" .* another column has the same name'),
        (pyarrow.table({"id": pyarrow.array([], pyarrow.int64())}), ValueError, "there are no rows"),
        ([BATCH.slice(0, 0)], RuntimeError, "no samples found"),
        (pyarrow.table({"n": pyarrow.nulls(3)}), ValueError, "no column has a value"),
        ([], ValueError, "there are no rows"),
        ([BATCH, pyarrow.record_batch({"id": [1]})], ValueError, "record batch 1: it has the columns id, and the first batch id, x; give all"),
        ([BATCH, pyarrow.record_batch({"id": [1, 2], "x": [1, 2]})], ValueError, 'record batch 1: column "x" is Int64, and Float64 in the first batch'),
        (pyarrow.chunked_array([[1, 2]]), TypeError, r"ChunkedArray has the values of one column.*pyarrow.table"),
        ([pyarrow.array([1, 2])], TypeError, "Int64Array has the values of one column"),
        ([pyarrow.array([{"a": 1}, None])], ValueError, "rows of a struct array are null; drop"),
        ([{"id": 1}], TypeError, "item 0 is a dict: give record batches or tables of Arrow; rows are for shardd.from_iter"),
        ("rows.parquet", TypeError, "str has no Arrow data: .* files for shardctl ingest"),
        ({"id": [1]}, TypeError, "dict has no Arrow data"),
        (3, TypeError, "int has no Arrow data"),
    ],
)
def test_what_cannot_be_kept_is_named_and_nothing_is_made(tmp_path, data, error, message):
    with pytest.raises(error, match=message):
        write(data, tmp_path / "store")
    assert not (tmp_path / "store").exists()


def failing(error: BaseException, count: int = 5):
    for start in range(0, count * 100, 100):
        yield table(start, start + 100).to_batches()[0]
    raise error


def test_an_error_of_a_generator_is_passed_on_as_it_is(tmp_path):
    error = LookupError("of the user's")
    for data in (failing(error), pyarrow.RecordBatchReader.from_batches(table().schema, failing(error))):
        with pytest.raises(LookupError) as caught:
            write(data, tmp_path / "store")
        assert caught.value is error
    assert not (tmp_path / "store").exists()


def test_a_stream_that_fails_midway_names_the_batch_and_commits_nothing(tmp_path):
    class Stream:
        """A stream and nothing else, as other languages give it."""

        def __init__(self, reader) -> None:
            self.__arrow_c_stream__ = reader.__arrow_c_stream__

    write(table(0, 10), tmp_path)
    reader = pyarrow.RecordBatchReader.from_batches(table().schema, failing(LookupError("of the producer's")))
    with pytest.raises(RuntimeError, match="record batch 5 of the stream cannot be read: .*of the producer's"):
        write(Stream(reader), tmp_path)
    assert back(tmp_path)["id"] == list(range(10)), "the version of before is the last"


def test_a_long_generator_takes_the_memory_of_a_few_batches(tmp_path):
    count, most = 300, 0

    def batches():
        nonlocal most
        for number in range(count):
            most = max(most, pyarrow.total_allocated_bytes() - before)
            yield pyarrow.record_batch({"x": pyarrow.array(np.full(25_000, number))})

    before = pyarrow.total_allocated_bytes()
    write(batches(), tmp_path)
    assert len(shardd.StreamingDataset(tmp_path)) == count * 25_000
    assert 0 < most < 60 * 200_000, "each batch has 200 kB"


@pytest.mark.parametrize("after", [3, 400])
def test_an_interrupt_leaves_the_version_of_before(tmp_path, after):
    """After a few batches, and while the last ones are ingested."""
    write(table(0, 10), tmp_path)
    threads = threading.active_count()

    def batches():
        for number in range(400):
            yield pyarrow.record_batch({"x": np.random.default_rng(number).random(20_000)})
            if number + 1 == after:
                os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        write(batches(), tmp_path, mix="random")
    assert back(tmp_path)["id"] == list(range(10)) and threading.active_count() == threads
    assert "ingest" not in {Path(f"/proc/self/task/{task}/comm").read_text().strip() for task in os.listdir("/proc/self/task")}
    assert shardd.from_arrow(table(), tmp_path, name="rows")


def test_frames_of_pandas_keep_their_types(tmp_path):
    frame = pandas.DataFrame({"n": pandas.array([1, None, 3], "Int16"), "c": pandas.Categorical(["a", "b", "a"]), "t": ["x", "y", "z"]})
    write(frame, tmp_path)
    assert back(tmp_path) == {"n": [1, None, 3], "c": ["a", "b", "a"], "t": ["x", "y", "z"]}
