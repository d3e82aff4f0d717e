"""DataFrames of Spark: ingest them with the executors of a Spark application, append them, read them back, reshard and verify them.

Spark schedules, retries and spills; shardd decides the shard of each row, writes shards, and commits. Needs PySpark 4
(``pip install shardd[spark]``).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as spark
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceWriter, InputPartition

from ._pushdown import predicate
from ._reshard import Reshard
from ._shards import Shards, Verified
from ._tables import SHARD, Amount, Job, total

__all__ = ["ShardSource", "Verified", "append", "ingest", "reshard", "verify"]


def ingest(
    df: DataFrame,
    out: str | os.PathLike[str],
    *,
    name: str,
    seed: int = 0,
    shard_size: str | None = None,
    compression: str | None = None,
    message: str = "",
    storage_options: Mapping[str, Any] | None = None,
) -> str:
    """Makes a version of dataset ``name`` in the store ``out`` of a DataFrame, and returns its id.

    The samples lie in the order of a keyed hash of the rows (``seed``), so the version depends on the rows alone: it is the one
    of ``shardctl ingest --mix hash`` with the same rows, seed, size and compression, for any number of executors, partitions,
    retries and speculative tasks. ``shard_size`` (``"16MiB"``; by default a 64th of the data, between 1 and 64 MiB) and
    ``compression`` are those of ``shardctl ingest``.

    Spark computes ``df`` twice: to measure the rows, and to bring the rows of each shard together in a shuffle. If it gives other
    rows the second time, as rows drawn at random do, this raises and commits nothing: pass ``df.persist()`` or ``df.checkpoint()``.
    A task holds one shard at a time. The driver holds a line for each shard.

    An executor writes a shard under the digest of its bytes, so one that is killed, or runs twice, leaves nothing half-visible.
    The commit is the last step and a single one. All executors must reach ``out``: a bucket, or a directory that they share.
    ``storage_options`` are those of :class:`~shardd.StreamingDataset`, and go to the executors.

    :raises ValueError: for columns that shards cannot hold, and rows that differ between the two readings.
    :raises RuntimeError: when another commit was faster.
    :raises pyspark.errors.PythonException: when a task fails, such as when the store does not take a shard.
    """
    job = Job(
        columns=_columns(df),
        out=os.fspath(out),
        storage_options=dict(storage_options or {}),
        seed=seed,
        shard_size=shard_size,
        compression=compression,
    )
    return _make(df, job, name, message)


def append(
    df: DataFrame,
    out: str | os.PathLike[str],
    *,
    name: str,
    shard_size: str | None = None,
    message: str = "",
    storage_options: Mapping[str, Any] | None = None,
) -> str:
    """Appends the rows of a DataFrame to dataset ``name`` in the store ``out``, and returns the id of the version.

    The shards of the dataset stay, and the new ones follow them: the version is the one of ``shardctl append`` with the same rows.
    The samples of the dataset have to lie by a hash of their rows, as with :func:`ingest` and ``shardctl ingest --mix hash``. New
    shards are of the size of those that are there, unless ``shard_size`` is given. Columns have the types in which
    :class:`ShardSource` reads those of the dataset, and get the dataset's own.

    Rows are read, written and committed as by :func:`ingest`. Rows that are there already are appended once more.

    :raises FileNotFoundError: when there is no such dataset.
    :raises ValueError: when the dataset has other columns, or another order of its samples; and those of :func:`ingest`.
    :raises RuntimeError: when the dataset has another version since this began. Nothing is committed then; run it again.
    :raises pyspark.errors.PythonException: when a task fails, such as when the store does not take a shard.
    """
    job = Job.appending(_columns(df), os.fspath(out), name, shard_size, dict(storage_options or {}))
    if job.base is not None:
        job = replace(job, columns=_types_of(job.columns, pa.schema(job.store.schema(job.base)), df))
    return _make(df, job, name, message)


def _types_of(columns: pa.Schema, dataset: pa.Schema, df: DataFrame) -> pa.Schema:
    """The columns with the types of those of the dataset that Spark reads as these."""

    def fitted(column: pa.Field) -> pa.Field:
        if column.name not in dataset.names:
            return column
        there = dataset.field(column.name)
        is_read_so = _type(there)[0].simpleString() == df.schema[column.name].dataType.simpleString()
        return column.with_type(there.type) if is_read_so and not isinstance(there.type, pa.BaseExtensionType) else column

    return pa.schema([fitted(column) for column in columns])


def _make(df: DataFrame, job: Job, name: str, message: str) -> str:
    """The version that the job makes of the rows."""
    _ = job.table  # What is wrong with the columns is an error here.
    amount = _amount(df, job)
    job = job.measured(amount)

    def deal(parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for part in parts:
            yield from job.deal(pa.Table.from_batches([part])).to_batches()

    # Spark counts the arguments, and self would be one.
    def write(rows: pa.Table) -> pa.Table:
        return job.write(rows)

    dealt = df.mapInArrow(deal, spark.StructType([*df.schema.fields, spark.StructField(SHARD, spark.IntegerType())]))
    written = dealt.groupBy(SHARD).applyInArrow(write, "shard long, entry string")
    shards = [(row.shard, row.entry) for row in written.collect()]
    try:
        return job.commit(name, amount, shards, message)
    except ValueError as error:
        error.add_note("If the DataFrame draws rows at random, pass df.persist() or df.checkpoint().")
        raise


def verify(
    session: SparkSession,
    place: str | os.PathLike[str],
    dataset: str | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
) -> Verified:
    """Reads all shards of a version with the executors of Spark, and checks them row by row, and their sidecars, as
    ``shardctl verify`` does. Returns the faults; ``shardctl verify --repair`` mends what can be mended.

    ``place`` is a directory or a URL that all executors reach. ``dataset`` is ``NAME`` or ``NAME@TAG``, and may be left out if there
    is only one. The driver holds a line for each damaged file.
    """
    shards = Shards.of(os.fspath(place), dataset, dict(storage_options or {}))
    parts = shards.parts()

    def check(tasks: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for task in tasks:
            for number in task["id"].to_pylist():
                yield from shards.faults(parts[number]).to_batches()

    found = _tasks(session, len(parts)).mapInArrow(check, "index long, shard string, file string, damage string, reason string")
    return shards.verified(row.asDict() for row in found.collect())


def reshard(
    session: SparkSession,
    place: str | os.PathLike[str],
    dataset: str,
    *,
    shard_size: str,
    compression: str | None = None,
    message: str = "",
    storage_options: Mapping[str, Any] | None = None,
) -> str:
    """Cuts a dataset into shards of another size with the executors of Spark, without its source, and returns the id of the version.

    Every sample keeps its number: the version is the one of ``shardctl reshard`` with the same size (``"4MiB"``) and ``compression``
    (by default that of the dataset). Nothing is shuffled: a task reads the shards that have the samples of its new ones, and holds two
    at a time. Shards that stay as they are are neither read nor written.

    The commit is the last step and a single one; before it, nothing is changed.

    :raises FileNotFoundError: when there is no such dataset.
    :raises RuntimeError: when the dataset has another version since this began.
    :raises pyspark.errors.PythonException: when a shard is missing or damaged.
    """
    work = Reshard.of(os.fspath(place), dataset, shard_size, compression, dict(storage_options or {}))

    def write(parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for part in parts:
            tasks = part["id"].to_pylist()
            yield pa.RecordBatch.from_pydict({"task": tasks, "entries": [work.write(task) for task in tasks]})

    written = _tasks(session, work.tasks).mapInArrow(write, "task long, entries string")
    return work.commit(((row.task, row.entries) for row in written.collect()), message)


def _tasks(session: SparkSession, count: int) -> DataFrame:
    """The numbers of tasks, each in a partition of its own, up to ten thousand of these."""
    return session.range(0, count, 1, max(1, min(count, 10_000)))


class ShardSource(DataSource):
    """A version of a dataset as a source of Spark, in the order of its shards: ``spark.read.format("shardd")``.

    Spark finds it where this package is installed. The path is a directory or a URL that all executors reach. A task reads whole
    shards and verifies them. Options are those of ``storage_options`` of :class:`~shardd.StreamingDataset`, and:

    - ``dataset``: ``NAME`` or ``NAME@TAG``; may be left out if there is only one.
    - ``columns``: the names of those to read, with commas between. A schema given by ``spark.read.schema`` selects columns, too.
      Spark does not pass on to a source in Python which columns a query needs.
    - ``pushdown``: with ``true``, tasks drop rows by the filters of a query, and do not read shards whose smallest and largest values in
      the manifest exclude them. Spark 4.1 or newer, with ``spark.sql.python.filterPushdown.enabled``.

    Types that Spark lacks become wider ones: unsigned integers the next signed ones, 16-bit floats 32-bit ones, lists of a fixed
    length lists.
    """

    @classmethod
    def name(cls) -> str:
        return "shardd"

    def schema(self) -> spark.StructType:
        shards, names, _ = self._given()
        columns = [shards.schema.field(name) for name in names]
        return spark.StructType([spark.StructField(column.name, _type(column)[0], column.nullable) for column in columns])

    def reader(self, schema: spark.StructType) -> DataSourceReader:
        shards, _, is_pushed = self._given()
        known = shards.schema
        for field in schema:
            if field.name not in known.names:
                raise ValueError(f"{shards.name} has no column {field.name!r}; it has {', '.join(known.names)}")
            found, asked = _type(known.field(field.name))[0].simpleString(), field.dataType.simpleString()
            if found != asked:
                raise ValueError(f"column {field.name!r} of {shards.name} is {found}, not {asked}: read it so, and cast it afterwards")
        return (_FilteringReader if is_pushed else _Reader)(shards, schema.names)

    def writer(self, schema: spark.StructType, overwrite: bool) -> DataSourceWriter:
        raise ValueError(
            'rows come to shards by a shuffle, which Spark gives no writer in Python: call shardd.spark.ingest(df, "STORE", '
            'name="NAME") instead of df.write.format("shardd")'
        )

    def _given(self) -> tuple[Shards, list[str], bool]:
        """The shards, the columns to read, and whether filters are pushed down."""
        # Spark forgets the case of letters in the names of options, and has strings only.
        options: dict[str, Any] = {key.lower(): value for key, value in self.options.items()}
        place, dataset, columns = options.pop("path", None), options.pop("dataset", None), options.pop("columns", None)
        is_pushed = options.pop("pushdown", "false").lower() == "true"
        if place is None:
            raise ValueError('give the store to read: spark.read.format("shardd").load("STORE")')
        if "anonymous" in options:
            options["anonymous"] = options["anonymous"].lower() == "true"
        shards = Shards.of(place, dataset, options)
        known = shards.schema.names
        names = known if columns is None else [column.strip() for column in columns.split(",")]
        if missing := [name for name in names if name not in known]:
            raise ValueError(f"{shards.name} has no column {missing[0]!r}; it has {', '.join(known)}")
        return shards, names, is_pushed


class _Reader(DataSourceReader):
    def __init__(self, shards: Shards, columns: list[str]) -> None:
        self._shards, self._columns = shards, columns
        # What is true of all rows that Spark wants, and what is true of them alone.
        self._bounds: pc.Expression | None = None
        self._filter: pc.Expression | None = None

    def partitions(self) -> list[InputPartition]:
        numbers = None if self._bounds is None else self._shards.among(self._bounds)
        # Spark asks for something to be read in any case.
        return [InputPartition(part) for part in self._shards.parts(numbers) or [()]]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for table in self._shards.tables(partition.value):
            rows = (table if self._filter is None else table.filter(self._filter)).select(self._columns)
            columns = [_convert(rows.column(field.name), field) for field in rows.schema]
            fields = [field.with_type(_type(field)[1]).remove_metadata() for field in rows.schema]
            yield from pa.Table.from_arrays(columns, schema=pa.schema(fields)).to_batches()


class _FilteringReader(_Reader):
    """Spark refuses a reader with this method unless it pushes filters down."""

    def pushFilters(self, filters: list[Any]) -> Iterator[Any]:  # noqa: N802
        for asked in filters:
            found = predicate(asked, self._shards.schema)
            if found is None:
                yield asked
                continue
            made, is_same = found
            self._bounds = made if self._bounds is None else self._bounds & made
            if is_same:
                self._filter = made if self._filter is None else self._filter & made
            else:
                yield asked


def _convert(column: pa.ChunkedArray, field: pa.Field) -> pa.ChunkedArray:
    if isinstance(column.type, pa.BaseExtensionType):
        column = pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
    try:
        return column.cast(_type(field)[1])
    except pa.ArrowInvalid as error:
        raise ValueError(f"column {field.name!r} has values that Spark cannot hold: {error}") from error


_NUMBERS = {
    pa.bool_(): (spark.BooleanType(), pa.bool_()),
    pa.int8(): (spark.ByteType(), pa.int8()),
    pa.uint8(): (spark.ShortType(), pa.int16()),
    pa.int16(): (spark.ShortType(), pa.int16()),
    pa.uint16(): (spark.IntegerType(), pa.int32()),
    pa.int32(): (spark.IntegerType(), pa.int32()),
    pa.uint32(): (spark.LongType(), pa.int64()),
    pa.int64(): (spark.LongType(), pa.int64()),
    pa.uint64(): (spark.DecimalType(20, 0), pa.decimal128(20, 0)),
    pa.float16(): (spark.FloatType(), pa.float32()),
    pa.float32(): (spark.FloatType(), pa.float32()),
    pa.float64(): (spark.DoubleType(), pa.float64()),
}


def _type(field: pa.Field) -> tuple[spark.DataType, pa.DataType]:
    """The type of Spark for a column, and the Arrow type in which Spark takes its values."""
    found, types = field.type, pa.types
    if isinstance(found, pa.BaseExtensionType):
        return _type(field.with_type(found.storage_type))
    if found in _NUMBERS:
        return _NUMBERS[found]
    if types.is_string(found) or types.is_large_string(found):
        return spark.StringType(), pa.string()
    if types.is_binary(found) or types.is_large_binary(found) or types.is_fixed_size_binary(found):
        return spark.BinaryType(), pa.binary()
    if types.is_decimal(found) and found.precision <= 38:
        return spark.DecimalType(found.precision, found.scale), pa.decimal128(found.precision, found.scale)
    if types.is_date(found):
        return spark.DateType(), pa.date32()
    if types.is_timestamp(found):
        return (spark.TimestampNTZType(), pa.timestamp("us")) if found.tz is None else (spark.TimestampType(), pa.timestamp("us", "UTC"))
    if types.is_duration(found):
        return spark.DayTimeIntervalType(), pa.duration("us")
    if types.is_list(found) or types.is_large_list(found) or types.is_fixed_size_list(found):
        item, values = _type(found.value_field)
        nullable = found.value_field.nullable
        return spark.ArrayType(item, nullable), pa.list_(pa.field("element", values, nullable))
    if types.is_map(found):
        (key, keys), (item, values) = _type(found.key_field), _type(found.item_field)
        nullable = found.item_field.nullable
        return spark.MapType(key, item, nullable), pa.map_(pa.field("key", keys, False), pa.field("value", values, nullable))
    if types.is_struct(found):
        members = [(member, *_type(member)) for member in found]
        return (
            spark.StructType([spark.StructField(member.name, item, member.nullable) for member, item, _ in members]),
            pa.struct([pa.field(member.name, values, member.nullable) for member, _, values in members]),
        )
    raise ValueError(f"column {field.name!r} has the type {found}, which Spark does not have")


def _columns(df: DataFrame) -> pa.Schema:
    """The Arrow types of its columns."""
    columns = df.limit(0).toArrow().schema.remove_metadata()
    # Of times that are known everywhere, Spark names the zone of the session.
    return pa.schema([column.with_type(_in_utc(column.type)) for column in columns])


def _in_utc(found: pa.DataType) -> pa.DataType:
    convert = lambda field: field.with_type(_in_utc(field.type))  # noqa: E731
    if pa.types.is_timestamp(found) and found.tz is not None:
        return pa.timestamp(found.unit, "UTC")
    if pa.types.is_list(found):
        return pa.list_(convert(found.value_field))
    if pa.types.is_map(found):
        return pa.map_(convert(found.key_field), convert(found.item_field))
    if pa.types.is_struct(found):
        return pa.struct([convert(field) for field in found])
    return found


# A sum of digests has 128 bits, and Spark adds integers of 64: so it adds the words of each sum by themselves.
_WORDS = ["word0", "word1", "word2", "word3"]


def _amount(df: DataFrame, job: Job) -> Amount:
    """How much its rows are."""

    def measure(parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for part in parts:
            rows, size, digests = job.measure(pa.Table.from_batches([part]))
            words = [digests >> 32 * at & 0xFFFF_FFFF for at in range(4)]
            yield pa.RecordBatch.from_arrays([pa.array([value], pa.int64()) for value in (rows, size, *words)], names=names)

    names = ["rows", "bytes", *_WORDS]
    counted = df.mapInArrow(measure, ", ".join(f"{name} long" for name in names)).groupBy().sum(*names).collect()[0]
    rows, size, *words = (value or 0 for value in counted)
    return total([(rows, size, sum(word << 32 * at for at, word in enumerate(words)))])
