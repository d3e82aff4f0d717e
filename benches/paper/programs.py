"""The programs of this repository as processes: shardctl, shardtrain, nodes of one machine. Knows nothing of
the measurements."""

import json
import os
import signal
import subprocess
import tempfile
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILT = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")) / "release"
ARCHIVE = Path(os.environ.get("SHARDD_SHARED", ROOT / "../shared")) / "data/cifar10-jpeg.tar.gz"
# One thread: the figures should not depend on the number of other threads.
ENVIRONMENT = {**os.environ, "RAYON_NUM_THREADS": "1"}


TRAINING = set()  # processes that run


def stop(*_):
    """For SIGTERM and Ctrl-C: leaves no process behind."""
    for process in list(TRAINING):
        process.kill()
    raise KeyboardInterrupt


def said(command):
    """What a program writes; where it fails, its own words."""
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, env=ENVIRONMENT)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, command))} exited with {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def trained(binaries, ranks, work, observe=lambda step: None, places=None):
    """Runs the ranks of one training, given the arguments of each; `observe` sees each step of rank 0 as it ends. Their reports,
    the steps of each, and the processor and wall seconds of all. `places` has words before the command of each rank."""
    with tempfile.TemporaryDirectory(dir=work) as folder:
        folder, running, seconds = Path(folder), [], []
        began = time.monotonic()
        for number, arguments in enumerate(ranks):
            words = [*(places[number] if places else []), binaries / "shardtrain", *arguments, "--threads", "1", "--report", folder / f"{number}.json"]
            words += ["--progress", folder / f"{number}.jsonl" if number else "-"]
            with open(folder / f"{number}.log", "w") as log:
                out = subprocess.PIPE if number == 0 else log
                running.append(subprocess.Popen([str(word) for word in words], stdout=out, stderr=log, env=ENVIRONMENT))
        TRAINING.update(running)
        first = []
        for line in running[0].stdout:
            first.append(json.loads(line))
            observe(first[-1])
        running[0].stdout.close()
        for number, process in enumerate(running):
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            TRAINING.discard(process)
            seconds.append(usage.ru_utime + usage.ru_stime)
            if process.returncode:
                said_last = (folder / f"{number}.log").read_text().strip()
                for other in running[number + 1 :]:
                    other.kill()
                    other.wait()
                raise SystemExit(f"rank {number} exited with {process.returncode}: {said_last}")
        wall = time.monotonic() - began
        others = [(folder / f"{number}.jsonl").read_text().splitlines() for number in range(1, len(ranks))]
        steps = [first, *([json.loads(line) for line in lines] for lines in others)]
        reports = [json.loads((folder / f"{number}.json").read_text()) for number in range(len(ranks))]
        return reports, steps, sum(seconds), wall


class Nodes:
    """Nodes with a store of their own, for as long as the `with` lasts: on loopback, or each at its place in a shaped network."""

    def __init__(self, binaries, count, settings=(), network=None, first=0):
        """The places in the network are those from `first` on."""
        self.binaries, self.count, self.settings, self.network, self.first = binaries, count, [*settings], network, first
        self.running, self.urls = [], []

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="shardd-paper-")
        try:
            for number in range(1, self.count + 1):
                self.start(number)
        except BaseException:
            self.__exit__()
            raise
        return self

    def start(self, number):
        root = Path(self.folder.name)
        words, address = [], "127.0.0.1"
        if self.network is not None:
            place = self.first + number - 1
            words, address = self.network.inside(place), self.network.address(place)
        words += [self.binaries / "shardd", "serve", "--id", f"n{number}", "--data", root / f"n{number}"]
        words += ["--http", f"{address}:0", "--quic", f"{address}:0", "--log-level", "warn", *self.settings]
        if self.network is not None:
            words += ["--allow-insecure-http"]
        words += ["--ready-file", root / f"n{number}.ready"]
        if number > 1:
            words += ["--join", self.join_token()]
        log = open(root / f"n{number}.log", "w")
        process = subprocess.Popen([str(word) for word in words], stdout=log, stderr=log, env=ENVIRONMENT)
        log.close()
        self.running.append(process)
        ready = root / f"n{number}.ready"
        while not (ready.exists() and " http " in ready.read_text()):
            if process.poll() is not None:
                raise SystemExit(f"node {number} does not run: {(root / f'n{number}.log').read_text().strip()}")
            time.sleep(0.02)
        self.urls.append(ready.read_text().split(" http ")[1].split(",")[0].split()[0])

    def join_token(self):
        """Where other machines can reach the first node, each node joins with a token of its own."""
        if self.network is None:
            return f"@{Path(self.folder.name) / 'n1/join-token'}"
        return said([self.binaries / "shardctl", "--server", self.urls[0], "token", "create", "--join"]).strip()

    def __exit__(self, *_):
        for process in self.running:
            process.send_signal(signal.SIGTERM)
        for process in self.running:
            process.wait()
        self.folder.cleanup()

    def near(self, rank, world):
        """The addresses for a rank: its own node's first, all others after it."""
        own = rank * self.count // world
        return ",".join(self.urls[own:] + self.urls[:own])

    def status(self):
        """What each node says of itself."""
        answers = []
        for url in self.urls:
            with urllib.request.urlopen(f"{url}/v1/status") as answer:
                answers.append(json.load(answer))
        return answers

    def processor_seconds(self):
        """Of all nodes, since their start."""
        ticks = 0
        for process in self.running:
            fields = Path(f"/proc/{process.pid}/stat").read_text().rsplit(")", 1)[1].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")


def free_port():
    import socket

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]
