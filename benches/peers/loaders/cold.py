"""Epochs that memory cannot hold: a control group with a quarter of the data as its limit, and nothing in the page cache.

A turn is a process of its own, which imports its packages and then moves into the group, so that the limit is
for what its loader allocates and for the pages that it reads. Before it the files are dropped from the page
cache (and looked at: a turn on files that are still there is an error); it opens them and reads one shuffled
epoch, or what of it is read in `--longest` seconds. Beside them run the limits of the disk, in the same group: a
sequential read of the same rows, and reads of single rows past the page cache. What can be had of a shuffled order is
the best of the latter, or the part of the sequential read that the memory has room for: each pass over the data gives
as many rows of the order as can be kept. Turns go through all systems, every other round backwards. Where no control
group can be made it says why, and the page cache is dropped before each turn but not limited.
"""

import argparse
import contextlib
import ctypes
import mmap
import os
import shutil
import statistics
from dataclasses import replace
from pathlib import Path

import numpy as np

from kinds import KINDS, make
from measure import recording, say
from runner import Failed, Folders, Runner, prepare
from systems import LIMITS, SYSTEMS, system

SEQUENTIAL, *RANDOM = LIMITS
DEFAULT = "from_numpy,torch_batched,torch_map,grain,hf_arrow,lance,mosaic,litdata,litdata_full,webdataset,shardd,shardd_blocked"
WANTED = 0.8


def main():
    arguments = parse()
    with recording(arguments) as (note, _):
        for letter in arguments.kinds:
            kind = replace(KINDS[letter], rows=(arguments.megabytes << 20) // KINDS[letter].row_bytes // 10 * 10)
            of_kind(kind, arguments, note)


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", default="BC", help="letters, of " + "".join(KINDS))
    parser.add_argument("--systems", default=DEFAULT, help="names, with commas")
    parser.add_argument("--megabytes", type=int, default=1024, help="size of the data; each format is as large")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--longest", type=float, default=10, metavar="SECONDS", help="of an epoch, in a turn")
    parser.add_argument("--workers", type=int, default=0, help="of systems that take any number")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--keep", action="store_true", help="keep the formats for the next time")
    parser.add_argument("--data", type=Path, help="cifar10-jpeg.tar.gz, for kind B")
    parser.add_argument("--json", type=Path, help="write every figure to this file, a line of JSON each")
    arguments = parser.parse_args()
    arguments.systems = [*LIMITS, *arguments.systems.split(",")]
    if unknown := [name for name in arguments.systems if name not in SYSTEMS]:
        parser.error(f"no such system: {', '.join(unknown)}; there are {', '.join(SYSTEMS)}")
    return arguments


def of_kind(kind, arguments, note):
    folders = Folders(arguments.work / "cold", kind)
    make(kind, folders.source, arguments.data)
    data_bytes = (folders.source / "x.bin").stat().st_size
    rates, costs, places, failed = {}, {}, {}, {}

    @contextlib.contextmanager
    def trying(name):
        try:
            yield
        except (Failed, ImportError, OSError) as error:
            failed[name] = str(error)
            note("failed", kind=kind.letter, system=name, reason=str(error))
            places.pop(name, None)

    def turn(place, members):
        runner = Runner(folders, place)
        try:
            if members:
                runner.ask("join", str(members))
            drop(folders.root)
            return runner.ask("first", arguments.longest)
        finally:
            runner.end()

    try:
        limit_bytes = data_bytes // 4
        with group(limit_bytes) as (members, told):
            say(f"{kind.letter}: {data_bytes / 1e6:,.0f} MB, {told}")
            note("group", kind=kind.letter, bytes=data_bytes, told=told)
            for name in arguments.systems:
                with trying(name):
                    found = system(name)
                    setting = arguments.workers if arguments.workers in found.settings else found.settings[0]
                    places[name] = folders.place(name, found, kind, setting, None)
                    prepare(folders, places[name])
            for number in range(arguments.rounds):
                names = list(places)
                for name in names if number % 2 == 0 else reversed(names):
                    with trying(name):
                        told_of = turn(places[name], members)
                        read = told_of["samples"] * data_bytes / kind.rows
                        rates.setdefault(name, []).append(read / told_of["seconds"] / 1e6)
                        costs.setdefault(name, []).append(told_of["cpu_s"] / read * 1e9)
                        note("round", kind=kind.letter, system=name, round=number, load=os.getloadavg()[0], **told_of)
                say(f"{kind.letter}: round {number + 1} of {arguments.rounds}")
    finally:
        if not arguments.keep:
            shutil.rmtree(folders.root)
    report(kind, rates, costs, failed, told, limit_bytes / data_bytes if members else None)


def report(kind, rates, costs, failed, told, held):
    print(f"\n**{kind.letter}: {kind.rows:,} {kind.title}, {told}**\n")
    print("| | MB/s | from - to | of sequential | CPU s of a GB, without workers |\n|---|--:|--:|--:|--:|")
    best = statistics.median(rates[SEQUENTIAL])
    for name, all_of in rates.items():
        median = statistics.median(all_of)
        cells = [system(name).title, f"{median:,.0f}", f"{min(all_of):,.0f} - {max(all_of):,.0f}", f"{median / best:.2f}"]
        print("| " + " | ".join([*cells, f"{statistics.median(costs[name]):.2f}"]) + " |")
    for name, reason in failed.items():
        print(f"\n- {name}: {reason}")
    limits = {system(name).title: statistics.median(rates[name]) for name in RANDOM if name in rates}
    if held:
        limits[f"{held:.2f} (memory / data) of the sequential read"] = held * best
    if limits:
        title = max(limits, key=limits.get)
        print(f"\nLimit of a shuffled order: {limits[title]:,.0f} MB/s ({title}), {limits[title] / best:.2f} of sequential.")
        for name in ("shardd", "shardd_blocked"):
            if name in rates:
                part = statistics.median(rates[name]) / limits[title]
                print(f"{system(name).title}: {part:.2f} of that; wanted: {WANTED}.")


@contextlib.contextmanager
def group(limit_bytes):
    """A control group below ours with that limit of memory: the file of its processes, and its kind. None
    where there can be none, and why."""
    reasons = []
    for below, limit in places():
        folder = below / f"loaders-{os.getpid()}"
        try:
            folder.mkdir()
        except OSError as error:
            reasons.append(f"{folder}: {error.strerror}")
            continue
        try:
            (folder / limit).write_text(str(limit_bytes))
        except OSError as error:
            reasons.append(f"{folder / limit}: {error.strerror}")
            folder.rmdir()
            continue
        try:
            yield folder / "cgroup.procs", f"a control group with a limit of {limit_bytes / 1e6:,.0f} MB ({limit})"
        finally:
            folder.rmdir()
        return
    yield None, "no control group, so the page cache is not limited: " + ("; ".join(reasons) or "none is mounted")


def places():
    """Where this process's control group of memory lies, and what a limit is called there: version 2, then 1."""
    mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        for _, mounted, kind, options, *_ in mounts:
            if kind == "cgroup2" and not controllers:
                yield Path(mounted + path), "memory.max"
            elif kind == "cgroup" and controllers == "memory" and "memory" in options.split(","):
                yield Path(mounted + path), "memory.limit_in_bytes"


def drop(folder):
    """Drops all files from the page cache, and sees that they are gone."""
    os.sync()
    there = total = 0
    for path in folder.rglob("*"):
        if not path.is_file() or not path.stat().st_size:
            continue
        with open(path, "rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            pages, all_of = resident(file)
            there, total = there + pages, total + all_of
    if there > total / 50:
        raise Failed(f"{there:,} of {total:,} pages stay in the page cache")


def resident(file):
    """How many pages of a file are in memory, and how many it has."""
    size = os.fstat(file.fileno()).st_size
    pages = -(-size // mmap.PAGESIZE)
    with mmap.mmap(file.fileno(), size, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE) as mapped:
        address = ctypes.c_char.from_buffer(mapped)
        states = (ctypes.c_ubyte * pages)()
        answer = ctypes.CDLL(None, use_errno=True).mincore(
            ctypes.c_void_p(ctypes.addressof(address)), ctypes.c_size_t(size), states
        )
        del address
        if answer:
            raise OSError(ctypes.get_errno(), "mincore")
    return int((np.frombuffer(states, dtype=np.uint8) & 1).sum()), pages


if __name__ == "__main__":
    main()
