"""Ingest by the workers of Ray: the version of `shardctl ingest --mix hash`, whatever happens to a worker."""

import json
import sys
from pathlib import Path

import engine_rows
import pyarrow.parquet
import pytest
from engine_rows import FLAGS, LAYOUT
from helpers import WHOLE, ingest, one_ray, run, shardctl

import shardd

@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("ray-files")
    engine_rows.write(folder)
    return folder


# In which phase a worker is killed, before or after it did its work; and how the rows lie in blocks. Each takes Ray ten seconds.
KILLS = [f"{method}-{when}" for method in ("measure", "deal", "write") for when in ("early", "late")]
BLOCKS = ["seven", "one", "shuffled"]
ALL = [pytest.param(2, KILLS, BLOCKS, id="two workers"), pytest.param(1, ["write-late"], [], id="one worker")]
SOME = [pytest.param(2, ["deal-early", "write-late"], ["shuffled"], id="two workers")]


@pytest.mark.parametrize(("workers", "kills", "blocks"), ALL if WHOLE else SOME)
def test_the_version_is_that_of_shardctl_for_any_blocks_workers_and_killed_ones(files, tmp_path, workers, kills, blocks):
    pytest.importorskip("ray.data")
    ingest(tmp_path / "here", "rows", files, *FLAGS)
    expected = shardd.StreamingDataset(str(tmp_path / "here")).version
    how = json.dumps({"files": str(files), "folder": str(tmp_path), "layout": LAYOUT, "kills": kills, "blocks": blocks})
    script = Path(__file__).with_name("ray_ingest.py")
    with one_ray():
        run([sys.executable, str(script), how, str(workers)], timeout=900, env={"OMP_NUM_THREADS": "1"})
    made = json.loads((tmp_path / "made.json").read_text())
    drawn, back = made.pop("drawn"), made.pop("back")
    assert set(made.values()) == {expected}, made
    assert len(made) == 1 + len(kills) + len(blocks)
    assert "changed while it was read" in drawn and not (tmp_path / "drawn" / "meta" / "refs").exists()
    # No file but those of the version: what a killed worker had stored is a shard of it.
    for case in made:
        assert engine_rows.shard_files(tmp_path / case) == engine_rows.shard_files(tmp_path / "here"), case
    shardctl("--store", tmp_path / "killed-write-late", "verify", "rows")
    numbers = engine_rows.table()["id"].to_pylist()
    assert back == {
        "count": len(numbers),
        "sum": sum(numbers),
        "columns": ["text", "id"],
        "filtered": sum(number < 100 for number in numbers),
    }
    engine_rows.assert_same_rows(pyarrow.parquet.read_table(tmp_path / "back.parquet"), engine_rows.table())
    engine_rows.assert_read_by_others(tmp_path / "files")


def test_a_column_that_is_not_there_is_named_with_those_that_are(store):
    ray = pytest.importorskip("shardd.ray")
    with pytest.raises(KeyError, match="has no column 'colour'; it has "):
        ray.read(store, columns=["colour"])
