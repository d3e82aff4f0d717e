"""A small dataset for all tests, and a cache of their own."""

import os
import signal
import sys
from pathlib import Path

import pytest

import helpers
import shardd
from bucket import Bucket


@pytest.fixture(scope="session", autouse=True)
def _cache(tmp_path_factory):
    """Nothing is left in the user's own cache, and processes that tests start find the package where this one did."""
    os.environ["SHARDD_CACHE_DIR"] = str(tmp_path_factory.mktemp("cache"))
    paths = [Path(shardd.__file__).parents[1], Path(__file__).parent, os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(map(str, paths))
    # Others want the cores, too.
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ.pop("RANK", None)
    os.environ.pop("WORLD_SIZE", None)


@pytest.fixture(scope="session", autouse=True)
def _interrupts():
    """A shell makes its background processes ignore SIGINT, and their children inherit that."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(scope="session")
def store(tmp_path_factory) -> str:
    """A directory with one dataset: 1003 samples with a number, a picture made of it, and a label."""
    directory = str(tmp_path_factory.mktemp("store") / "digits")
    shardd.from_iter(
        helpers.rows(), directory, name="digits", classes={"label": list("abcdefghij")}, shard_size="40KiB"
    )
    return directory


@pytest.fixture(scope="session")
def table(tmp_path_factory) -> str:
    """A directory with a table of 640 rows for `shardtrain`: two numbers and a label."""
    folder = tmp_path_factory.mktemp("table")
    rows = [f"{n % 3 + n % 7 / 10},{n % 5},{n % 3}" for n in range(640)]
    (folder / "table.csv").write_text("\n".join(["a,b,label", *rows]) + "\n")
    helpers.ingest(folder / "store", "table", folder / "table.csv")
    return str(folder / "store")


@pytest.fixture
def dataset(store) -> shardd.StreamingDataset:
    return shardd.StreamingDataset(store, **helpers.PLAN)


@pytest.fixture(scope="session")
def script(tmp_path_factory):
    """Runs Python code in a process of its own; see `helpers.run`."""
    return lambda code, *arguments, **how: helpers.run([sys.executable, "-c", code, *map(str, arguments)], **how)


@pytest.fixture(scope="session")
def bucket():
    """The same dataset in a bucket."""
    bucket = Bucket()
    os.environ.update(bucket.environment)
    try:
        shardd.from_iter(helpers.rows(), bucket.url, name="digits", shard_size="24KiB")
        yield bucket
    finally:
        bucket.close()
        for name in bucket.environment:
            del os.environ[name]
