#!/usr/bin/env python3
"""Four ranks learn a text from two shardd nodes, each with its slices (ZeRO-2); one is killed (SIGKILL), and later another one comes.

The processes of the others stay: the training continues with three ranks from the checkpoint before, and with
four from the step at which the new one came. In the end its weights are compared with those of a training
that nothing happened to, and both losses are drawn. The script measures the time to continue beside the time
when all ranks are restarted.

    cargo build --release --bins
    trainer-integration/examples/stay.py --text tinyshakespeare.txt --out DIR

The arguments after `--` go to shardtrain. Needs nothing but Python. The exit status is 0 if both trainings
gave the same bits.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from elastic import BINARIES, children, draw, lines, shardctl, start_node

SETTINGS = ["--model", "gpt", "--layers", "2", "--heads", "2", "--hidden-size", "64", "--optimizer", "adamw", "--lr", "0.003"]
SETTINGS += ["--clip-grad-norm", "1", "--warmup-epochs", "0.1", "--virtual-ranks", "8", "--batch-size", "8", "--epochs", "1", "--zero", "2"]


class Launch:
    """A launcher of four ranks, and its output."""

    def __init__(self, launch: list, arguments: list, out: Path, name: str, to_end: list):
        self.progress, self.report, self.log = out / f"{name}.jsonl", out / f"{name}.json", out / f"{name}.log"
        command = [BINARIES / "shardtrain", "run", "--nproc", "4", *launch, "--", *arguments]
        command += ["--run", name, "--progress", self.progress, "--report", self.report]
        environment = {**os.environ, "RAYON_NUM_THREADS": "1"}
        self.process = subprocess.Popen(command, stderr=open(self.log, "wb"), env=environment)
        to_end.append(self.process)

    def until(self, is_so) -> float:
        """Waits for something to be so, and says when it was."""
        while not is_so():
            if self.process.poll() is not None:
                sys.exit(f"the training has ended: {self.log.read_text()}")
            time.sleep(0.005)
        return time.monotonic()

    def steps(self, count: int) -> None:
        self.until(lambda: lines(self.progress) >= count)

    def told(self) -> list[dict]:
        text = self.progress.read_text() if self.progress.exists() else ""
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def in_generation(self, generation: int) -> bool:
        """Whether a group has trained a step."""
        told = self.told()
        return bool(told) and told[-1]["generation"] >= generation

    def kill_one(self) -> float:
        pid = children(self.process.pid)[-1]
        print(f"SIGKILL to process {pid}, one of four", flush=True)
        os.kill(pid, signal.SIGKILL)
        return time.monotonic()

    def finish(self) -> dict:
        if self.process.wait() != 0:
            sys.exit(f"the training failed: {self.log.read_text()}")
        return json.loads(self.report.read_text())


def stay(arguments: list, kill_after: int, return_after: int, out: Path, to_end: list) -> tuple[dict, list, float]:
    """The training in which one is killed and one comes: its report, the events of its steps, and the seconds
    from the kill to the next step."""
    launch = Launch(["--elastic"], arguments, out, "stay", to_end)
    launch.steps(kill_after)
    killed = launch.kill_one()
    seconds = launch.until(lambda: launch.in_generation(2)) - killed
    launch.steps(kill_after + return_after)
    print("SIGUSR1 to the launcher: a rank comes", flush=True)
    launch.process.send_signal(signal.SIGUSR1)
    launch.until(lambda: launch.in_generation(3))
    return launch.finish(), launch.told(), seconds


def start_anew(arguments: list, kill_after: int, out: Path, to_end: list) -> float:
    """The seconds from a kill to the next step where all ranks are restarted."""
    launch = Launch([], arguments, out, "anew", to_end)
    launch.steps(kill_after)
    before = launch.progress.stat().st_ino
    launch.progress.rename(out / "anew-0.jsonl")
    killed = launch.kill_one()
    # The next world writes a file of its own.
    is_new = lambda: launch.progress.exists() and launch.progress.stat().st_ino != before
    seconds = launch.until(lambda: is_new() and lines(launch.progress) > 0) - killed
    launch.process.terminate()
    launch.process.wait()
    return seconds


def groups(log: Path) -> list[list[int]]:
    """The processes of each group, as the launcher says."""
    said = [line for line in log.read_text().splitlines() if ": group " in line and "processes " in line]
    return [[int(pid) for pid in line.split("processes ")[1].split()] for line in said]


def main() -> None:
    own, told = sys.argv[1:], []
    if "--" in own:
        own, told = own[: own.index("--")], own[own.index("--") + 1 :]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", required=True, help="what shardctl ingests")
    parser.add_argument("--take", help="which part of it, as in shardctl ingest --take")
    parser.add_argument("--out", required=True, type=Path, help="a folder that is made for nodes, reports and losses.svg")
    parser.add_argument("--kill-after", type=int, default=90, help="after how many steps a rank is killed")
    parser.add_argument("--return-after", type=int, default=80, help="after how many further ones another comes")
    options = parser.parse_args(own)
    out = options.out.absolute()
    out.mkdir(parents=True)
    to_end: list[subprocess.Popen] = []
    try:
        first = start_node(out, "n1", None, to_end)
        second = start_node(out, "n2", out / "n1" / "join-token", to_end)
        take = ["--take", options.take] if options.take else []
        shardctl(first, "ingest", "--name", "text", "--sequence-length", "65", *take, options.text)
        plan = shardctl(first, "partition", "--q", "0.1", "--partitions", "16", "text")["plan"]
        arguments = ["--server", f"{first},{second}", "--plan", plan, *SETTINGS, *told]
        whole = Launch([], arguments, out, "undisturbed", to_end)
        report = whole.finish()
        kept = lambda name: ["--checkpoints", out / f"kept-{name}", "--checkpoint-every", "20"]
        stayed, steps, seconds = stay([*arguments, *kept("stay")], options.kill_after, options.return_after, out, to_end)
        anew = start_anew([*arguments, *kept("anew")], options.kill_after, out, to_end)
    finally:
        for process in reversed(to_end):
            if process.poll() is None:
                process.terminate()
        for process in to_end:
            process.wait()
    number = lambda it: it["epoch"] * it["steps"] + it["step"]
    undisturbed = [(number(it), it["loss"]) for it in whole.told()]
    worlds = [[(number(it), it["loss"]) for it in steps if it["generation"] == generation] for generation in (1, 2, 3)]
    names = ["undisturbed, 4 ranks", "4 ranks", "3 ranks, after the kill", "4 ranks, one has come"]
    draw(out / "losses.svg", undisturbed, worlds, names)
    for pids, world in zip(groups(out / "stay.log"), worlds):
        print(f"processes {pids}: steps {world[0][0]} to {world[-1][0]}")
    for it in stayed["reformings"]:
        print(f"group {it['generation']}: {it['world_before']} ranks became {it['world']} after step {it['from_step']}, "
              f"continued after {it['to_step']} (from: {it['state']}), {it['seconds']:.2f} s between two steps")
    print(f"from the kill to the end of the next step: {seconds:.2f} s; all ranks restarted: {anew:.2f} s")
    for name, it in [("undisturbed", report), ("stayed", stayed)]:
        print(f"{name}: {it['world']} ranks at the end, {it['steps']} steps, loss {it['loss_per_epoch'][-1]:.6f}, weights {it['weights_digest']}")
    same = dict(undisturbed)
    differing = [step for world in worlds for step, loss in world if same[step] != loss]
    print(f"{len(differing)} losses differ from the undisturbed ones; drawn in {out / 'losses.svg'}")
    if differing or report["weights_digest"] != stayed["weights_digest"]:
        sys.exit("the trainings differ")


if __name__ == "__main__":
    main()
