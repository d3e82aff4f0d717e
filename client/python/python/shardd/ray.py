"""Datasets of Ray Data: ingest them with the workers of a Ray cluster, and read them back.

Ray schedules, retries and spills; shardd decides the shard of each row, writes shards, and commits. Needs ``ray[data]``
(``pip install shardd[ray]``).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import ray.data
from ray.data.block import BlockMetadata
from ray.data.datasource import Datasource, ReadTask

from ._shards import Shards
from ._tables import SHARD, Job

__all__ = ["ingest", "read"]

# A worker of the shuffle has some of these, so that many are none.
_PARTITIONS = 200


def ingest(
    dataset: ray.data.Dataset,
    out: str | os.PathLike[str],
    *,
    name: str,
    seed: int = 0,
    shard_size: str | None = None,
    compression: str | None = None,
    message: str = "",
    storage_options: Mapping[str, Any] | None = None,
) -> str:
    """Makes a version of dataset ``name`` in the store ``out`` of a Ray dataset, and returns its id.

    The samples lie in the order of a keyed hash of the rows (``seed``), so the version depends on the rows alone: it is the one
    of ``shardctl ingest --mix hash`` with the same rows, seed, size and compression, for any number of workers, blocks and
    retries. ``shard_size`` (``"16MiB"``; by default a 64th of the data, between 1 and 64 MiB) and ``compression`` are those of
    ``shardctl ingest``.

    Ray reads ``dataset`` twice: to count rows and bytes, and to bring the rows of each shard together in a shuffle. If it gives
    another number of rows or bytes the second time, as samples drawn at random do, this raises and commits nothing: pass
    ``dataset.materialize()``. A task holds one shard. The calling process holds a line for each shard.

    A worker writes a shard under the digest of its bytes, so one that is killed, or runs twice, leaves nothing half-visible.
    The commit is the last step and a single one. All workers must reach ``out``: a bucket, or a directory that they share.
    ``storage_options`` are those of :class:`~shardd.StreamingDataset`, and go to the workers.

    :raises ValueError: for columns that shards cannot hold, and rows that differ between the two readings.
    :raises RuntimeError: when the store does not take a shard, or another commit was faster.
    """
    job = Job(
        columns=_columns(dataset),
        out=os.fspath(out),
        storage_options=dict(storage_options or {}),
        seed=seed,
        shard_size=shard_size,
        compression=compression,
    )
    _ = job.table  # What is wrong with the columns is an error here.
    amount = _amount(dataset, job)
    if amount[0] == 0:
        raise ValueError("there are no rows")
    job = replace(job, shards=job.table.shards(*amount))

    def write(rows: pa.Table) -> pa.Table:
        written = job.write(rows.drop_columns([SHARD]))
        shards = [] if written is None else [written]
        return pa.table({"shard": [number for number, _ in shards], "entry": [entry for _, entry in shards]})

    dealt = dataset.map_batches(job.deal, batch_format="pyarrow", batch_size=None, zero_copy_batch=True)
    grouped = dealt.groupby(SHARD, num_partitions=min(job.shards, _PARTITIONS))
    written = grouped.map_groups(write, batch_format="pyarrow")
    shards = [(row["shard"], row["entry"]) for row in written.iter_rows()]
    try:
        return job.commit(name, amount, shards, message)
    except ValueError as error:
        error.add_note("If the dataset draws rows at random, pass dataset.materialize().")
        raise


def read(
    place: str | os.PathLike[str],
    dataset: str | None = None,
    *,
    columns: Sequence[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    concurrency: int | None = None,
) -> ray.data.Dataset:
    """A version of a dataset as a Ray dataset, in the order of its shards; ``columns`` are those to read.

    ``place`` is a directory or a URL that all workers reach. ``dataset`` is ``NAME`` or ``NAME@TAG``, and may be left out if there
    is only one. A task reads whole shards and verifies them. ``concurrency`` limits the tasks at a time.

    For training, prefer :class:`~shardd.StreamingDataset`: it has the exact order, resumes, and reads no more than each rank
    needs. This is for statistics, joins and exports.

    :raises KeyError: for a column that is not there.
    """
    shards = Shards.of(os.fspath(place), dataset, dict(storage_options or {}))
    return ray.data.read_datasource(_Source(shards, columns), concurrency=concurrency)


class _Source(Datasource):
    """The shards of a version."""

    def __init__(self, shards: Shards, columns: Sequence[str] | None) -> None:
        super().__init__()
        known = shards.schema.names
        self._shards, self._columns = shards, known if columns is None else list(columns)
        if missing := [column for column in self._columns if column not in known]:
            raise KeyError(f"{shards.name} has no column {missing[0]!r}; it has {', '.join(known)}")

    def get_name(self) -> str:
        return f"shardd {self._shards.name}"

    def estimate_inmemory_data_size(self) -> int | None:
        return sum(size for _, size in self._shards.sizes)

    def get_read_tasks(self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None) -> list[ReadTask]:
        count = len(self._shards.sizes)
        parts = max(1, min(parallelism, count))
        ranges = [range(count * part // parts, count * (part + 1) // parts) for part in range(parts)]
        return [self._task(numbers, per_task_row_limit) for numbers in ranges if numbers]

    def _task(self, numbers: range, limit: int | None) -> ReadTask:
        shards, columns = self._shards, self._columns

        def tables() -> Iterator[pa.Table]:
            return (table.select(columns) for table in shards.tables(numbers))

        sizes = [shards.sizes[number] for number in numbers]
        rows, size = sum(rows for rows, _ in sizes), sum(size for _, size in sizes)
        metadata = BlockMetadata(num_rows=rows, size_bytes=size, input_files=None, exec_stats=None)
        return ReadTask(tables, metadata, per_task_row_limit=limit)


def _columns(dataset: ray.data.Dataset) -> pa.Schema:
    """The Arrow types of its columns."""
    schema = dataset.schema()
    if schema is None:
        raise ValueError("there are no rows")
    columns = schema.base_schema
    if not isinstance(columns, pa.Schema):
        # Of pandas, types are those of the first rows.
        columns = dataset.take_batch(1000, batch_format="pyarrow").schema
    columns = columns.remove_metadata()
    for column in columns:
        if isinstance(column.type, pa.BaseExtensionType) and not isinstance(column.type, pa.FixedShapeTensorType):
            raise ValueError(
                f"column {column.name!r} has the type {column.type}, which only Ray reads: convert it in map_batches, such as with "
                "pyarrow.FixedShapeTensorArray.from_numpy_ndarray for tensors of one shape"
            )
    return columns


def _amount(dataset: ray.data.Dataset, job: Job) -> tuple[int, int]:
    """Its rows and their canonical bytes."""

    def measure(part: pa.Table) -> pa.Table:
        rows, size = job.measure(part)
        return pa.table({"rows": [rows], "bytes": [size]})

    counted = dataset.map_batches(measure, batch_format="pyarrow", batch_size=None, zero_copy_batch=True)
    rows, size = 0, 0
    for part in counted.iter_rows():
        rows, size = rows + part["rows"], size + part["bytes"]
    return rows, size
