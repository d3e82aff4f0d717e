"""A Slurm of three machines on one: munge, a controller, and a slurmd in a network of its own for each."""

import os
import signal
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

import waiting  # noqa: E402

MACHINES = 3
# How long anything may take, in seconds. Slurm looks at time limits every half minute.
PATIENCE = 180.0
until = partial(waiting.until, patience=PATIENCE)
# Of the bridge that joins the networks. The machines are at .1, .2 and .3.
NETWORK = "10.79.0"
# The states of a job that has ended.
OVER = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY"}


def command(*parts: object, check: bool = True, **how: object) -> str:
    done = subprocess.run([str(part) for part in parts], capture_output=True, text=True, timeout=PATIENCE, **how)
    if check and done.returncode != 0:
        raise OSError(f"{' '.join(map(str, parts))}: {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


class Slurm:
    """Starts all daemons, and ends them with all that they started."""

    def __init__(self) -> None:
        self.temporary = tempfile.TemporaryDirectory(prefix="shardd-slurm-", ignore_cleanup_errors=True)
        self.folder = Path(self.temporary.name)
        self.daemons: list[subprocess.Popen] = []
        self.names = [f"n{number}" for number in range(1, MACHINES + 1)]
        self.prefix = f"sl{os.getpid() % 100_000}"

    def __enter__(self) -> "Slurm":
        try:
            self._networks()
            self._daemons()
        except BaseException:
            print(self.logs(), flush=True)
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for daemon in reversed(self.daemons):
            if daemon.poll() is None:
                daemon.send_signal(signal.SIGTERM)
        for daemon in self.daemons:
            try:
                daemon.wait(15)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        for name in self.names:
            # What is left in it would keep the network.
            for pid in command("ip", "netns", "pids", self._network(name), check=False).split():
                try:
                    os.kill(int(pid), signal.SIGKILL)
                except ProcessLookupError:
                    pass
            command("ip", "netns", "delete", self._network(name), check=False)
        command("ip", "link", "delete", self.prefix, check=False)
        self.temporary.cleanup()

    def _network(self, name: str) -> str:
        return f"{self.prefix}{name}"

    def _networks(self) -> None:
        names = "".join(f"{NETWORK}.{number} n{number}\n" for number in range(1, MACHINES + 1))
        (self.folder / "hosts").write_text(f"127.0.0.1 localhost\n{names}")
        command("ip", "link", "add", self.prefix, "type", "bridge")
        command("ip", "address", "add", f"{NETWORK}.254/24", "dev", self.prefix)
        command("ip", "link", "set", self.prefix, "up")
        for number, name in enumerate(self.names, 1):
            network, outer, inner = self._network(name), f"{self.prefix}o{number}", f"{self.prefix}i{number}"
            command("ip", "netns", "add", network)
            command("ip", "link", "add", outer, "type", "veth", "peer", "name", inner, "netns", network)
            command("ip", "link", "set", outer, "master", self.prefix, "up")
            command("ip", "-n", network, "address", "add", f"{NETWORK}.{number}/24", "dev", inner)
            command("ip", "-n", network, "link", "set", inner, "up")
            command("ip", "-n", network, "link", "set", "lo", "up")

    def _daemons(self) -> None:
        (self.folder / "munge.key").write_bytes(os.urandom(1024))
        (self.folder / "munge.key").chmod(0o600)
        for name in ("state", *(f"spool-{name}" for name in self.names)):
            (self.folder / name).mkdir()
        addresses = f"{NETWORK}.[1-{MACHINES}]"
        settings = {
            "ClusterName": "shardd",
            "SlurmctldHost": f"{os.uname().nodename}({NETWORK}.254)",
            "SlurmUser": "root",
            "SlurmdUser": "root",
            "AuthType": "auth/munge",
            # A requeued job waits until its credential expires, two minutes by default.
            "AuthInfo": f"socket={self.folder}/munge.sock,cred_expire=5",
            "SlurmctldPort": 16817,
            "StateSaveLocation": self.folder / "state",
            "SlurmdSpoolDir": f"{self.folder}/spool-%n",
            "SlurmctldPidFile": self.folder / "slurmctld.pid",
            "SlurmdPidFile": f"{self.folder}/slurmd.%n.pid",
            "ProctrackType": "proctrack/linuxproc",
            "TaskPlugin": "task/none",
            "SelectType": "select/cons_tres",
            "SelectTypeParameters": "CR_CPU",
            "SlurmdParameters": "config_overrides",
            "MpiDefault": "none",
            "ReturnToService": 2,
            "JobRequeue": 1,
            "KillWait": 5,
            "MinJobAge": 3600,
            "SchedulerParameters": "bf_interval=1,sched_interval=1,sched_min_interval=100000",
            "NodeName": f"n[1-{MACHINES}] NodeAddr={addresses} Port=17001 CPUs=8 RealMemory=1000",
            "PartitionName": "main Nodes=ALL Default=YES MaxTime=INFINITE State=UP",
        }
        (self.folder / "slurm.conf").write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        key, socket = self.folder / "munge.key", self.folder / "munge.sock"
        files = [f"--{name}={self.folder}/munge.{name.removesuffix('-file')}" for name in ("pid-file", "log-file", "seed-file")]
        self._start("munged", "munged", "--foreground", "--force", f"--key-file={key}", f"--socket={socket}", *files)
        until("munge's socket", socket.exists)
        self._start("slurmctld", "slurmctld", "-D", "-f", self.folder / "slurm.conf")
        for name in self.names:
            slurmd = f"mount --bind {self.folder}/hosts /etc/hosts && exec nsenter --net=/run/netns/{self._network(name)} slurmd -D -N {name}"
            self._start(f"slurmd-{name}", "unshare", "--mount", "sh", "-c", slurmd)

        def idle() -> bool:
            states = command("sinfo", "-h", "-N", "-o", "%T", env=self.environment(), check=False).split()
            return states == ["idle"] * MACHINES

        until("all machines are idle", idle)

    def _start(self, name: str, *parts: object) -> None:
        with open(self.folder / f"{name}.log", "wb") as log:
            self.daemons.append(subprocess.Popen([str(part) for part in parts], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment()))

    def environment(self, **more: object) -> dict[str, str]:
        return {**os.environ, "SLURM_CONF": str(self.folder / "slurm.conf"), **{name: str(value) for name, value in more.items()}}

    def logs(self) -> str:
        logs = sorted(self.folder.glob("*.log"))
        return "\n".join(f"{log.name}:\n" + "\n".join(log.read_text(errors="replace").splitlines()[-15:]) for log in logs)

    # --- jobs ----------------------------------------------------------------------------------------------------------

    def submit(self, script: Path, *options: str, arguments: list[object] = (), **variables: object) -> "Job":
        parts = ["sbatch", "--parsable", *options, script, *arguments]
        number = command(*parts, env=self.environment(**variables), cwd=self.folder).strip()
        return Job(self, int(number.split(";")[0]))


class Job:
    """A job by its number."""

    def __init__(self, slurm: Slurm, number: int) -> None:
        self.slurm, self.number = slurm, number

    def field(self, name: str) -> str:
        shown = command("scontrol", "-o", "show", "job", self.number, env=self.slurm.environment())
        fields = dict(part.split("=", 1) for part in shown.split() if "=" in part)
        return fields[name]

    def restarts(self) -> int:
        return int(self.field("Restarts"))

    def control(self, *parts: object) -> None:
        command(*parts, self.number, env=self.slurm.environment())

    def output(self) -> str:
        return "\n".join(path.read_text(errors="replace") for path in sorted(self.slurm.folder.glob(f"*-{self.number}.out")))

    def is_running(self) -> bool:
        """Whether it runs; an error if it has ended."""
        if (state := self.field("JobState")) in OVER:
            raise AssertionError(f"job {self.number} is {state}:\n{self.output()}")
        return state == "RUNNING"

    def completed(self, launches: int = 1) -> None:
        """Waits until it has trained to its end, for `launches` times as long as for other things."""
        state = until(f"job {self.number} ends", lambda: (now := self.field("JobState")) in OVER and now, patience=launches * PATIENCE)
        if state != "COMPLETED":
            raise AssertionError(f"job {self.number} is {state}:\n{self.output()}")
