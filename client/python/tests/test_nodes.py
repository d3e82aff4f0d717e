"""Two nodes on this machine. Needs the directory of `shardd` and `shardctl` in SHARDD_BIN."""

import os
import subprocess
import threading
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

import shardd
from helpers import run

COUNT = 4000
BINARIES = os.environ.get("SHARDD_BIN", "")

pytestmark = pytest.mark.skipif(not BINARIES, reason="skipped: SHARDD_BIN does not say where shardd is")


def serve(data: Path, join: Path | None) -> tuple[subprocess.Popen, str]:
    """A node, and where it answers."""
    how = ["--join", f"@{join}"] if join else []
    command = [f"{BINARIES}/shardd", "serve", "--id", data.name, "--data", str(data), "--http", "127.0.0.1:0", "--quic", "127.0.0.1:0"]
    with open(data.with_suffix(".log"), "w") as log:
        node = subprocess.Popen([*command, *how], stdout=subprocess.PIPE, stderr=log, text=True)
    for line in node.stdout:
        if " ready: " in line and " http " in line:
            # Whatever else it says is read, so that it never waits for a reader.
            threading.Thread(target=node.stdout.read, daemon=True).start()
            return node, line.split(" http ")[1].replace(",", " ").split()[0]
    raise AssertionError(data.with_suffix(".log").read_text())


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    root = tmp_path_factory.mktemp("nodes")
    nodes = []
    try:
        nodes.append(serve(root / "n1", None))
        nodes.append(serve(root / "n2", root / "n1" / "join-token"))
        table = pyarrow.table({"id": list(range(COUNT)), "text": [f"row {number}" for number in range(COUNT)]})
        pyarrow.parquet.write_table(table, root / "rows.parquet")
        servers = [server for _, server in nodes]
        run([f"{BINARIES}/shardctl", "ingest", "--server", servers[0], "--name", "rows", str(root / "rows.parquet")])
        yield servers
    finally:
        for node, _ in nodes:
            node.kill()
            node.wait()


def read(servers: list[str], epochs: int, **how) -> tuple[list[list[int]], list[shardd.DataLoader]]:
    """What two ranks read together, each through a node of its own, epoch by epoch."""
    loaders: list[shardd.DataLoader] = []
    for rank in range(2):
        own = servers[rank:] + servers[:rank]
        dataset = shardd.StreamingDataset(servers=own, q=0.5, partitions=8, rank=rank, world_size=2, **how)
        loaders.append(shardd.DataLoader(dataset, 50))

    def rank(loader: shardd.DataLoader) -> list[list[int]]:
        return [[sample for batch in loader for sample in batch["id"].tolist()] for _ in range(epochs)]

    with ThreadPoolExecutor(2) as ranks:
        every = list(ranks.map(rank, loaders))
    return [sorted(one + other) for one, other in zip(*every, strict=True)], loaders


def test_nodes_say_what_they_have_exchanged(servers):
    epochs, loaders = read(servers, 3, run="exchanged")
    assert epochs == [list(range(COUNT))] * 3
    told = loaders[0].exchange_stats()
    deadline = time.monotonic() + 60
    # The grains sent last may not be acknowledged yet.
    while not any(moved["bytes"] for moved in told["epochs"]) and time.monotonic() < deadline:
        time.sleep(0.1)
        told = loaders[0].exchange_stats()
    assert told["nodes"] == 2 and told["silent"] == [] and told["origin_bytes"] > 0
    assert {"misses_from_peers", "misses_from_origin", "miss_bytes", "stalled_s"} <= told.keys()
    # A grain that this node does not keep is acknowledged as well, and has no bytes here.
    received = [moved for moved in told["epochs"] if moved["bytes"]]
    assert received and all(moved["expected_grains"] >= moved["grains"] > 0 for moved in received)
    assert all(moved["hidden"] is None or 0 <= moved["hidden"] <= 1 for moved in told["epochs"])
    stats = loaders[0].stats()
    assert stats["samples"] >= COUNT and stats["network_s"] > 0
    for own in loaders:
        own.close()


def test_epochs_that_nodes_give_can_be_limited(servers):
    epochs, loaders = read(servers, 2, run="limited", limit=1000)
    assert [len(set(epoch)) for epoch in epochs] == [1000, 1000] and epochs[0] != epochs[1]
    assert loaders[0].state_dict()["limit"] == 1000
    for own in loaders:
        own.close()


def test_the_address_of_a_node_in_the_place_of_a_store_is_answered_with_the_argument_for_it(servers):
    with pytest.raises(OSError, match=rf"If {servers[0]} is a node, pass it as servers=\['{servers[0]}'\]"):
        shardd.StreamingDataset(servers[0])


def test_a_loop_notes_its_loss_and_how_long_it_waits_for_other_ranks(servers):
    loader = shardd.DataLoader(shardd.StreamingDataset(servers=servers, q=0.5, partitions=8), 50)
    others, found = threading.Event(), {}
    deadline = time.monotonic() + 60
    while len(found) < 2 and time.monotonic() < deadline:
        for _ in loader:
            with loader.waiting_for_ranks():
                others.wait(0.002)
            loader.note_loss(0.25)
        with urllib.request.urlopen(f"{servers[0]}/metrics") as answer:
            lines = [line.rsplit(" ", 1) for line in answer.read().decode().splitlines() if line.startswith("shardd_rank_")]
        values = {name: float(value) for name, value in lines}
        losses = [value for name, value in values.items() if name.startswith("shardd_rank_loss{")]
        waits = [value for name, value in values.items() if name.startswith("shardd_rank_collective_wait_seconds_total{") and value > 0]
        found = {**({"loss": losses} if losses else {}), **({"waits": waits} if waits else {})}
    assert found["loss"] == [0.25]
    # Each of the batches waited for two milliseconds or more.
    assert found["waits"][0] >= 0.1
