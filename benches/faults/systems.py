"""The systems of the bench. Each starts a training in a folder, kills a process of it, and says how far it is."""

import json
import os
import random
import signal
import socket
import subprocess
import time
from pathlib import Path

import count
from pacer import Pacer
from processes import children, end
from setting import GLOBAL_BATCH, RANKS, RESTART_S, SEQUENCE

HERE = Path(__file__).resolve().parent


class System:
    """A training, which `poll` drives: it restarts what its users would have restarted, and returns the steps that have ended."""

    kinds = ("rank",)

    def __init__(self, setting, folder):
        self.setting, self.folder, self.processes, self.due = setting, folder, {}, {}
        folder.mkdir(parents=True)
        self.output = open(folder / "output.log", "ab")

    def spawn(self, name, command, environment=None, **more):
        how = {"stdout": self.output, "stderr": self.output, "start_new_session": True, **more}
        self.processes[name] = subprocess.Popen(command, env={**os.environ, **(environment or {})}, **how)

    def kill(self, name):
        """Kills a process and starts it again later; with its session, as if its machine were gone."""
        end([self.processes.pop(name)])
        self.due[name] = time.monotonic() + RESTART_S

    def restart(self):
        for name in [name for name, due in self.due.items() if due <= time.monotonic()]:
            del self.due[name]
            self.start(name)

    def close(self):
        end(self.processes.values())
        self.output.close()


class Shardtrain(System):
    """`shardtrain run --elastic` over a node: ranks that stay, and a rank that comes back."""

    title, kinds = "shardtrain", ("rank", "launcher", "node")
    undisturbed = None

    def __init__(self, setting, folder):
        super().__init__(setting, folder)
        self.pacer = Pacer(setting.pace_s)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.server = f"http://127.0.0.1:{free.getsockname()[1]}"
        self.rows()
        self.start("node")
        self.wait_for_node()
        self.say("ingest", "--name", "text", "--sequence-length", str(SEQUENCE), folder / "text.txt")
        self.plan = self.say("partition", "--q", "0.1", "--partitions", "16", "--id", "text").strip()
        self.start("launcher")

    def rows(self):
        """One epoch of as many sequences as the steps read, of random words."""
        draw = random.Random(2)
        words = ["".join(draw.choices("abcdefgh", k=4)) for _ in range(64)]
        size = self.setting.steps * GLOBAL_BATCH * SEQUENCE
        (self.folder / "text.txt").write_text(" ".join(draw.choices(words, k=size // 5 + 1))[:size])

    def say(self, *arguments):
        command = [self.setting.bin / "shardctl", "--server", self.server, *arguments]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=self.output, text=True).stdout

    def start(self, name):
        if name == "node":
            place = ["--data", self.folder / "node", "--store", self.folder / "store", "--http", self.server.removeprefix("http://")]
            self.spawn(name, [self.setting.bin / "shardd", "serve", *place, "--log-level", "warn"])
            return
        command = [self.setting.bin / "shardtrain", "run", "--nproc", str(RANKS), "--elastic", "--respawn-after", str(int(RESTART_S))]
        command += ["--max-restarts", "100", "--", "--server", self.server, "--plan", self.plan, "--run", "bench"]
        command += ["--model", "gpt", "--layers", "1", "--heads", "2", "--hidden-size", "32", "--optimizer", "adamw", "--lr", "0.001"]
        command += ["--epochs", "1", "--global-batch-size", str(GLOBAL_BATCH), "--virtual-ranks", str(RANKS)]
        command += ["--progress", "-", "--report", self.folder / "report.json"]
        command += ["--checkpoints", self.folder / "kept", "--checkpoint-every", str(self.setting.checkpoint_every)]
        self.spawn(name, command, {"RAYON_NUM_THREADS": "1"}, stdout=self.pacer.into)

    def wait_for_node(self):
        while True:
            try:
                socket.create_connection(("127.0.0.1", int(self.server.rsplit(":", 1)[1]))).close()
                return
            except OSError:
                if self.processes["node"].poll() is not None:
                    raise SystemExit(f"the node ended: {self.folder}/output.log") from None
                time.sleep(0.02)

    def poll(self):
        self.restart()
        found = self.pacer.steps(0.2)
        with open(self.folder / "progress.jsonl", "a") as out:
            out.writelines(json.dumps({"step": line["step"], "at": at}) + "\n" for at, line in found)
        if "launcher" in self.processes and self.processes["launcher"].poll() not in (None, 0):
            raise SystemExit("shardtrain failed: " + (self.folder / "output.log").read_text(errors="replace")[-3000:])
        return [(line["step"], at) for at, line in found]

    def fault(self, fault):
        if fault.kind == "rank":
            ranks = children(self.processes["launcher"].pid)
            os.kill(ranks[fault.victim % len(ranks)], signal.SIGKILL)
        else:
            self.kill(fault.kind)

    def counts(self):
        """Bits cannot be the same with another sample in them."""
        while self.processes["launcher"].poll() is None:
            self.pacer.steps(0.1)
        report = json.loads((self.folder / "report.json").read_text())
        steps = [json.loads(line)["step"] for line in (self.folder / "progress.jsonl").read_text().splitlines()]
        digest = report["weights_digest"]
        if self.setting.kinds == ():
            Shardtrain.undisturbed = digest
        same = digest == Shardtrain.undisturbed
        lost = 0 if same and report["samples"] == self.setting.steps * GLOBAL_BATCH else None
        return {"recomputed": len(steps) - len(set(steps)), "lost": lost, "twice": lost, "weights_digest": digest, "same_weights": same}

    def close(self):
        super().close()
        self.pacer.close()


class Logged(System):
    """A PyTorch program whose ranks write log.jsonl."""

    def __init__(self, setting, folder):
        super().__init__(setting, folder)
        self.read, self.rest = 0, b""
        self.environment = {
            "BENCH_STEPS": str(setting.steps),
            "BENCH_PACE_S": str(setting.pace_s),
            "BENCH_PLACE": str(folder),
            "BENCH_CHECKPOINT_EVERY": str(setting.checkpoint_every),
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")])),
        }
        for name in self.names():
            self.start(name)

    def poll(self):
        self.restart()
        time.sleep(0.02)
        path = self.folder / "log.jsonl"
        if not path.exists():
            return []
        with open(path, "rb") as file:
            file.seek(self.read)
            text = file.read()
        self.read += len(text)
        *lines, self.rest = (self.rest + text).split(b"\n")
        return [(line["step"], line["at"]) for line in map(json.loads, lines) if line["event"] == "end"]

    def lines(self):
        return [json.loads(line) for line in (self.folder / "log.jsonl").read_text().splitlines()]


class Torchrun(Logged):
    """Checkpoint and restart of the whole job."""

    title, kinds = "torchrun, DDP, checkpoints", ("rank", "launcher")

    def names(self):
        return ["launcher"]

    def start(self, name):
        launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS), "--max-restarts", "100"]
        self.spawn(name, [self.setting.python, "-B", *launcher, HERE / "ddp.py"], self.environment)

    def fault(self, fault):
        if fault.kind == "rank":
            ranks = children(self.processes["launcher"].pid)
            os.kill(ranks[fault.victim % len(ranks)], signal.SIGKILL)
        else:
            self.kill("launcher")

    def kill(self, name):
        self.kill_ranks()
        super().kill(name)

    def close(self):
        self.kill_ranks()
        super().close()

    def kill_ranks(self):
        """Each rank has a session of its own, and stays when its launcher is gone."""
        launcher = self.processes.get("launcher")
        for rank in children(launcher.pid) if launcher else []:
            os.kill(rank, signal.SIGKILL)

    def counts(self):
        return count.of_restarts(self.lines(), self.setting.steps, self.setting.steps * GLOBAL_BATCH)


class Torchft(Logged):
    """A replica in each process, and torchft's lighthouse with the settings of its README."""

    title, failures = "torchft", 0

    def names(self):
        return ["lighthouse", *map(str, range(RANKS))]

    def start(self, name):
        if name == "lighthouse":
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                self.port = free.getsockname()[1]
            program = Path(self.setting.torchft_python).parent / "torchft_lighthouse"
            limits = ["--min_replicas", "1", "--quorum_tick_ms", "100", "--join_timeout_ms", "10000"]
            self.spawn(name, [program, "--bind", f"[::]:{self.port}", *limits], {"RUST_BACKTRACE": "1"})
        else:
            own = {**self.environment, "BENCH_REPLICA": name, "TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{self.port}"}
            self.spawn(name, [self.setting.torchft_python, "-B", HERE / "replica.py"], own)

    def poll(self):
        """A replica that failed by itself is started again as well, as torchelastic would."""
        for name, process in list(self.processes.items()):
            if process.poll() not in (None, 0):
                self.kill(name)
                self.failures += 1
        return super().poll()

    def fault(self, fault):
        running = sorted(name for name in self.processes if name != "lighthouse")
        self.kill(running[fault.victim % len(running)])

    def counts(self):
        counts = count.of_replicas(self.lines(), self.setting.steps, self.setting.steps * GLOBAL_BATCH)
        return {**counts, "failed_by_themselves": self.failures}


SYSTEMS = {"shardtrain": Shardtrain, "torchrun": Torchrun, "torchft": Torchft}
