#!/usr/bin/env python3
"""Four ranks train from two shardd nodes; one is killed (SIGKILL) on the way, and later another one.

The training continues with three ranks, then with two, each time as new processes from the checkpoint before
(stay.py shows processes that stay). In the end its weights are compared with those of a training that nothing
happened to, and both losses are drawn.

    cargo build --release --bins
    trainer-integration/examples/elastic.py --train DIR --test DIR --out DIR -- --image-size 16 --batch-size 8 --epochs 4

The arguments after `--` go to shardtrain. Needs nothing but Python. The exit status is 0 if both trainings
gave the same bits.
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

BINARIES = Path(os.environ.get("SHARDD_BIN", Path(__file__).resolve().parents[2] / "target/release"))


def start_node(out: Path, name: str, join: Path | None, to_end: list) -> str:
    """Starts a node, and says where it answers."""
    ready = out / f"{name}.ready"
    command = [BINARIES / "shardd", "serve", "--id", name, "--http", "127.0.0.1:0", "--quic", "127.0.0.1:0"]
    command += ["--data", out / name, "--store", out / "store", "--ready-file", ready]
    if join:
        command += ["--join", f"@{join}"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=open(out / f"{name}.log", "wb"))
    to_end.append(process)
    while not ready.exists():
        if process.poll() is not None:
            sys.exit(f"node {name} has ended: {(out / f'{name}.log').read_text()}")
        time.sleep(0.05)
    return next(word.rstrip(",") for word in ready.read_text().split() if "://" in word)


def shardctl(server: str, *arguments) -> dict:
    command = [BINARIES / "shardctl", "--server", server, "--json", *arguments]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    return json.loads(answer.stdout.decode().strip().splitlines()[-1])


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def train(arguments: list, kill_after: list[int], out: Path, name: str, to_end: list) -> dict:
    """Trains with four ranks; after a number of steps of each world its last rank is killed."""
    progress, report = out / f"{name}.jsonl", out / f"{name}.json"
    command = [BINARIES / "shardtrain", "run", "--nproc", "4", "--", *arguments]
    command += ["--run", name, "--progress", progress, "--report", report]
    environment = {**os.environ, "RAYON_NUM_THREADS": "1"}
    launcher = subprocess.Popen(command, stderr=open(out / f"{name}.log", "wb"), env=environment)
    to_end.append(launcher)
    for number, steps in enumerate(kill_after):
        while lines(progress) < steps and launcher.poll() is None:
            time.sleep(0.05)
        ranks = children(launcher.pid)
        print(f"{len(ranks)} ranks have trained {lines(progress)} steps: SIGKILL to one of them", flush=True)
        progress.rename(out / f"{name}-{number}.jsonl")
        os.kill(ranks[-1], signal.SIGKILL)
        # The next world writes a file of its own.
        while not progress.exists() and launcher.poll() is None:
            time.sleep(0.05)
    if launcher.wait() != 0:
        sys.exit(f"the training failed: {(out / f'{name}.log').read_text()}")
    return json.loads(report.read_text())


def losses(files: list[Path]) -> list[list[tuple[int, float]]]:
    """Of each world its (step, loss)."""
    worlds = []
    for file in files:
        steps = [json.loads(line) for line in file.read_text().splitlines() if line.endswith("}")]
        worlds.append([(it["epoch"] * it["steps"] + it["step"], it["loss"]) for it in steps])
    return worlds


AFTER_KILLS = ["undisturbed, 4 ranks", "4 ranks", "3 ranks, after the first kill", "2 ranks, after the second"]


def draw(path: Path, undisturbed: list, worlds: list, names: list[str] = AFTER_KILLS) -> None:
    """The means of 20 steps each, the undisturbed training above the other one's: where they are the same, one line covers the other."""
    width, height, margin = 760, 380, 50

    def smooth(steps):
        starts = range(0, max(len(steps) - 19, 1), 5)
        parts = [steps[start : start + 20] for start in starts]
        return [(part[len(part) // 2][0], sum(loss for _, loss in part) / len(part)) for part in parts if part]

    curves = [smooth(world) for world in [undisturbed, *worlds]]
    points = [point for curve in curves for point in curve]
    last, low, high = (
        max(step for step, _ in points), min(loss for _, loss in points), max(loss for _, loss in points)
    )
    x = lambda step: margin + step / last * (width - 2 * margin)
    y = lambda loss: height - margin - (loss - low) / (high - low) * (height - 2 * margin)
    svg = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for part in range(5):
        loss, step = low + (high - low) * part / 4, last * part // 4
        svg.append(f'<line x1="{margin}" x2="{width - margin}" y1="{y(loss):.1f}" y2="{y(loss):.1f}" stroke="#ddd"/>')
        svg.append(f'<text x="{margin - 6}" y="{y(loss) + 4:.1f}" text-anchor="end">{loss:.2f}</text>')
        svg.append(f'<text x="{x(step):.1f}" y="{height - margin + 18}" text-anchor="middle">{step}</text>')
    svg.append(f'<text x="{width / 2}" y="{height - 8}" text-anchor="middle">step</text>')
    svg.append(f'<text x="{margin}" y="20">loss, mean of 20 steps</text>')
    colours = ["#bbbbbb", "#1f77b4", "#ff7f0e", "#2ca02c"]
    for number, (curve, colour, name) in enumerate(zip(curves, colours, names)):
        path_of = " ".join(f"{x(step):.1f},{y(loss):.1f}" for step, loss in curve)
        thick = 7 if number == 0 else 2
        svg.append(f'<polyline points="{path_of}" fill="none" stroke="{colour}" stroke-width="{thick}"/>')
        top = 24 + 18 * number
        svg.append(f'<rect x="{width - 250}" y="{top}" width="18" height="{thick}" fill="{colour}"/>')
        svg.append(f'<text x="{width - 225}" y="{top + 7}">{name}</text>')
    path.write_text("\n".join([*svg, "</svg>"]) + "\n")


def main() -> None:
    own, told = sys.argv[1:], []
    if "--" in own:
        own, told = own[: own.index("--")], own[own.index("--") + 1 :]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", required=True, help="what shardctl ingests as the training set")
    parser.add_argument("--take", help="which part of it, as in shardctl ingest --take")
    parser.add_argument("--test", required=True, help="the same, as the test set")
    parser.add_argument("--out", required=True, type=Path, help="a folder that is made for nodes, reports and losses.svg")
    parser.add_argument("--q", default="0.1", help="share of the samples that is exchanged after each epoch")
    parser.add_argument("--kill-after", default="110,110", help="after how many steps of each world a rank is killed")
    options = parser.parse_args(own)
    out = options.out.absolute()
    out.mkdir(parents=True)
    to_end: list[subprocess.Popen] = []
    try:
        first = start_node(out, "n1", None, to_end)
        second = start_node(out, "n2", out / "n1" / "join-token", to_end)
        take = ["--take", options.take] if options.take else []
        shardctl(first, "ingest", "--name", "train", *take, options.train)
        shardctl(first, "ingest", "--name", "test", options.test)
        plan = shardctl(first, "partition", "--q", options.q, "--partitions", "16", "train")["plan"]
        arguments = ["--server", f"{first},{second}", "--plan", plan, "--test-dataset", "test"]
        arguments += ["--virtual-ranks", "16", *told]
        whole = train(arguments, [], out, "undisturbed", to_end)
        kept = ["--checkpoints", out / "kept", "--checkpoint-every", "40"]
        kill_after = [int(steps) for steps in options.kill_after.split(",")]
        killed = train([*arguments, *kept], kill_after, out, "killed", to_end)
    finally:
        for process in reversed(to_end):
            if process.poll() is None:
                process.terminate()
        for process in to_end:
            process.wait()
    pieces = [out / f"killed-{number}.jsonl" for number in range(len(kill_after))] + [out / "killed.jsonl"]
    [undisturbed], worlds = losses([out / "undisturbed.jsonl"]), losses(pieces)
    draw(out / "losses.svg", undisturbed, worlds)
    for name, report in [("undisturbed", whole), ("killed", killed)]:
        accuracy = report["test_accuracy"] * 100
        print(f"{name}: {report['world']} ranks at the end, {report['steps']} steps, loss "
              f"{report['loss_per_epoch'][-1]:.4f}, test accuracy {accuracy:.1f} %, weights {report['weights_digest']}")
    same = dict(undisturbed)
    differing = [step for world in worlds for step, loss in world if same[step] != loss]
    print(f"steps: {[f'{world[0][0]} to {world[-1][0]}' for world in worlds]}; "
          f"{len(differing)} of their losses differ from the undisturbed ones; drawn in {out / 'losses.svg'}")
    if differing or whole["weights_digest"] != killed["weights_digest"]:
        sys.exit("the trainings differ")


if __name__ == "__main__":
    main()
