"""Datasets of Ray Data: ingest them with the workers of a Ray cluster, append them, read them back, reshard and verify them.

Ray schedules, retries and spills; shardd decides the shard of each row, writes shards, and commits. Needs ``ray[data]``
(``pip install shardd[ray]``).
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import ray.data
from ray.data.block import BlockMetadata
from ray.data.datasource import Datasource, ReadTask

from ._reshard import Reshard
from ._shards import Shards, Verified
from ._tables import SHARD, Amount, Job, total

__all__ = ["Verified", "append", "ingest", "read", "reshard", "verify"]

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

    Ray reads ``dataset`` twice: to measure the rows, and to bring the rows of each shard together in a shuffle. If it gives other
    rows the second time, as samples drawn at random do, this raises and commits nothing: pass ``dataset.materialize()``. A task
    holds one shard. The calling process holds a line for each shard.

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
    return _make(dataset, job, name, message)


def append(
    dataset: ray.data.Dataset,
    out: str | os.PathLike[str],
    *,
    name: str,
    shard_size: str | None = None,
    message: str = "",
    storage_options: Mapping[str, Any] | None = None,
) -> str:
    """Appends the rows of a Ray dataset to dataset ``name`` in the store ``out``, and returns the id of the version.

    The shards of the dataset stay, and the new ones follow them: the version is the one of ``shardctl append`` with the same rows.
    The samples of the dataset have to lie by a hash of their rows, as with :func:`ingest` and ``shardctl ingest --mix hash``. New
    shards are of the size of those that are there, unless ``shard_size`` is given.

    Rows are read, written and committed as by :func:`ingest`. Rows that are there already are appended once more.

    :raises FileNotFoundError: when there is no such dataset.
    :raises ValueError: when the dataset has other columns, or another order of its samples; and those of :func:`ingest`.
    :raises RuntimeError: when the store does not take a shard, or the dataset has another version since this began. Nothing is committed
        then; run it again.
    """
    job = Job.appending(_columns(dataset), os.fspath(out), name, shard_size, dict(storage_options or {}))
    return _make(dataset, job, name, message)


def _make(dataset: ray.data.Dataset, job: Job, name: str, message: str) -> str:
    """The version that the job makes of the rows."""
    _ = job.table  # What is wrong with the columns is an error here.
    amount = _amount(dataset, job)
    job = job.measured(amount)
    dealt = dataset.map_batches(job.deal, batch_format="pyarrow", batch_size=None, zero_copy_batch=True)
    grouped = dealt.groupby(SHARD, num_partitions=min(job.shards, _PARTITIONS))
    written = grouped.map_groups(job.write, batch_format="pyarrow")
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
    filter: pc.Expression | None = None,
    storage_options: Mapping[str, Any] | None = None,
    concurrency: int | None = None,
) -> ray.data.Dataset:
    """A version of a dataset as a Ray dataset, in the order of its shards; ``columns`` are those to read.

    ``place`` is a directory or a URL that all workers reach. ``dataset`` is ``NAME`` or ``NAME@TAG``, and may be left out if there
    is only one. A task reads whole shards and verifies them. ``concurrency`` limits the tasks at a time.

    ``filter`` is a predicate over any columns, such as ``pyarrow.compute.field("label") == 7``: tasks drop the rows for which it is
    not true. Shards are not read where the smallest and largest values of their columns, which the manifest has of numbers, truth
    values, dates and times, exclude it.

    For training, prefer :class:`~shardd.StreamingDataset`: it has the exact order, resumes, and reads no more than each rank
    needs. This is for statistics, joins and exports.

    :raises KeyError: for a column that is not there.
    :raises ValueError: for a filter that does not fit the columns.
    """
    shards = Shards.of(os.fspath(place), dataset, dict(storage_options or {}))
    return ray.data.read_datasource(_Source(shards, columns, filter), concurrency=concurrency)


def verify(
    place: str | os.PathLike[str],
    dataset: str | None = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
    concurrency: int | None = None,
) -> Verified:
    """Reads all shards of a version with the workers of Ray, and checks them row by row, and their sidecars, as ``shardctl verify``
    does. Returns the faults; ``shardctl verify --repair`` mends what can be mended.

    Arguments are those of :func:`read`. The calling process holds a line for each damaged file.
    """
    shards = Shards.of(os.fspath(place), dataset, dict(storage_options or {}))
    parts = shards.parts()

    def check(part: pa.Table) -> pa.Table:
        return pa.concat_tables(shards.faults(parts[number]) for number in part["id"].to_pylist())

    if not parts:
        return shards.verified([])
    found = _tasks(len(parts)).map_batches(check, batch_format="pyarrow", batch_size=1, concurrency=concurrency)
    return shards.verified(found.iter_rows())


def reshard(
    place: str | os.PathLike[str],
    dataset: str,
    *,
    shard_size: str,
    compression: str | None = None,
    message: str = "",
    storage_options: Mapping[str, Any] | None = None,
    concurrency: int | None = None,
) -> str:
    """Cuts a dataset into shards of another size with the workers of Ray, without its source, and returns the id of the version.

    Every sample keeps its number: the version is the one of ``shardctl reshard`` with the same size (``"4MiB"``) and ``compression``
    (by default that of the dataset). Nothing is shuffled: a task reads the shards that have the samples of its new ones, and holds two
    at a time. Shards that stay as they are are neither read nor written. ``concurrency`` limits the tasks at a time.

    The commit is the last step and a single one; before it, nothing is changed.

    :raises FileNotFoundError: when there is no such dataset.
    :raises RuntimeError: when a shard is missing or damaged, or the dataset has another version since this began.
    """
    work = Reshard.of(os.fspath(place), dataset, shard_size, compression, dict(storage_options or {}))

    def write(part: pa.Table) -> pa.Table:
        tasks = part["id"].to_pylist()
        return pa.table({"task": tasks, "entries": [work.write(task) for task in tasks]})

    written = _tasks(work.tasks).map_batches(write, batch_format="pyarrow", batch_size=1, concurrency=concurrency)
    return work.commit(((row["task"], row["entries"]) for row in written.iter_rows()), message)


def _tasks(count: int) -> ray.data.Dataset:
    """The numbers of tasks, each in a block of its own."""
    return ray.data.range(count, override_num_blocks=count)


class _Source(Datasource):
    """The shards of a version."""

    def __init__(self, shards: Shards, columns: Sequence[str] | None, predicate: pc.Expression | None) -> None:
        super().__init__()
        known = shards.schema.names
        self._shards, self._columns, self._predicate = shards, known if columns is None else list(columns), predicate
        if missing := [column for column in self._columns if column not in known]:
            raise KeyError(f"{shards.name} has no column {missing[0]!r}; it has {', '.join(known)}")
        self._numbers = list(range(len(shards.sizes)))
        if predicate is not None:
            try:
                shards.schema.empty_table().filter(predicate)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
                raise ValueError(f"the filter does not fit {shards.name}, which has {', '.join(known)}: {error}") from error
            self._numbers = shards.among(predicate)

    def get_name(self) -> str:
        return f"shardd {self._shards.name}"

    def estimate_inmemory_data_size(self) -> int | None:
        return sum(self._shards.sizes[number][1] for number in self._numbers)

    def get_read_tasks(self, parallelism: int, per_task_row_limit: int | None = None, data_context: Any = None) -> list[ReadTask]:
        # Without a shard, one task says which columns there are.
        count = len(self._numbers)
        parts = max(1, min(parallelism, count))
        ranges = [self._numbers[count * part // parts : count * (part + 1) // parts] for part in range(parts)]
        return [self._task(numbers, per_task_row_limit) for numbers in ranges]

    def _task(self, numbers: list[int], limit: int | None) -> ReadTask:
        shards, columns, predicate = self._shards, self._columns, self._predicate

        def tables() -> Iterator[pa.Table]:
            for table in shards.tables(numbers) if numbers else [shards.schema.empty_table()]:
                yield (table if predicate is None else table.filter(predicate)).select(columns)

        sizes = [shards.sizes[number] for number in numbers]
        rows, size = sum(rows for rows, _ in sizes), sum(size for _, size in sizes)
        known = rows if predicate is None or not numbers else None
        metadata = BlockMetadata(num_rows=known, size_bytes=size, input_files=None, exec_stats=None)
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


def _amount(dataset: ray.data.Dataset, job: Job) -> Amount:
    """How much its rows are."""

    def measure(part: pa.Table) -> pa.Table:
        rows, size, digests = job.measure(part)
        return pa.table({"rows": [rows], "bytes": [size], "digests": [str(digests)]})

    counted = dataset.map_batches(measure, batch_format="pyarrow", batch_size=None, zero_copy_batch=True)
    return total((part["rows"], part["bytes"], int(part["digests"])) for part in counted.iter_rows())
