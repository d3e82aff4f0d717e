"""Ingest by the executors of Spark: the version of `shardctl ingest --mix hash`, whatever happens to a process."""

import importlib.util
import json
import shutil
import sys
from pathlib import Path

import engine_rows
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
from engine_rows import FLAGS
from helpers import WHOLE, ingest, run, shardctl

import shardd

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("pyspark") is None, reason="there is no PySpark"),
    pytest.mark.skipif(shutil.which("java") is None, reason="there is no Java, which Spark runs on"),
]

# In which phase a process is killed, before or after it did its work. Each takes Spark some seconds.
KILLS = [f"{method}-{when}" for method in ("measure", "deal", "write") for when in ("early", "late")]
WORKERS = pytest.param("local[2,4]", "worker", KILLS if WHOLE else ["write-late"], id="one executor, a worker killed")
EXECUTORS = pytest.param("local-cluster[2,1,1024]", "executor", KILLS, id="two executors, one killed")


@pytest.mark.parametrize(("master", "killed", "kills"), [WORKERS, EXECUTORS] if WHOLE else [WORKERS])
def test_the_version_is_that_of_shardctl_whatever_is_killed(tmp_path, master, killed, kills):
    files = tmp_path / "rows"
    files.mkdir()
    engine_rows.write(files)
    ingest(tmp_path / "here", "rows", files, *FLAGS)
    pyarrow.parquet.write_table(engine_rows.typed(), tmp_path / "typed.parquet")
    ingest(tmp_path / "here", "typed", tmp_path / "typed.parquet", "--mix", "hash")
    half = np.arange(6, dtype=np.float16).reshape(3, 2)
    shardd.from_iter(({"id": n, "values": half[n], "half": half[n, 0], "big": np.uint64(n)} for n in range(3)), tmp_path / "wide", name="wide")
    script = Path(__file__).with_name("spark_ingest.py")
    how = {"files": str(files), "folder": str(tmp_path), "master": master, "killed": killed, "kills": kills}
    env = {"OMP_NUM_THREADS": "1", "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    run([sys.executable, str(script), json.dumps(how)], timeout=900, env=env)
    version = lambda name: shardd.StreamingDataset(str(tmp_path / "here"), dataset=name).version  # noqa: E731
    made = json.loads((tmp_path / "made.json").read_text())
    assert set(made.values()) == {version("rows")}, made
    # No file but those of the version: what a killed process had stored is a shard of it.
    shardctl("--store", tmp_path / "files", "verify", "rows")
    for case in made:
        assert engine_rows.shard_files(tmp_path / case) == engine_rows.shard_files(tmp_path / "files"), case
    if killed != "worker":
        return
    engine_rows.assert_read_by_others(tmp_path / "files")
    found = json.loads((tmp_path / "found.json").read_text())
    duckdb = pytest.importorskip("duckdb")
    expected = engine_rows.table()
    assert found["sums"] == list(duckdb.sql(engine_rows.QUERY.format("expected")).fetchall()[0])
    assert found["filtered"] == sum(number < 100 for number in expected["id"].to_pylist())
    # Spark's names of the items of lists in Parquet are its own.
    back = lambda folder, rows: pyarrow.parquet.read_table(tmp_path / folder).cast(rows.schema)  # noqa: E731
    engine_rows.assert_same_rows(back("back", expected), expected)
    assert found["typed"] == version("typed")
    typed = engine_rows.typed()
    engine_rows.assert_same_rows(back("typed-back", typed), typed)
    types = "struct<id:bigint,values:array<float>,half:float,big:decimal(20,0)>"
    assert found["wide"] == [types, [0, [0.0, 1.0], 0.0], [1, [2.0, 3.0], 2.0], [2, [4.0, 5.0], 4.0]]
    drawn, written, no_path, unknown, none = found["refused"]
    assert "changed while it was read" in drawn and not (tmp_path / "drawn" / "meta" / "refs").exists()
    assert "call shardd.spark.ingest(" in written and not (tmp_path / "written").exists()
    assert "give the store to read" in no_path
    assert "cats" in unknown and "there are no rows" in none
