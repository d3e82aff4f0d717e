"""Batches of 64 pictures by several loaders with two threads or worker processes each, in turns, on the same pictures.

Kinds: "jpeg" (RandomResizedCrop of 224, flip, normalised float32) and "raw" (RandomCrop of 224 from 256, flip, uint8). Each
contestant is a process of its own that has read one epoch before the rounds. Rounds go through all, every other one backwards; those
that are not at their turn are stopped. A turn is whole epochs, for at least --turn seconds. The limits of limits.c have turns, too.
Prints a table per kind, with the cores that other programs used meanwhile; --json keeps each figure.
"""

import argparse
import contextlib
import json
import os
import platform
import select
import shutil
import signal
import statistics
import subprocess
import sys
import time
from pathlib import Path

import photographs
from child import TICKS
from contestants import CONTESTANTS, RAW

HERE = Path(__file__).parent
LIMIT = 300  # seconds for an answer
TITLES = {"jpeg": "libjpeg-turbo alone: full decode, one thread", "raw": "memcpy of as many bytes, two threads"}
# A load, and a number of cores in use by others, that disturb little.
QUIET, UNUSED = 0.5, 0.1


class Failed(Exception):
    """A contestant cannot carry out a request."""


class Runner:
    """A contestant's process."""

    def __init__(self, place, log):
        self.read, write = os.pipe()
        command = [sys.executable, "-B", HERE / "child.py", "measure", json.dumps({**place, "answers": write})]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=log, stderr=log, pass_fds=[write], start_new_session=True
        )
        os.close(write)
        self.rest = b""

    def ask(self, verb, *arguments):
        self.signal(signal.SIGCONT)
        self.process.stdin.write((json.dumps([verb, *arguments]) + "\n").encode())
        self.process.stdin.flush()
        return self.answer()

    def answer(self):
        while b"\n" not in self.rest:
            if not select.select([self.read], [], [], LIMIT)[0]:
                raise Failed(f"no answer in {LIMIT} s")
            read = os.read(self.read, 65536)
            if not read:
                raise Failed("it died; its log has the reason")
            self.rest += read
        line, self.rest = self.rest.split(b"\n", 1)
        value = json.loads(line)
        self.signal(signal.SIGSTOP)  # else it reads ahead in the turns of others
        if "error" in value:
            raise Failed(value["error"])
        return value

    def signal(self, number):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, number)

    def end(self):
        self.signal(signal.SIGKILL)  # with its workers
        self.process.wait()
        self.process.stdin.close()
        os.close(self.read)


def main():
    arguments = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    work = arguments.work
    allowed = sorted(os.sched_getaffinity(0))[:2]
    os.sched_setaffinity(0, allowed)
    about = photographs.make(work / "wheels", work / "pictures", arguments.pictures)
    lines, patience = [], Patience(60 * arguments.wait)
    with open(arguments.json or os.devnull, "w") as file:

        def note(what, **values):
            lines.append({"what": what, **values})
            file.write(json.dumps(lines[-1]) + "\n")
            file.flush()

        note("machine", **machine(allowed), rounds=arguments.rounds, turn=arguments.turn, pictures=about)
        for kind in arguments.kinds.split(","):
            session(arguments, kind, note, patience)
            print(table(kind, lines), flush=True)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", default="jpeg,raw")
    parser.add_argument("--contestants", default=",".join(CONTESTANTS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--turn", type=float, default=2, metavar="SECONDS")
    parser.add_argument("--pictures", type=int, default=2000)
    parser.add_argument("--wait", type=float, default=0, metavar="MINUTES", help="wait for idle cores, and repeat turns that other programs disturb, for at most this long")
    parser.add_argument("--work", type=Path, required=True, help="where pictures and formats are written, 2 GB")
    parser.add_argument("--json", type=Path, help="write each figure to this file, a line of JSON each")
    arguments = parser.parse_args()
    if unknown := set(arguments.contestants.split(",")) - set(CONTESTANTS):
        parser.error(f"no contestant {', '.join(sorted(unknown))}; there are {', '.join(CONTESTANTS)}")
    return arguments


def session(arguments, kind, note, patience):
    """All that is measured of a kind."""
    work, runners = arguments.work, {}
    names = [name for name in arguments.contestants.split(",") if kind in CONTESTANTS[name].kinds]

    @contextlib.contextmanager
    def trying(name):
        try:
            yield
        except Failed as error:
            note("failed", kind=kind, contestant=name, reason=str(error))
            say(f"{kind} {name}: {error}")
            if name in runners:
                runners.pop(name).end()

    try:
        for name in names:
            with trying(name), open(work / f"{name}.log", "ab") as log:
                began = time.perf_counter()
                place = prepared(arguments, name, kind, log)
                runners[name] = Runner(place, log)
                first = runners[name].answer()
                title = CONTESTANTS[name].title
                note("first", kind=kind, contestant=name, title=title if kind == "jpeg" else title.split(",")[0], **first)
                note("check", kind=kind, contestant=name, **runners[name].ask("check", 2))
                say(f"{kind} {name}: ready in {time.perf_counter() - began:.1f} s")
        note("begun", kind=kind, load=os.getloadavg()[0])
        for number in range(arguments.rounds):
            turns = ["limit", *runners]
            for name in turns if number % 2 == 0 else reversed(turns):
                with trying(name):
                    turn = Limit(arguments, kind) if name == "limit" else runners[name]
                    while True:
                        patience.wait(is_unused)
                        values = watched(turn, arguments.turn)
                        if values["others"] <= UNUSED or patience.left <= 0:
                            break
                        note("disturbed", kind=kind, contestant=name, round=number, **values)
                    note("round", kind=kind, contestant=name, round=number, load=os.getloadavg()[0], **values)
            say(f"{kind}: round {number + 1} of {arguments.rounds}")
    finally:
        for runner in runners.values():
            runner.end()


def watched(turn, seconds):
    """What a turn gives, and the cores that others used meanwhile."""
    busy, began = busy_seconds(), time.perf_counter()
    values = turn.ask("epochs", seconds)
    busy, seconds = busy_seconds() - busy, time.perf_counter() - began
    return {"others": round(max(0.0, busy - values["cpu_s"]) / seconds, 3), **values}


def prepared(arguments, name, kind, log):
    """Where a contestant finds its pictures, which are written unless that was done."""
    folder = arguments.work / "formats" / name
    place = {
        "contestant": name,
        "kind": kind,
        "pictures": str(arguments.work / "pictures"),
        "count": arguments.pictures,
        "folder": str(folder),
    }
    done = folder.with_suffix(".done")
    if not done.exists() or done.read_text() != str(arguments.pictures):
        shutil.rmtree(folder, ignore_errors=True)
        if subprocess.run([sys.executable, "-B", HERE / "child.py", "prepare", json.dumps(place)], stdout=log, stderr=log).returncode:
            raise Failed(f"its format is not written, see {log.name}")
        done.write_text(str(arguments.pictures))
    return place


class Limit:
    """limits.c, asked as a contestant is."""

    def __init__(self, arguments, kind):
        pictures, self.input = arguments.work / "pictures", ""
        self.program, self.verb, self.rest = arguments.work / "limits", "copy", [pictures / "raw.bin", str(RAW * RAW * 3)]
        if kind == "jpeg":
            self.verb, self.rest = "decode", []
            self.input = "".join(f"{file}\n" for file in sorted((pictures / "jpeg").glob("*.jpg"))[: arguments.pictures])

    def ask(self, _verb, seconds):
        command = [self.program, self.verb, str(seconds), *self.rest]
        return json.loads(subprocess.run(command, input=self.input, check=True, capture_output=True, text=True).stdout)


def table(kind, lines):
    """Medians of rounds, and quartiles."""
    rounds, titles, checks, load = {}, {"limit": TITLES[kind]}, {}, 0
    for line in lines:
        if line.get("kind") != kind:
            continue
        if line["what"] == "round":
            rounds.setdefault(line["contestant"], []).append(line)
        elif line["what"] == "first":
            newest = next(iter(line["versions"].values()))
            titles[line["contestant"]] = f"{line['title']} ({newest})"
        elif line["what"] == "begun":
            load = line["load"]
        elif line["what"] == "check":
            checks[line["contestant"]] = line
    ours = {line["round"]: line["samples"] / line["seconds"] for line in rounds.get("shardd", [])}
    by_cpu = {name: [line["samples"] / line["cpu_s"] for line in of] for name, of in rounds.items()}
    most = statistics.median(by_cpu["limit"])
    rows = [
        f"\n**{kind}**, {len(rounds['limit'])} rounds. {quiet(load, [line['others'] for of in rounds.values() for line in of])}\n",
        "| | pictures/s | quartiles | shardd is | pictures per CPU second | quartiles | of the limit | mean | std |",
        "|---|--:|--:|--:|--:|--:|--:|--:|--:|",
    ]
    for name, of in sorted(rounds.items(), key=lambda item: (item[0] != "limit", -statistics.median(by_cpu[item[0]]))):
        rates = [line["samples"] / line["seconds"] for line in of]
        times = [ours[line["round"]] / rate for line, rate in zip(of, rates) if line["round"] in ours]
        check = checks.get(name)
        cells = [
            titles[name],
            f"{statistics.median(rates):,.0f}",
            quartiles(rates),
            f"{statistics.median(times):.2f} times" if times and name not in ("limit", "shardd") else "",
            f"{statistics.median(by_cpu[name]):,.0f}",
            quartiles(by_cpu[name]),
            f"{statistics.median(by_cpu[name]) / most:.2f}",
            *(" ".join(f"{value:.3g}" for value in check[which]) if check else "" for which in ("mean", "std")),
        ]
        rows.append(f"| {' | '.join(cells)} |")
    failures = [f"- {line['contestant']}: {line['reason']}" for line in lines if line["what"] == "failed" and line["kind"] == kind]
    return "\n".join([*rows, *differences(checks), *(["\nNot measured, or not all of it:\n", *failures] if failures else [])])


def quartiles(values):
    low, _, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else (values[0],) * 3
    return f"{low:,.0f} - {high:,.0f}"


def quiet(load, others):
    higher = "" if load < QUIET else f", which is above {QUIET}"
    disturbed = sum(cores > UNUSED for cores in others)
    return (
        f"Load before them {load:.1f}{higher}. Other programs used {statistics.median(others):.2f} cores in the median turn, "
        f"and more than {UNUSED} in {disturbed} of {len(others)} turns."
    )


def differences(checks):
    """Whether contestants have the same pictures: the largest difference from the medians over them, in standard deviations."""
    if not checks:
        return []
    middle = {which: [statistics.median(check[which][channel] for check in checks.values()) for channel in range(3)] for which in ("mean", "std")}
    found = ["", "Largest difference from the median of all, mean and standard deviation, in standard deviations:"]
    for name, check in checks.items():
        off = {which: max(abs(check[which][at] - middle[which][at]) / middle["std"][at] for at in range(3)) for which in ("mean", "std")}
        found.append(f"- {name}: {off['mean']:.3f}, {off['std']:.3f}")
    return found


class Patience:
    """Seconds to wait for other programs, in all."""

    def __init__(self, seconds):
        self.ends = time.monotonic() + seconds

    @property
    def left(self):
        return self.ends - time.monotonic()

    def wait(self, is_quiet):
        while self.left > 0 and not is_quiet():
            pass


def is_unused():
    """Whether others leave the cores alone for a second. The load will not do: it counts the turns, too."""
    before = busy_seconds()
    time.sleep(1)
    return busy_seconds() - before < UNUSED


def busy_seconds():
    """CPU seconds of all programs since boot."""
    user, nice, system, _, _, irq, softirq = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:8])
    return (user + nice + system + irq + softirq) / TICKS


def machine(allowed):
    model = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "when": time.strftime("%Y-%m-%d %H:%M:%S"),
        "processor": model[0].split(":", 1)[1].strip() if model else platform.machine(),
        "processors": len(allowed),
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9, 1),
        "python": platform.python_version(),
        "load": os.getloadavg()[0],
    }


def say(text):
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
