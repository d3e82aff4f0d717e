"""Trainings on Slurm: undisturbed, stopped before the time limit, requeued, cancelled. `run` starts them."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import traceback
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

from slurm import NETWORK, ROOT, Job, Slurm, command, until

EXAMPLES = ROOT / "trainer-integration" / "examples" / "slurm"
EPOCHS = 120


class Lab:
    """A Slurm, and a store with digits that all machines see."""

    def __init__(self, slurm: Slurm, programs: Path) -> None:
        self.slurm, self.programs = slurm, slurm.folder / "programs"
        # A build beside this may replace them.
        self.programs.mkdir()
        for name in ("shardctl", "shardd", "shardtrain"):
            shutil.copy2(programs / name, self.programs)
        self.store = slurm.folder / "store"
        self.ingest(self.store)

    def ingest(self, store: object, *options: str, **variables: str) -> None:
        """Digits, and a plan for them."""
        shardctl, environment = [self.programs / "shardctl", "--store", store], {**os.environ, **variables}
        digits = ROOT / "client" / "data" / "digits" / "train.parquet"
        command(*shardctl, "ingest", digits, "--name", "digits", *options, env=environment)
        command(*shardctl, "partition", "digits", "--q", "0.1", env=environment)

    def submit(self, script: str, *options: str, arguments: list[object], **variables: object) -> Job:
        path = f"{self.programs}:{os.environ['PATH']}"
        return self.slurm.submit(EXAMPLES / script, *options, arguments=arguments, PATH=path, **variables)

    def train(self, run: str, *options: str, epochs: int = EPOCHS) -> Job:
        """Two machines with two ranks each."""
        return self.submit("train.sbatch", *options, arguments=["--store", self.store, *self.arguments(run, epochs)])

    def arguments(self, run: str, epochs: int) -> list[object]:
        """What `shardtrain` gets, but for the place of the data."""
        arguments = ["--dataset", "digits", "--run", run, "--virtual-ranks", 12, "--epochs", epochs]
        arguments += ["--checkpoints", self.slurm.folder / "checkpoints", "--checkpoint-every", 200]
        return [*arguments, "--report", self._file(run, "report"), "--progress", self._file(run, "progress")]

    def _file(self, run: str, kind: str) -> Path:
        return self.slurm.folder / f"{run}.{kind}.json"

    def report(self, run: str) -> dict:
        return json.loads(self._file(run, "report").read_text())

    def steps(self, run: str) -> int:
        """How many steps of its present launch a run has reported."""
        try:
            return len(self._file(run, "progress").read_text().splitlines())
        except FileNotFoundError:
            return 0

    def trains(self, job: Job, run: str, before: int) -> None:
        """Waits until a launch of a job beyond number `before` has trained some steps."""
        until(f"run {run} trains", lambda: job.is_running() and job.restarts() >= before and self.steps(run) > 50)

    def forget_progress(self, run: str) -> None:
        self._file(run, "progress").unlink(missing_ok=True)


def test_in_the_page(_: Lab) -> None:
    page = (ROOT / "docs" / "how-to" / "slurm.md").read_text()
    for script in sorted(EXAMPLES.iterdir()):
        assert f"```bash\n{script.read_text()}```" in page, f"docs/how-to/slurm.md has another {script.name}"


def test_undisturbed(lab: Lab) -> str:
    job = lab.train("calm")
    job.completed()
    report = lab.report("calm")
    assert (report["world"], report["resumed_from"]) == (4, None), report
    assert job.restarts() == 0
    return f"{report['steps']} steps on 4 ranks of 2 machines, weights {report['weights_digest'][:12]}"


def same_weights(lab: Lab, run: str, undisturbed: str = "calm") -> str:
    report, calm = lab.report(run), lab.report(undisturbed)
    assert report["weights_digest"] == calm["weights_digest"], (report["weights_digest"], calm["weights_digest"])
    assert report["resumed_from"], "it did not continue from a checkpoint"
    return f"resumed from step {report['resumed_from']}, the same weights"


def test_signalled(lab: Lab) -> str:
    """SIGTERM as `--signal` and preemption send it, twice: the script requeues the job."""
    job = lab.train("stopped")
    for before in range(2):
        lab.trains(job, "stopped", before)
        lab.forget_progress("stopped")
        job.control("scancel", "--signal=TERM")
        until("the job is requeued", lambda: job.restarts() > before)
    job.completed()
    return f"requeued by its script, {job.restarts()} x; {same_weights(lab, 'stopped')}"


def test_time_limit(lab: Lab) -> str:
    """The real time limit of a minute, with a signal half a minute before it; one rank, which takes several times as long."""
    epochs = 2 * EPOCHS
    job = lab.train("limited", "--time=1", "--signal=TERM@30", "--nodes=1", "--ntasks-per-node=1", epochs=epochs)
    job.completed(launches=4)
    assert job.restarts() > 0, "the time limit was not met"
    lab.train("unlimited", epochs=epochs).completed()
    return f"requeued before its time limit, {job.restarts()} x; {same_weights(lab, 'limited', 'unlimited')}"


def test_requeued(lab: Lab) -> str:
    """An administrator requeues it, and a user cancels it and requeues it: its processes are killed."""
    job = lab.train("killed")
    lab.trains(job, "killed", 0)
    lab.forget_progress("killed")
    job.control("scontrol", "requeue")
    lab.trains(job, "killed", 1)
    lab.forget_progress("killed")
    job.control("scancel")
    until("the job is cancelled", lambda: job.field("JobState") == "CANCELLED")
    job.control("scontrol", "requeue")
    job.completed()
    return f"requeued {job.restarts()} x; {same_weights(lab, 'killed')}"


def test_nodes(lab: Lab) -> str | None:
    """Ranks that read through nodes of their job, which is requeued: nodes on the same machines, then on others."""
    with bucket(lab) as access:
        if access is None:
            return "skipped: no moto_server"
        lab.ingest("s3://data/nodes", **access)
        # The two machines share a disk here: one has the directory of a first node, the other that of a joined one.
        places = {"SHARDD_STORE": "s3://data/nodes", "SHARDD_CLUSTER": lab.slurm.folder / "cluster", "SHARDD_LOCAL": lab.slurm.folder / "local"}

        def submit(run: str, *options: str) -> Job:
            return lab.submit("nodes.sbatch", *options, arguments=lab.arguments(run, EPOCHS), **places, **access)

        job = submit("nodes", "--nodelist=n1,n2")
        lab.trains(job, "nodes", 0)
        lab.forget_progress("nodes")
        job.control("scancel", "--signal=TERM")
        until("the job is requeued", lambda: job.restarts() > 0)
        job.completed()
        before = same_weights(lab, "nodes")
        shutil.rmtree(lab.slurm.folder / "local")
        read = shards_read(lab)
        elsewhere = submit("elsewhere", "--nodelist=n2,n3")
        elsewhere.completed()
        report, calm = lab.report("elsewhere"), lab.report("calm")
        assert report["weights_digest"] == calm["weights_digest"], (report["weights_digest"], calm["weights_digest"])
        read = shards_read(lab) - read
    return f"{before}; on other machines the same, with {read} requests for shards"


def test_array(lab: Lab) -> str | None:
    """Requests for shards of one job with a cache of its own, and of three at once that share one."""
    with bucket(lab) as access:
        if access is None:
            return "skipped: no moto_server"
        lab.ingest("s3://data/store", "--shard-size", "8KiB", **access)

        def requests(name: str, jobs: str) -> int:
            before = shards_read(lab)
            arguments = ["--store", "s3://data/store", "--dataset", "digits", "--epochs", 2]
            options = [f"--array={jobs}", "--nodelist=n1", "--wait"]
            lab.submit("array.sbatch", *options, arguments=arguments, SHARDD_CACHE_DIR=lab.slurm.folder / name, **access)
            return shards_read(lab) - before

        one, three = requests("one", "0-0"), requests("three", "0-2")
    assert 0 < one == three, f"one job makes {one} requests for shards, and three make {three}"
    return f"one job makes {one} requests for shards, three make {three}"


@contextlib.contextmanager
def bucket(lab: Lab) -> Iterator[dict[str, str] | None]:
    """Variables by which all machines reach an empty bucket, if there is a server for it."""
    if not (moto := shutil.which("moto_server", path=os.environ.get("SHARDD_MOTO_PATH"))):
        yield None
        return
    address = f"{NETWORK}.254:16500"
    with open(lab.slurm.folder / "s3.log", "ab") as log:
        server = subprocess.Popen([moto, "-H", address.split(":")[0], "-p", address.split(":")[1]], stdout=log, stderr=log)
    try:
        request = urllib.request.Request(f"http://{address}/data", method="PUT")
        until("the S3 server", lambda: urllib.request.urlopen(request, timeout=5).read() is not None)
        yield {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "SHARDD_STORE_ENDPOINT": f"http://{address}"}
    finally:
        server.terminate()
        server.wait()


def shards_read(lab: Lab) -> int:
    return len(re.findall(r'"GET /data/\S+/shards/\S+\.arrow', (lab.slurm.folder / "s3.log").read_text()))


STORIES: dict[str, Callable[[Lab], str | None]] = {
    "the page has the scripts": test_in_the_page,
    "a job trains on the ranks that Slurm starts": test_undisturbed,
    "a job that gets SIGTERM twice is requeued and has the same weights": test_signalled,
    "a job that meets its time limit is requeued and has the same weights": test_time_limit,
    "a job reads through nodes on its machines, and has the same weights on others": test_nodes,
    "jobs of an array read each shard once for their machine": test_array,
    "a job that is requeued and cancelled by others has the same weights": test_requeued,
}


def main(programs: Path, words: list[str]) -> int:
    passed = failed = 0
    with Slurm() as slurm:
        lab = Lab(slurm, programs)
        for name, story in STORIES.items():
            # The weights of the first are those that the others are compared with.
            if words and story is not test_undisturbed and not any(word in name for word in words):
                continue
            began = time.monotonic()
            try:
                note = story(lab)
            except Exception as error:  # whatever is wrong, the others run
                failed += 1
                place = "" if isinstance(error, AssertionError) else f"\n{traceback.format_exc()}"
                print(f"FAILED {name}: {error}{place}", flush=True)
                if story is test_undisturbed:
                    break
            else:
                passed += 1
                print(f"ok     {name}{f': {note}' if note else ''} ({time.monotonic() - began:.0f} s)", flush=True)
        if failed:
            print(slurm.logs(), flush=True)
    print(f"{passed} passed, {failed} failed", flush=True)
    return int(failed > 0)


def stop(number: int, _: object) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    # A shell makes its background processes ignore SIGINT.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    sys.exit(main(Path(sys.argv[1]).resolve(), sys.argv[2:]))
