"""DataFrames of Spark: ingest them with the executors of a Spark application, and read them back.

Spark schedules, retries and spills; shardd decides the shard of each row, writes shards, and commits. Needs PySpark 4
(``pip install shardd[spark]``).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import types as spark
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceWriter, InputPartition

from ._place import open_store
from ._shards import Shards
from ._tables import SHARD, Job

__all__ = ["ShardSource", "ingest"]


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

    Spark computes ``df`` twice: to count rows and bytes, and to bring the rows of each shard together in a shuffle. If it gives
    another number of rows or bytes the second time, as rows drawn at random do, this raises and commits nothing: pass ``df.persist()`` or
    ``df.checkpoint()``. A task holds one shard at a time. The driver holds a line for each shard.

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
    _ = job.table  # What is wrong with the columns is an error here.
    amount = _amount(df, job)
    if amount[0] == 0:
        raise ValueError("there are no rows")
    job = replace(job, shards=job.table.shards(*amount))

    def deal(parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for part in parts:
            yield from job.deal(pa.Table.from_batches([part])).to_batches()

    def write(rows: pa.Table) -> pa.Table:
        written = job.write(rows.drop_columns([SHARD]))
        shards = [] if written is None else [written]
        columns = {"shard": pa.array([number for number, _ in shards], pa.int64()), "entry": [entry for _, entry in shards]}
        return pa.table(columns, schema=pa.schema({"shard": pa.int64(), "entry": pa.string()}))

    dealt = df.mapInArrow(deal, spark.StructType([*df.schema.fields, spark.StructField(SHARD, spark.IntegerType())]))
    written = dealt.groupBy(SHARD).applyInArrow(write, "shard long, entry string")
    shards = [(row.shard, row.entry) for row in written.collect()]
    try:
        return job.commit(name, amount, shards, message)
    except ValueError as error:
        error.add_note("If the DataFrame draws rows at random, pass df.persist() or df.checkpoint().")
        raise


class ShardSource(DataSource):
    """A version of a dataset as a source of Spark, in the order of its shards: ``spark.read.format("shardd")``.

    Spark finds it where this package is installed. The path is a directory or a URL that all executors reach. Options:
    ``dataset`` (``NAME`` or ``NAME@TAG``; may be left out if there is only one), and those of ``storage_options`` of
    :class:`~shardd.StreamingDataset`. A task reads whole shards and verifies them. Types that Spark lacks become wider ones:
    unsigned integers the next signed ones, 16-bit floats 32-bit ones, lists of a fixed length lists.
    """

    @classmethod
    def name(cls) -> str:
        return "shardd"

    def schema(self) -> spark.StructType:
        columns = self._shards().schema
        return spark.StructType([spark.StructField(column.name, _type(column)[0], column.nullable) for column in columns])

    def reader(self, schema: spark.StructType) -> DataSourceReader:
        return _Reader(self._shards())

    def writer(self, schema: spark.StructType, overwrite: bool) -> DataSourceWriter:
        raise ValueError(
            'rows come to shards by a shuffle, which Spark gives no writer in Python: call shardd.spark.ingest(df, "STORE", '
            'name="NAME") instead of df.write.format("shardd")'
        )

    def _shards(self) -> Shards:
        # Spark forgets the case of letters in the names of options, and has strings only.
        options: dict[str, Any] = {key.lower(): value for key, value in self.options.items()}
        place, dataset = options.pop("path", None), options.pop("dataset", None)
        if place is None:
            raise ValueError('give the store to read: spark.read.format("shardd").load("STORE")')
        if "anonymous" in options:
            options["anonymous"] = options["anonymous"].lower() == "true"
        return Shards.of(place, dataset, options)


# What a task reads at least, if there is that much: a version may have a hundred thousand shards.
_TASK_BYTES = 64 << 20


class _Reader(DataSourceReader):
    def __init__(self, shards: Shards) -> None:
        self._shards = shards

    def partitions(self) -> list[InputPartition]:
        parts, start, size = [], 0, 0
        for number, (_, more) in enumerate(self._shards.sizes, 1):
            size += more
            if size >= _TASK_BYTES or number == len(self._shards.sizes):
                parts.append(InputPartition(range(start, number)))
                start, size = number, 0
        return parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        for table in self._shards.tables(partition.value):
            columns = [_convert(table.column(field.name), field) for field in table.schema]
            fields = [field.with_type(_type(field)[1]).remove_metadata() for field in table.schema]
            yield from pa.Table.from_arrays(columns, schema=pa.schema(fields)).to_batches()


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


def _amount(df: DataFrame, job: Job) -> tuple[int, int]:
    """Its rows and their canonical bytes."""

    def measure(parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for part in parts:
            rows, size = job.measure(pa.Table.from_batches([part]))
            yield pa.RecordBatch.from_pydict({"rows": pa.array([rows], pa.int64()), "bytes": pa.array([size], pa.int64())})

    counted = df.mapInArrow(measure, "rows long, bytes long").groupBy().sum("rows", "bytes").collect()[0]
    return counted[0] or 0, counted[1] or 0
