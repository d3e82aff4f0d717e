"""Versions that executors of Spark append, reshard, verify and read: as `shardctl` does, and as DuckDB counts."""

import importlib.util
import json
import shutil
import sys
from pathlib import Path

import engine_rows
import engine_versions
import pyarrow
import pyarrow.compute
import pyarrow.parquet
import pytest
from helpers import ingest, run

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("pyspark") is None, reason="there is no PySpark"),
    pytest.mark.skipif(shutil.which("java") is None, reason="there is no Java, which Spark runs on"),
]


def test_what_spark_appends_reshards_verifies_and_filters_is_what_shardctl_and_duckdb_find(tmp_path):
    expected = engine_versions.prepare(tmp_path)
    pyarrow.parquet.write_table(engine_rows.typed(), tmp_path / "typed.parquet")
    ingest(tmp_path / "typed", "typed", tmp_path / "typed.parquet")
    numbers = pyarrow.table(
        {
            "x": [1.0, float("nan"), 3.0, None, float("inf"), -0.0],
            "whole": [1, 2, None, 3, 1, 2],
            "unsigned": pyarrow.array([0, 250, 251, 255, None, 1], pyarrow.uint8()),
        }
    )
    pyarrow.parquet.write_table(numbers, tmp_path / "numbers.parquet")
    ingest(tmp_path / "numbers", "numbers", tmp_path / "numbers.parquet", "--mix", "hash")
    script = Path(__file__).with_name("spark_versions.py")
    env = {"OMP_NUM_THREADS": "1", "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    run([sys.executable, str(script), str(tmp_path)], timeout=900, env=env)
    made = json.loads((tmp_path / "made.json").read_text())
    engine_versions.assert_made(tmp_path, made, expected)
    assert all(pushed == not_pushed for pushed, not_pushed in made["both"].values()), made["both"]
    assert made["both"]["x > 2"] == [3, 3]
    total = pyarrow.compute.sum(engine_rows.table()["half"]).as_py()
    assert made["columns"] == [["text", "id"], ["half", "id"], total]
    assert made["wide"] == [engine_versions.version(tmp_path / "numbers", "numbers"), 12]
    named, typed = made["unfit"]
    assert "has no column 'colour'" in named and "is bigint, not int" in typed
