"""Shuffled epochs into PyTorch tensors: other people's loaders, ours, and bare loops, in turns, on the same rows.

Each system writes the rows of a kind in its own format (not timed), is tried with each of its settings (numbers of worker
processes) and then runs with the fastest in a process of its own. Rounds go through all systems, every other one backwards;
those that are not at their turn are stopped. A turn is whole epochs, for at least `--turn` seconds. Before the rounds a system
is timed from opening to the first batch and through the first epoch (from a bucket: with an empty cache),
after them its batches are checked row by row, and it resumes, in a fresh process, from a state taken in the
middle of an epoch. Prints a table per kind; `--json` keeps every single figure.
"""

import argparse
import contextlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import table
from bucket import bucket
from kinds import KINDS, make
from runner import Failed, Folders, Runner, prepare
from systems import LIMITS, SYSTEMS, system


def main():
    arguments = parse()
    # What was asked for, without the places of this machine.
    asked = {name: getattr(arguments, name) for name in ("kinds", "systems", "rounds", "turn", "rows")}
    with recording(arguments, asked=asked) as (note, lines):
        for letter in arguments.kinds:
            kind = KINDS[letter]
            kind = replace(kind, rows=int(arguments.rows.get(letter, kind.rows)))
            Session(arguments, kind, note).run()
            print(table.of_kind(kind, lines), flush=True)
    print(table.criteria(lines))


@contextlib.contextmanager
def recording(arguments, **facts):
    """Keeps to as many cores as was asked for; gives what notes a line in the file that was asked for, and the lines."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that nothing is left running
    allowed = sorted(os.sched_getaffinity(0))[: arguments.cores]
    os.sched_setaffinity(0, allowed)
    lines = []
    with open(arguments.json or os.devnull, "w") as file:

        def note(what, **values):
            line = {"what": what, **values}
            file.write(json.dumps(line) + "\n")
            file.flush()
            lines.append(line)

        note("machine", **machine(allowed), **facts)
        yield note, lines


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", default="ABCXE", help="letters, of " + "".join(KINDS))
    parser.add_argument("--systems", default=",".join(name for name in SYSTEMS if name not in LIMITS), help="names, with commas")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--turn", type=float, default=0.3, metavar="SECONDS")
    parser.add_argument("--rows", default="", metavar="KIND=ROWS,...", help="other numbers of rows than the kinds have")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--work", type=Path, required=True, help="where sources and formats are written; up to 8 GB for C")
    parser.add_argument("--keep", action="store_true", help="keep the formats for the next time")
    parser.add_argument("--calibrate", action="store_true", help="choose settings again")
    parser.add_argument("--data", type=Path, help="cifar10-jpeg.tar.gz, for kind B")
    parser.add_argument("--json", type=Path, help="write every figure to this file, a line of JSON each")
    arguments = parser.parse_args()
    arguments.rows = dict(pair.split("=") for pair in arguments.rows.split(",") if pair)
    arguments.systems = arguments.systems.split(",")
    if unknown := [name for name in arguments.systems if name not in SYSTEMS]:
        parser.error(f"no such system: {', '.join(unknown)}; there are {', '.join(SYSTEMS)}")
    if unknown := [letter for letter in [*arguments.kinds, *arguments.rows] if letter not in KINDS]:
        parser.error(f"no such kind: {', '.join(unknown)}; there are {', '.join(KINDS)}")
    return arguments


class Session:
    """All that is measured of one kind."""

    def __init__(self, arguments, kind, note):
        self.arguments, self.kind = arguments, kind
        self.folders = Folders(arguments.work, kind)
        self.note = lambda what, **values: note(what, kind=kind.letter, **values)
        self.systems = {}
        self.bucket = None

    def run(self):
        say(f"{self.kind.letter}: {self.kind.rows:,} {self.kind.title}")
        make(self.kind, self.folders.source, self.arguments.data)
        for name in self.arguments.systems:
            with self.trying(name):
                found = system(name)
                prepare(self.folders, self.folders.place(name, found, self.kind, None, None))
                self.systems[name] = found
        try:
            with bucket(self.folders.root) as self.bucket:
                self.measure()
        finally:
            if not self.arguments.keep:
                shutil.rmtree(self.folders.root)

    def measure(self):
        for name, found in list(self.systems.items()):
            if self.bucket and hasattr(found, "fill"):
                with self.trying(name):
                    try:
                        found.fill(self.folders.place(name, found, self.kind, None, self.bucket))
                    except subprocess.CalledProcessError as error:
                        raise Failed(f"the bucket could not be filled: {error}") from error
        settings = {}
        for name, found in list(self.systems.items()):
            with self.trying(name):
                if found.streams and not self.bucket:
                    raise Failed("no S3 server: neither SHARDD_S3S_FS nor SHARDD_PYTHON names one")
                settings[name] = self.calibrated(name, found)
        self.systems = {name: self.systems[name] for name in settings}
        runners = {}
        try:
            for name, setting in settings.items():
                with self.trying(name):
                    runners[name] = self.started(name, setting)
                    first = runners[name].ask("first")
                    ready = runners[name].ready
                    self.note("first", system=name, title=self.systems[name].title, setting=setting, **first, **ready)
                    runners[name].pause()
            self.rounds(runners)
            for name in list(runners):
                with self.trying(name):
                    self.checked(name, settings[name], runners)
        finally:
            for runner in runners.values():
                runner.end()

    def started(self, name, setting):
        """A process with an empty cache."""
        place = self.folders.place(name, self.systems[name], self.kind, setting, self.bucket)
        shutil.rmtree(place["cache"], ignore_errors=True)
        return Runner(self.folders, place)

    def calibrated(self, name, found):
        file = self.arguments.work / "settings.json"
        known = json.loads(file.read_text()) if file.exists() else {}
        key = f"{self.kind.letter}/{self.kind.rows}/{name}"
        if len(found.settings) == 1:
            return found.settings[0]
        if key not in known or self.arguments.calibrate:
            runner = self.started(name, found.settings[0])
            try:
                tried = {setting: runner.ask("attempt", setting, self.arguments.turn) for setting in found.settings}
            finally:
                runner.end()
            rates = {setting: told["samples"] / told["seconds"] for setting, told in tried.items()}
            self.note("settings", system=name, rates=list(rates.items()))
            known[key] = max(rates, key=rates.get)
            file.write_text(json.dumps(known, indent=1))
        return known[key]

    def rounds(self, runners):
        for number in range(self.arguments.rounds):
            names = list(runners)
            for name in names if number % 2 == 0 else reversed(names):
                with self.trying(name, runners):
                    told = runners[name].ask("epochs", self.arguments.turn)
                    runners[name].pause()
                    self.note("round", system=name, round=number, load=os.getloadavg()[0], **told)
            say(f"{self.kind.letter}: round {number + 1} of {self.arguments.rounds}")

    def checked(self, name, setting, runners):
        runner = runners[name]
        epochs = 2 if self.kind.rows >= 50_000 else 4
        self.note("check", system=name, **runner.ask("check", epochs))
        if not hasattr(self.systems[name], "resume"):
            return
        state = self.folders.root / f"{name}.state"
        runner.ask("half", str(state))
        runner.end()
        del runners[name]
        place = self.folders.place(name, self.systems[name], self.kind, setting, self.bucket)
        fresh = Runner(self.folders, place)  # with the cache that is there
        try:
            self.note("resume", system=name, **fresh.ask("resume", str(state)))
        finally:
            fresh.end()

    @contextlib.contextmanager
    def trying(self, name, runners=None):
        """A failure of a system is printed and noted, and the others continue."""
        began = time.perf_counter()
        try:
            yield
            say(f"  {self.kind.letter} {name}: {time.perf_counter() - began:.1f} s", end="\r")
        except (Failed, ImportError, OSError) as error:
            self.note("failed", system=name, reason=str(error))
            say(f"  {self.kind.letter} {name}: {error}")
            if runners:
                runners.pop(name).end()


def say(text, end="\n"):
    print(text, end=end if sys.stderr.isatty() else "\n", file=sys.stderr, flush=True)


def machine(allowed):
    model = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    return {
        "when": time.strftime("%Y-%m-%d %H:%M:%S"),
        "processor": model[0].split(":", 1)[1].strip() if model else platform.machine(),
        "processors": len(allowed),
        "of": os.cpu_count(),
        "memory_gb": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9,
        "system": platform.platform(),
        "python": platform.python_version(),
        "load": os.getloadavg()[0],
    }


if __name__ == "__main__":
    main()
