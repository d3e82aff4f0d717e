"""One ingest by Ray or Spark, or the files for it; see `run`. Prints a line of JSON at last."""

import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet

LAYOUT = {"seed": 7, "shard_size": "8MiB"}
# Rows that are made at a time.
BLOCK = 2048


def rows(block: int, count: int) -> pa.Table:
    """The rows of a block: a number, a text and bytes that do not compress, about 1 KiB in all. A function of its number."""
    numbers = np.arange(block * BLOCK, block * BLOCK + count)
    noise = np.random.Generator(np.random.Philox(block)).bytes(count * 900)
    blobs = pa.FixedSizeBinaryArray.from_buffers(pa.binary(900), count, [None, pa.py_buffer(noise)])
    texts = [f"the row of the number {number} has a text of about a hundred letters, as captions have: {number}" for number in numbers]
    return pa.table({"id": numbers, "text": texts, "blob": blobs.cast(pa.binary())})


def blocks(count: int) -> list[tuple[int, int]]:
    return [(block, min(BLOCK, count - block * BLOCK)) for block in range(-(-count // BLOCK))]


def write_files(how: dict) -> None:
    every = blocks(how["rows"])
    for part in range(8):
        path = Path(how["files"]) / f"part-{part}.parquet"
        with pyarrow.parquet.ParquetWriter(path, rows(0, 1).schema, compression="none") as writer:
            for block, count in every[part::8]:
                writer.write_table(rows(block, count))


def by_ray(how: dict) -> dict:
    import ray

    import shardd.ray

    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as temporary:
        size = {"object_store_memory": 256 << 20} if "files" not in how else {}
        ray.init(num_cpus=how["workers"], include_dashboard=False, _temp_dir=temporary, log_to_driver=False, **size)
        ray.data.DataContext.get_current().enable_progress_bars = False
        if "files" in how:
            dataset = ray.data.read_parquet(how["files"])
        else:
            every = blocks(how["rows"])
            dataset = ray.data.range(len(every)).map_batches(
                lambda part: pa.concat_tables(rows(*every[block]) for block in part["id"].to_pylist()), batch_size=4, batch_format="pyarrow"
            )
        with job(how, shardd.ray):
            started = time.monotonic()
            version = ray_alone(dataset, how) if how.get("is_alone") else shardd.ray.ingest(dataset, how["out"], name="rows", **LAYOUT)
            took = time.monotonic() - started
        ray.shutdown()
    return {"seconds": took, "version": version}


def ray_alone(dataset, how: dict) -> str:
    """The work that no ingest by Ray can leave out: the rows are counted, then shuffled into as many groups, and written as Parquet."""
    groups = how["groups"]

    def keyed(part: pa.Table) -> pa.Table:
        return part.append_column("group", pa.array(part["id"].to_numpy() * 2654435761 % groups))

    arrow = {"batch_format": "pyarrow", "batch_size": None, "zero_copy_batch": True}
    dataset.map_batches(lambda part: pa.table({"rows": [part.num_rows]}), **arrow).sum("rows")
    shuffled = dataset.map_batches(keyed, **arrow).groupby("group", num_partitions=groups)
    shuffled.map_groups(lambda rows: rows, batch_format="pyarrow").write_parquet(how["out"], compression="none")
    return ""


def by_spark(how: dict) -> dict:
    from pyspark.sql import SparkSession

    import shardd.spark

    with tempfile.TemporaryDirectory(prefix="spark-") as temporary:
        options = {
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.memory": "1g",
            "spark.local.dir": temporary,
            "spark.sql.warehouse.dir": temporary,
            "spark.ui.enabled": "false",
        }
        spark = SparkSession.builder.master(f"local[{how['workers']},4]").config(map=options).getOrCreate()
        spark.sparkContext.setLogLevel("OFF")
        if "files" in how:
            df = spark.read.parquet(how["files"])
        else:
            every = blocks(how["rows"])

            def make(parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
                for part in parts:
                    for block in part["id"].to_pylist():
                        yield from rows(*every[block]).to_batches()

            df = spark.range(0, len(every), 1, max(2, len(every) // 64)).mapInArrow(make, "id long, text string, blob binary")
        with job(how, shardd.spark):
            started = time.monotonic()
            version = spark_alone(df, how) if how.get("is_alone") else shardd.spark.ingest(df, how["out"], name="rows", **LAYOUT)
            took = time.monotonic() - started
        spark.stop()
    return {"seconds": took, "version": version}


def spark_alone(df, how: dict) -> str:
    """As `ray_alone`: Spark passes the rows to Python twice, too, since it has no other way to call shardd."""
    from pyspark.sql import functions

    def count(parts: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for part in parts:
            yield pa.RecordBatch.from_pydict({"rows": [part.num_rows]})

    df.mapInArrow(count, "rows long").groupBy().sum("rows").collect()
    keyed = df.withColumn("group", functions.pmod(df.id * 2654435761, functions.lit(how["groups"])))
    shuffled = keyed.groupBy("group").applyInArrow(lambda rows: rows, "id long, text string, blob binary, group long")
    shuffled.write.option("compression", "none").parquet(how["out"])
    return ""


@contextlib.contextmanager
def job(how: dict, module):
    """In it, one worker is killed if one shall be."""
    with tempfile.TemporaryDirectory() as folder:
        if how.get("is_killed"):
            from killing import killing

            module.Job = killing(Path(folder), "write-late")
        yield
        if how.get("is_killed") and not os.listdir(folder):
            raise SystemExit("no worker was killed")


if __name__ == "__main__":
    how = json.loads(sys.argv[1])
    found = {"files": write_files, "ray": by_ray, "spark": by_spark}[how["engine"]](how)
    print(json.dumps(found or {}))
