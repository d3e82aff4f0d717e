"""Ingest by the workers of Ray: the version of `shardctl ingest --mix hash`, whatever happens to a worker."""

import json
import sys
from pathlib import Path

import pyarrow
import pyarrow.dataset
import pyarrow.parquet
import pytest
from helpers import WHOLE, ingest, one_ray, run, shardctl

import shardd

ROWS = 4000
LAYOUT = {"seed": 7, "shard_size": "16KiB"}
FLAGS = ("--mix", "hash", "--seed", "7", "--shard-size", "16KiB")


def table() -> pyarrow.Table:
    """Rows with nulls, nested lists and bytes; some are equal."""
    numbers = [number % (ROWS - 100) for number in range(ROWS)]
    some = lambda number, value: value if number % 7 else None  # noqa: E731
    return pyarrow.table(
        {
            "id": pyarrow.array(numbers, pyarrow.int64()),
            "half": pyarrow.array([some(n, n / 2) for n in numbers], pyarrow.float32()),
            "text": [some(n + 1, f"row {n}") for n in numbers],
            "blob": [some(n + 2, bytes([n % 256]) * (n % 9)) for n in numbers],
            "lists": [some(n + 3, [[n], [], [n, n + 1]][: n % 4]) for n in numbers],
            "boxes": [some(n + 4, {"x": n, "name": f"b{n % 3}"}) for n in numbers],
        }
    )


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("ray-files")
    rows = table()
    for part in range(4):
        pyarrow.parquet.write_table(rows.slice(part * ROWS // 4, ROWS // 4), folder / f"part-{part}.parquet", row_group_size=300)
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
    names = lambda store: sorted(path.name for path in (store / "store").rglob("*.arrow"))  # noqa: E731
    for case in made:
        assert names(tmp_path / case) == names(tmp_path / "here"), case
    shardctl("--store", tmp_path / "killed-write-late", "verify", "rows")
    assert back == {
        "count": ROWS,
        "sum": sum(table()["id"].to_pylist()),
        "columns": ["text", "id"],
        "filtered": sum(number < 100 for number in table()["id"].to_pylist()),
    }
    assert_same_rows(pyarrow.parquet.read_table(tmp_path / "back.parquet"), table())
    # As other readers find them in the files of the shards.
    shards = [str(path) for path in (tmp_path / "files" / "store" / "shards").rglob("*.arrow")]
    rows = pyarrow.dataset.dataset(shards, format="arrow")
    assert_same_rows(rows.to_table(), table())
    query = "select count(*), sum(id), sum(half), count(text), sum(octet_length(blob)), sum(len(lists)), count(boxes.x) from {}"
    duckdb = pytest.importorskip("duckdb")
    expected = table()  # noqa: F841
    assert duckdb.sql(query.format("rows")).fetchall() == duckdb.sql(query.format("expected")).fetchall()


def assert_same_rows(found: pyarrow.Table, expected: pyarrow.Table) -> None:
    """The same columns, types and rows, in whatever order."""
    assert found.schema.remove_metadata() == expected.schema.remove_metadata()
    assert sorted(map(repr, found.to_pylist())) == sorted(map(repr, expected.to_pylist()))


def test_a_column_that_is_not_there_is_named_with_those_that_are(store):
    ray = pytest.importorskip("shardd.ray")
    with pytest.raises(KeyError, match="has no column 'colour'; it has "):
        ray.read(store, columns=["colour"])
