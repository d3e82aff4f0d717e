"""Starts Spark on this machine and makes, verifies and reads versions with it; see `test_spark_versions.py`."""

import json
import random
import sys
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

import shardd.spark
from engine_versions import FILTERS, RESHARD, append_first, refusal
from helpers import WHOLE
from killing import killing
from shardd._reshard import Reshard
from shardd._tables import Job
from spark_ingest import session

# Of the datasets `typed` and `numbers`: how many rows there are must not depend on who drops the others.
TYPED = [
    "flag",
    "not flag",
    "small < 0",
    "day > date'2000-01-01'",
    "moment > timestamp'2001-01-01'",
    "local is not null",
    "double > 1",
    "number <=> null",
]
NUMBERS = [
    "x > 2",
    "x = double('nan')",
    "x <> 3",
    "x in (1.0, 3.0)",
    "not (x < 3)",
    "x < 0",
    "whole in (1, null)",
    "whole not in (1)",
    "unsigned > 250",
    "unsigned < 1000",
]


def main(spark: SparkSession, folder: Path) -> None:
    read = lambda part: spark.read.parquet(str(folder / "files" / f"part-{part}.parquet"))  # noqa: E731
    if WHOLE:
        shardd.spark.Job, shardd.spark.Reshard = killing(folder, "write-late"), killing(folder, "write-early", of=Reshard)
    made: dict = {"append": shardd.spark.append(read(3), folder / "there", name="rows")}
    made["reshard"] = shardd.spark.reshard(spark, folder / "there", "rows", shard_size=RESHARD)
    if WHOLE:
        assert (folder / "write-late").exists() and (folder / "write-early").exists(), "no worker was killed"
        shardd.spark.Job, shardd.spark.Reshard = Job, Reshard

    def rows(place: str, is_pushed: bool = True, **options: str) -> DataFrame:
        return spark.read.format("shardd").options(pushdown=is_pushed, **options).load(str(folder / place))

    def count(place: str, where: str) -> list[int]:
        found = rows(place).where(where).selectExpr("count(*)", "coalesce(sum(id), 0)").collect()[0]
        return list(found)

    made["counts"] = {where: count("ordered", where) for where in FILTERS}
    made["gap"] = {where: count("gap", where) for where, is_pruned in FILTERS.items() if is_pruned}
    both = lambda place, where: [rows(place, is_pushed).where(where).count() for is_pushed in (True, False)]  # noqa: E731
    made["both"] = {where: both(place, where) for place, wheres in (("typed", TYPED), ("numbers", NUMBERS)) for where in wheres}
    made["columns"] = [
        rows("ordered", columns="text, id").columns,
        spark.read.format("shardd").schema("half float, id long").load(str(folder / "ordered")).columns,
        rows("ordered", columns="half").selectExpr("sum(half)").collect()[0][0],
    ]
    made["faults"] = shardd.spark.verify(spark, folder / "damaged", "rows").damaged.to_pylist()
    intact = shardd.spark.verify(spark, folder / "ordered")
    made["intact"] = [intact.samples, intact.damaged.num_rows]
    # What Spark reads as wider types goes back into those of the dataset.
    wide = rows("numbers")
    made["wide"] = [shardd.spark.append(wide, folder / "numbers", name="numbers"), rows("numbers").count()]

    with append_first(shardd.spark, folder / "raced", folder / "files" / "part-2.parquet") as first:
        raced = refusal(lambda: shardd.spark.append(read(3), folder / "raced", name="rows"))
    made["faster"] = first.version
    drawn = spark.range(50).mapInArrow(draw, "number long")
    made["refused"] = [
        raced,
        refusal(lambda: shardd.spark.append(read(3), folder / "ordered", name="rows")),
        refusal(lambda: shardd.spark.append(read(3).drop("boxes"), folder / "there", name="rows")),
        refusal(lambda: shardd.spark.append(read(3), folder / "there", name="cats")),
        refusal(lambda: shardd.spark.ingest(drawn, folder / "drawn", name="rows")),
        refusal(lambda: shardd.spark.reshard(spark, folder / "there", "rows@v1", shard_size=RESHARD)),
    ]
    made["unfit"] = [
        refusal(lambda: rows("ordered", columns="colour").count()),
        refusal(lambda: spark.read.format("shardd").schema("id int").load(str(folder / "ordered")).count()),
    ]
    (folder / "made.json").write_text(json.dumps(made))


def draw(parts):
    """Other values each time, of the same length."""
    for part in parts:
        yield pa.RecordBatch.from_pydict({"number": [random.SystemRandom().getrandbits(62) for _ in range(part.num_rows)]})


if __name__ == "__main__":
    spark = session("local[2,4]", sys.argv[1], {"spark.sql.python.filterPushdown.enabled": "true"})
    main(spark, Path(sys.argv[1]))
    spark.stop()
