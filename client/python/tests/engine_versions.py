"""Versions that workers of an engine append, reshard, verify and read: what is prepared for them, and what has to come out."""

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import engine_rows
import pytest
from engine_rows import FLAGS
from helpers import ingest, run, shardctl

import shardd
from shardd._tables import Job

# Filters in SQL, and whether ranges of values exclude the shard that `gap` lacks, whose numbers are some from 1,000 to 2,999.
FILTERS = {
    "id < 100": True,
    "id >= 3000 and id <= 3100": True,
    "id in (5, 17, 3899, 100000)": True,
    "not (id >= 20)": True,
    "id = 78 and half is not null": True,
    "id <> 7": False,
    "text = 'row 77'": False,
    "text is null": False,
    "half > 1900": False,
}
RESHARD = "5KiB"


def version(place: Path, name: str = "rows") -> str:
    return shardd.StreamingDataset(str(place), dataset=name).version


def prepare(folder: Path) -> dict[str, str]:
    """Stores in a folder, and the versions that `shardctl` makes of them."""
    (folder / "files").mkdir()
    engine_rows.write(folder / "files")
    (folder / "most").mkdir()
    for part in range(3):
        shutil.copy(folder / "files" / f"part-{part}.parquet", folder / "most")
    ingest(folder / "here", "rows", folder / "most", *FLAGS)
    for place in ("there", "raced"):
        shutil.copytree(folder / "here", folder / place)
    more = folder / "files" / "part-3.parquet"
    shardctl("--store", folder / "here", "append", "rows", more)
    expected = {"append": version(folder / "here")}
    shardctl("--store", folder / "here", "reshard", "rows", "--shard-size", RESHARD)
    expected["reshard"] = version(folder / "here")
    ingest(folder / "ordered", "rows", folder / "files", "--mix", "sequential", "--shard-size", "16KiB")
    shutil.copytree(folder / "ordered", folder / "gap")
    shutil.copytree(folder / "ordered", folder / "damaged")
    damage(folder)
    return expected


def shard_file(place: Path, shard: int) -> Path:
    """The file of a shard, by its place in the version."""
    listed = json.loads(shardctl("--store", place, "info", "rows", "--shards", "--json"))["entries"]
    found, = (place / "store" / "shards").rglob(f"{listed[shard]['id']}.arrow")
    return found


def damage(folder: Path) -> None:
    """Takes a shard away from `gap`, and several files of `damaged`."""
    shards = len(engine_rows.shard_files(folder / "ordered"))
    shard_file(folder / "gap", shards // 2).unlink()
    changed, missing, cut, alone = (shard_file(folder / "damaged", number) for number in (1, 3, 4, 6))
    content = bytearray(changed.read_bytes())
    content[len(content) // 2] ^= 1
    write(changed, bytes(content))
    missing.unlink()
    write(cut, cut.read_bytes()[:-100])
    alone.with_suffix(".rows").unlink()


def write(path: Path, content: bytes) -> None:
    """Other content under the name of a file, which stores protect."""
    path.unlink()
    path.write_bytes(content)


def findings(folder: Path) -> list[dict]:
    """What `shardctl verify` finds in `damaged`."""
    program = os.path.join(os.environ["SHARDD_BIN"], "shardctl")
    found = run([program, "--store", str(folder / "damaged"), "verify", "rows", "--json"], check=False)
    done, = (event for event in map(json.loads, found.stdout.splitlines()) if event.get("event") == "done")
    return done["damaged"]


def refusal(action: Callable[[], object]) -> str:
    """The error of an action, in words."""
    try:
        action()
    except Exception as error:
        return f"{error}"
    raise AssertionError("it was not refused")


@contextlib.contextmanager
def append_first(module, place: Path, file: Path) -> Iterator[SimpleNamespace]:
    """In it, `shardctl` appends a file to the dataset just before the module commits its own rows."""
    first = SimpleNamespace()

    class SlowJob(Job):
        def commit(self, *arguments):
            shardctl("--store", place, "append", "rows", file, "--again")
            first.version = version(place)
            return super().commit(*arguments)

    module.Job = SlowJob
    yield first
    module.Job = Job


def expected_counts() -> dict[str, list]:
    """Of each filter, the rows and the sum of their numbers, by DuckDB."""
    duckdb = pytest.importorskip("duckdb").connect()
    duckdb.register("rows", engine_rows.table())
    query = "select count(*), coalesce(sum(id), 0)::bigint from rows where {}"
    return {where: list(duckdb.sql(query.format(where)).fetchall()[0]) for where in FILTERS}


def assert_made(folder: Path, made: dict, expected: dict[str, str]) -> None:
    """What both engines have to have done in `folder`, by their account of it."""
    assert {case: made[case] for case in expected} == expected
    assert version(folder / "there") == expected["reshard"]
    shardctl("--store", folder / "there", "verify", "rows")
    assert made["counts"] == expected_counts()
    # The shard that is missing was not asked for.
    assert made["gap"] == {where: count for where, count in expected_counts().items() if FILTERS[where]}
    found = findings(folder)
    assert [fault["damage"] for fault in found] == ["corrupt", "missing", "corrupt", "missing"]
    assert [fault["file"] for fault in found] == ["shard", "shard", "shard", "sidecar"]
    faults = made["faults"]
    assert [fault.pop("index") for fault in faults] == [1, 3, 4, 6]
    assert [{key: value for key, value in fault.items() if value is not None} for fault in faults] == found
    assert made["intact"] == [engine_rows.ROWS, 0]
    raced, random, columns, unknown, drawn, old = made["refused"]
    # The other appender's version stays, and is whole.
    assert "rows" in raced and made["faster"][:12] in raced and version(folder / "raced") == made["faster"]
    shardctl("--store", folder / "raced", "verify", "rows")
    assert "come in no order" in random
    assert '"boxes"' in columns and "is missing" in columns
    assert "cats" in unknown
    assert "had other values" in drawn and not (folder / "drawn" / "meta" / "refs").exists()
    assert "names a version" in old
