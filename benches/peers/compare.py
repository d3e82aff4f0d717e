"""Times the peers' writers and `shardctl ingest` on one directory of images, in turns, and prints a table and JSON.

A peer's seconds are those between its imports and its finished index (listing the files, starting and ending workers
included), so that what Python takes to start is not held against it; shardctl's are those of the whole process. Every
writer is given the same processors (the first `--cores` that this process may use), an empty directory on the same disk
and files that have been read before. Written bytes are counted: a run that lost a sample is an error.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
OURS = "shardctl ingest"
WAYS = {
    "MDSWriter, its own converter's way": ["write_mds.py", "converter"],
    "MDSWriter, parallel": ["write_mds.py", "parallel"],
    "LitData optimize, its README's way": ["write_litdata.py", "readme"],
    "LitData optimize, generator": ["write_litdata.py", "generator"],
}
# How many times as fast shardd means to be.
TARGETS = {"MDSWriter": 5.0, "LitData": 3.0}


def main():
    arguments = parse()
    allowed = sorted(os.sched_getaffinity(0))[: arguments.cores]
    os.sched_setaffinity(0, allowed)
    source = arguments.images.resolve()
    files = [path for path in source.glob("*/*/*") if path.is_file()]
    size = sum(len(path.read_bytes()) for path in files)
    print(f"{len(files):,} images, {size / 1e6:.1f} MB; {len(allowed)} of {os.cpu_count()} processors, {processor()}")

    runs = {way: [] for way in [*WAYS, OURS]}
    with tempfile.TemporaryDirectory(prefix="peers-", dir=arguments.scratch) as scratch:
        for number in range(arguments.rounds):
            for way in runs:
                run = one(way, arguments, source, Path(scratch), len(allowed), len(files))
                runs[way].append(run)
                print(f"  round {number + 1}: {way}: {run['seconds']:.2f} s", file=sys.stderr, flush=True)
    report(runs, len(files), arguments)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shardctl", type=Path, required=True, help="the binary to measure")
    parser.add_argument("--images", type=Path, required=True, help="directory with SPLIT/CLASS/IMAGE")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--memory", help="handed to shardctl ingest, such as 512MiB")
    parser.add_argument("--scratch", type=Path, help="where to write; the default is the system's directory")
    parser.add_argument("--json", type=Path, help="also write every run to this file")
    return parser.parse_args()


def one(way, arguments, source, scratch, cores, expected):
    """One run of one writer: its seconds, the seconds its processors worked, the load beforehand."""
    out, temporary = scratch / "out", scratch / "tmp"
    shutil.rmtree(out, ignore_errors=True)
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()  # nothing that an earlier run left is gone on with
    os.sync()  # what the last one left to write is not this one's business
    if way == OURS:
        command = [arguments.shardctl, "--json", "--store", out, "ingest", source, "--name", "images"]
        command += ["--threads", str(cores)] + (["--memory", arguments.memory] if arguments.memory else [])
    else:
        script, mode = WAYS[way]
        out.mkdir()
        command = [sys.executable, "-B", HERE / script, mode, source, out]
    load = os.getloadavg()[0]
    with tempfile.TemporaryFile("w+") as output, tempfile.TemporaryFile("w+") as errors:
        began = time.perf_counter()
        environment = {**os.environ, "TMPDIR": str(temporary)}
        process = subprocess.Popen(
            [str(part) for part in command], stdout=output, stderr=errors, env=environment
        )
        _, status, used = os.wait4(process.pid, 0)
        whole = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0), errors.seek(0)
        if process.returncode != 0:
            sys.exit(f"{way} failed:\n{errors.read()}")
        last = json.loads(output.read().strip().splitlines()[-1])
    if last["samples"] != expected:
        sys.exit(f"{way} wrote {last['samples']} of {expected} samples")
    seconds = whole if way == OURS else last["seconds"]
    return {"seconds": seconds, "process": whole, "cpu": used.ru_utime + used.ru_stime, "load": load}


def report(runs, count, arguments):
    median = {way: statistics.median(run["seconds"] for run in done) for way, done in runs.items()}
    print(f"\n{'median of ' + str(arguments.rounds):<38} {'seconds':>8} {'best':>7} {'samples/s':>10} {'CPU s':>7} {'of ours':>8}")
    for way, done in runs.items():
        cpu = statistics.median(run["cpu"] for run in done)
        best = min(run["seconds"] for run in done)
        line = f"{way:<38} {median[way]:>8.2f} {best:>7.2f} {count / median[way]:>10,.0f} {cpu:>7.2f} {median[way] / median[OURS]:>7.2f}x"
        target = next((target for name, target in TARGETS.items() if way.startswith(name)), None)
        print(line + (f"   (wanted: {target:.0f}x)" if target else ""))
    print("A peer's CPU seconds include its imports; its seconds do not.")
    if arguments.json:
        loads = [run["load"] for done in runs.values() for run in done]
        summary = {"images": count, "load": [min(loads), max(loads)], "median": median, "runs": runs}
        arguments.json.write_text(json.dumps(summary, indent=1) + "\n")


def processor():
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


if __name__ == "__main__":
    main()
