"""A real cluster of four nodes on loopback, a training of four ranks that reads from it, and the faults that happen to it.

Nothing here knows what people should see of them: that is in `story.py`.
"""

import hashlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

from waiting import PATIENCE, Missing, until  # noqa: E402

NODES = ("n1", "n2", "n3", "n4")
# The node that each rank reads through: no fault of a node is at the node of the straggler.
NODE_OF_RANK = ("n1", "n2", "n4", "n3")
STRAGGLER = 3
RUN = "vit-b16"
# An epoch is about 20 seconds: a fault that a scrub finds is found in the next one at the latest.
SAMPLES = 10_000
MIB = 1 << 20
# What n4 has for its cache, and the other nodes for their data.
SMALL_DISK = 96 * MIB
NODE_DISK = 512 * MIB


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def get(url: str, timeout: float = 20.0) -> bytes:
    """The body of an answer; an OSError for any status but 200."""
    parts = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=timeout)
    try:
        connection.request("GET", parts.path + (f"?{parts.query}" if parts.query else ""))
        answer = connection.getresponse()
        body = answer.read()
    finally:
        connection.close()
    if answer.status != 200:
        raise OSError(f"{url}: {answer.status} {body[:200]!r}")
    return body


def get_json(url: str) -> dict:
    return json.loads(get(url))


class Processes:
    """Processes that end with this one, each with a log."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.started: list[subprocess.Popen] = []

    def start(self, name: str, command: list[object], **how: object) -> subprocess.Popen:
        """Starts a process with a group of its own."""
        with open(self.folder / f"{name}.log", "ab") as log:
            how = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log, **how}
            process = subprocess.Popen([str(part) for part in command], start_new_session=True, **how)
        self.started.append(process)
        return process

    def log(self, name: str, lines: int = 20) -> str:
        text = (self.folder / f"{name}.log").read_text(errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def end(self, process: subprocess.Popen) -> None:
        """Kills a process and those that it started."""
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe:
                pipe.close()

    def end_browser(self, process: subprocess.Popen) -> None:
        """Ends a script of Playwright, which ends its Chromium: that is in another group."""
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            pass
        self.end(process)

    def end_all(self) -> None:
        while self.started:
            process = self.started.pop()
            (self.end_browser if "node" in process.args else self.end)(process)


class Mounts:
    """Small disks in memory, unmounted at the end."""

    def __init__(self) -> None:
        self.at: list[Path] = []

    def add(self, folder: Path, size: int) -> bool:
        folder.mkdir(parents=True, exist_ok=True)
        if os.geteuid() != 0:
            return False
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "shardd-test", folder], capture_output=True)
        if done.returncode == 0:
            self.at.append(folder)
        return done.returncode == 0

    def end_all(self) -> None:
        while self.at:
            folder = self.at.pop()
            if subprocess.run(["umount", folder], capture_output=True).returncode != 0:
                subprocess.run(["umount", "--lazy", folder], capture_output=True)


class Cluster:
    """Nodes, their data and their disks in a folder that goes with them."""

    def __init__(self, programs: Path) -> None:
        self.programs = programs
        self.folder = Path(tempfile.mkdtemp(prefix="shardd-cluster-view-"))
        self.mounts = Mounts()
        # Where this is allowed, the folder is a disk of its own, without an end: other programs fill the machine's disk.
        self.mounts.add(self.folder, 1 << 40)
        self.processes = Processes(self.folder)
        self.http: dict[str, str] = {}
        self.nodes: dict[str, subprocess.Popen] = {}
        self.has_small_disk = False
        self.stopping = threading.Event()

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        self.processes.end_all()
        self.mounts.end_all()
        shutil.rmtree(self.folder, ignore_errors=True)

    # --- nodes and data ------------------------------------------------------------------------------------------------

    @property
    def store(self) -> Path:
        return self.folder / "store"

    def data(self, node: str) -> Path:
        return self.folder / node

    def start_nodes(self) -> None:
        for node in NODES[:3]:
            self.mounts.add(self.data(node), NODE_DISK)
        self.has_small_disk = self.mounts.add(self.data("n4") / "cache", SMALL_DISK)
        for node in NODES:
            ready = self.folder / f"{node}.ready"
            first = ["--store", self.store]
            join = first if node == NODES[0] else ["--join", f"@{self.data(NODES[0]) / 'join-token'}"]
            self.nodes[node] = self.processes.start(
                node,
                [self.programs / "shardd", "serve", "--id", node, "--data", self.data(node), "--http", "127.0.0.1:0"]
                + ["--quic", "127.0.0.1:0", "--cache-size", "64MiB", "--ready-file", ready, *join],
            )
            line = until(f"{node} is ready", lambda: self.is_running(node) and ready.exists() and ready.read_text())
            self.http[node] = line.split(" http ")[1].replace(",", " ").split()[0]
        until("all nodes know each other", lambda: all(len(get_json(f"{url}/v1/nodes")) == len(NODES) for url in self.http.values()))

    def is_running(self, node: str) -> bool:
        if (status := self.nodes[node].poll()) is not None:
            raise Missing(f"{node} has ended with status {status}:\n{self.processes.log(node)}")
        return True

    def shardctl(self, *arguments: object, node: str = "n1") -> str:
        command = [self.programs / "shardctl", "--server", self.http[node], *arguments]
        environment = {**os.environ, "SHARDD_CONTEXTS": str(self.folder / "contexts.toml"), "NO_COLOR": "1"}
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=PATIENCE, env=environment)
        if done.returncode != 0:
            raise OSError(f"shardctl {' '.join(map(str, arguments))}: {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def make_plan(self) -> None:
        """A dataset whose rows ranks can verify, a plan for it, and its grains in the caches."""
        table = self.folder / "rows.csv"
        with open(table, "w") as out:
            out.write("id,label,text\n")
            out.writelines(f"{number},{number % 10},{text_of(number)}\n" for number in range(SAMPLES))
        self.shardctl("ingest", table, "--name", "imagenet-100")
        table.unlink()
        self.shardctl("partition", "imagenet-100", "--q", "0.1", "--partitions", "16")
        self.shardctl("warm", "imagenet-100", "--run", RUN, "--virtual-ranks", len(NODE_OF_RANK))

    # --- the training --------------------------------------------------------------------------------------------------

    def start_ranks(self, python: str) -> list[subprocess.Popen]:
        """Four ranks that step together, each through a node of its own."""
        meeting = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=_meet, args=(meeting, len(NODE_OF_RANK)), daemon=True).start()
        ranks = []
        for rank, node in enumerate(NODE_OF_RANK):
            servers = [self.http[node], *(url for other, url in self.http.items() if other != node)]
            environment = {**os.environ, "SHARDD_CACHE_DIR": str(self.folder / "loaders"), "OMP_NUM_THREADS": "1"}
            command = [python, "-B", Path(__file__).with_name("rank.py"), rank, len(NODE_OF_RANK), ",".join(servers), RUN]
            command += [meeting.getsockname()[1], self.slow_switch if rank == STRAGGLER else ""]
            ranks.append(self.processes.start(f"rank-{rank}", command, env=environment))
        return ranks

    # --- the faults ----------------------------------------------------------------------------------------------------

    @property
    def slow_switch(self) -> Path:
        """While this file is there, the collate function of the straggler is slow."""
        return self.folder / "slow"

    def corrupt(self, node: str) -> int:
        """Overwrites bytes in the cache of a node, in place, as a failing disk would; in how many places."""
        places = 0
        for path in sorted((self.data(node) / "cache").rglob("*")):
            # A node deletes segments whose grains have left.
            try:
                if not path.is_file() or path.stat().st_size < 4096:
                    continue
                with open(path, "r+b") as file:
                    for at in range(2048, path.stat().st_size - 16, 128 << 10):
                        file.seek(at)
                        file.write(b"\xa5" * 16)
                        places += 1
            except FileNotFoundError:
                continue
        return places

    def free_share(self) -> float:
        """Of the small disk."""
        space = os.statvfs(self.data("n4") / "cache")
        return space.f_bavail / space.f_blocks

    def fill_small_disk(self, seconds: float, until_free: float = 0.01) -> threading.Thread:
        """Another program fills the disk of n4's cache at a steady rate, nearly to its end."""

        def fill() -> None:
            began, first = time.monotonic(), self.free_share()
            with open(self.data("n4") / "cache" / "filler", "wb") as file:
                while not self.stopping.wait(0.25):
                    goal = max(until_free, first - first * (time.monotonic() - began) / seconds)
                    lacking = int((self.free_share() - goal) * SMALL_DISK)
                    if lacking > 0:
                        file.write(bytes(lacking))
                        file.flush()

        thread = threading.Thread(target=fill, daemon=True)
        thread.start()
        return thread


def text_of(number: int) -> str:
    """The text of a row: ranks compare it, so that a wrong byte ends the training."""
    return hashlib.sha256(str(number).encode()).hexdigest() * 48


def _meet(meeting: socket.socket, world: int) -> None:
    """Ends a step of all ranks at once, as an all-reduce does. Returns when one of them has gone."""
    with meeting:
        ranks = [meeting.accept()[0] for _ in range(world)]
    try:
        while all(rank.recv(1) for rank in ranks):
            for rank in ranks:
                rank.sendall(b".")
    except OSError:
        pass
    finally:
        for rank in ranks:
            rank.close()
