"""Starts Spark on this machine and ingests Parquet files with it in several ways; see `test_spark_ingest.py`."""

import json
import os
import sys
from pathlib import Path

import pyspark.errors
from pyspark.sql import DataFrame, SparkSession

import shardd.spark
from engine_rows import LAYOUT
from killing import killing
from shardd._tables import Job


def executor() -> int:
    """The Java process that the calling worker belongs to."""
    process = os.getpid()
    while Path(f"/proc/{process}/comm").read_text().strip() != "java":
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    return process


def main(spark: SparkSession, how: dict) -> None:
    folder, made = Path(how["folder"]), {}
    read = lambda: spark.read.parquet(how["files"])  # noqa: E731

    def ingest(case: str, df: DataFrame, job: type[Job] = Job) -> None:
        shardd.spark.Job = job
        made[case] = shardd.spark.ingest(df, folder / case, name="rows", **LAYOUT)

    ingest("files", read())
    for kill in how["kills"]:
        process = {"worker": os.getpid, "executor": executor}[how["killed"]]
        ingest(f"killed-{kill}", read(), killing(folder, kill, process))
        assert (folder / kill).exists(), "no process was killed"
    if how["killed"] == "worker":
        ingest("seven", read().repartition(7))
        ingest("one", read().coalesce(1))
        others(spark, folder, read())
    (folder / "made.json").write_text(json.dumps(made))


def others(spark: SparkSession, folder: Path, rows: DataFrame) -> None:
    """What is read back, types, and what is refused."""
    found = {}
    back = spark.read.format("shardd").option("dataset", "rows").load(str(folder / "files"))
    back.write.parquet(str(folder / "back"))
    back.createOrReplaceTempView("rows")
    query = "select count(*), sum(id), sum(half), count(text), sum(length(blob)), sum(array_size(lists)), count(boxes.x) from rows"
    found["sums"] = list(spark.sql(query).collect()[0])
    found["filtered"] = back.where("id < 100").count()
    typed = spark.read.parquet(str(folder / "typed.parquet"))
    found["typed"] = shardd.spark.ingest(typed, folder / "typed", name="typed")
    spark.read.format("shardd").load(str(folder / "typed")).write.parquet(str(folder / "typed-back"))
    wide = spark.read.format("shardd").load(str(folder / "wide"))
    found["wide"] = [wide.schema.simpleString(), *map(list, wide.orderBy("id").select("id", "values", "half").collect())]
    # Each evaluation of this draws other rows, as Spark says of it.
    drawn = rows.mapInArrow(sample, rows.schema)
    found["refused"] = [
        refusal(lambda: shardd.spark.ingest(drawn, folder / "drawn", name="rows")),
        refusal(lambda: rows.write.format("shardd").mode("append").save(str(folder / "written"))),
        refusal(lambda: spark.read.format("shardd").load()),
        refusal(lambda: spark.read.format("shardd").option("dataset", "cats").load(str(folder / "files"))),
        refusal(lambda: shardd.spark.ingest(rows.where("id < 0"), folder / "none", name="rows")),
    ]
    (folder / "found.json").write_text(json.dumps(found))


def sample(parts):
    import random

    for part in parts:
        yield part.slice(0, random.SystemRandom().randrange(1, part.num_rows))


def refusal(action) -> str:
    try:
        action()
    except (ValueError, RuntimeError, KeyError, pyspark.errors.PySparkException) as error:
        return str(error)
    raise AssertionError("it was not refused")


def session(master: str, folder: str, more: dict[str, str]) -> SparkSession:
    """Spark on this machine."""
    options = {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "1g",
        "spark.local.dir": f"{folder}/spark",
        "spark.sql.session.timeZone": "Asia/Tokyo",
        "spark.sql.shuffle.partitions": "4",
        "spark.sql.warehouse.dir": f"{folder}/spark",
        "spark.ui.enabled": "false",
    }
    spark = SparkSession.builder.master(master).config(map=options | more).getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


if __name__ == "__main__":
    how = json.loads(sys.argv[1])
    spark = session(how["master"], how["folder"], {"spark.sql.adaptive.coalescePartitions.enabled": "false"})
    main(spark, how)
    spark.stop()
