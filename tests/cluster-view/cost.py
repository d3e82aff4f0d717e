"""What a console that is open costs a node: processor time and memory of an idle one, and the speed of its data path.

`run --cost` starts it. Where there are two processors or more, the node and its client have one, and Chromium has another: what
the browser itself takes of the machine is no cost of the node.
"""

import http.client
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

import cluster as c

# How long an idle node is looked at, and the data path in each state; and how often the states are compared.
IDLE_S = 60.0
READ_S = 6.0
ROUNDS = 7
RANGE = 64 << 10
CONNECTIONS = 2
TICKS = os.sysconf("SC_CLK_TCK")
PAGES = {"no page": "", "Overview open": "#/", "Nodes open": "#/nodes"}
STATES = ("no page", "its requests", "Chromium")


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def resident(pid: int) -> float:
    """In MiB."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / c.MIB


def pin(pid: int, processor: int) -> None:
    for thread in os.listdir(f"/proc/{pid}/task"):
        os.sched_setaffinity(int(thread), {processor})


class Page:
    """What Chromium shows."""

    def __init__(self, cluster: c.Cluster, node: str, processor: int | None) -> None:
        self.url = f"{cluster.http[node]}/"
        pinned = [] if processor is None else ["taskset", "-c", processor]
        command = [*pinned, "node", Path(__file__).with_name("page.mjs")]
        self.process = cluster.processes.start("page", command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def say(self, line: str) -> str:
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()
        if not (answer := self.process.stdout.readline()):
            raise c.Missing("Chromium shows no page")
        return answer

    def show(self, hash_: str) -> None:
        """A page of the console, or nothing for an empty text."""
        self.say(f"{self.url}{hash_}" if hash_ else "")

    def requests(self) -> list[str]:
        """The paths that it has asked for since it was shown."""
        return json.loads(self.say("requests"))


def requests_answered(url: str) -> float:
    """By the node since it started; this one counts, too."""
    text = c.get(f"{url}/metrics").decode()
    return sum(float(value) for value in re.findall(r"^shardd_http_requests_total\{[^}]*\} (\S+)$", text, re.M))


def idle(cluster: c.Cluster, page: Page) -> list[str]:
    """What nodes take while nothing is read; the requests that the Overview made meanwhile."""
    watched, other = "n2", "n3"
    rows, overview = [], []
    for name, hash_ in PAGES.items():
        page.show(hash_)
        pids = [cluster.nodes[node].pid for node in (watched, other)]
        before, asked, began = [cpu_s(pid) for pid in pids], requests_answered(cluster.http[watched]), time.monotonic()
        time.sleep(IDLE_S)
        minutes = (time.monotonic() - began) / 60
        overview = page.requests() if hash_ == "#/" else overview
        used = [(cpu_s(pid) - was) / minutes for pid, was in zip(pids, before, strict=True)]
        rows.append((name, used, [resident(pid) for pid in pids], (requests_answered(cluster.http[watched]) - asked - 1) / minutes))
    page.show("")
    print(f"\nidle nodes, {IDLE_S:.0f} s each; the page is that of {watched}, and {other} is another node")
    print(f"{'':16}{'CPU s/min ' + watched:>16}{'CPU s/min ' + other:>16}{'RSS MiB ' + watched:>16}{'RSS MiB ' + other:>16}{'requests/min':>16}")
    for name, used, memory, asked in rows:
        print(f"{name:16}{used[0]:16.2f}{used[1]:16.2f}{memory[0]:16.1f}{memory[1]:16.1f}{asked:16.0f}", flush=True)
    return overview


def read_ranges(url: str, shards: list[tuple[str, int]], seconds: float) -> int:
    """Reads ranges of shards for a time; how many."""
    host, _, port = url.removeprefix("http://").partition(":")
    end, counts, errors = time.monotonic() + seconds, [0] * CONNECTIONS, []

    def read(number: int) -> None:
        connection = http.client.HTTPConnection(host, int(port), timeout=30)
        at = number
        try:
            while time.monotonic() < end:
                shard, size = shards[at % len(shards)]
                start = at * 7919 * 4096 % max(1, size - RANGE)
                connection.request("GET", f"/v1/shards/{shard}", headers={"range": f"bytes={start}-{start + RANGE - 1}"})
                answer = connection.getresponse()
                if len(answer.read()) == 0 or answer.status != 206:
                    raise OSError(f"a range of {shard}: {answer.status}")
                counts[number] += 1
                at += CONNECTIONS
        except (OSError, http.client.HTTPException) as error:
            errors.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=read, args=(number,)) for number in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return sum(counts)


def ask(url: str, paths: list[str], stop: threading.Event) -> None:
    """Makes the requests of a minute of a page, evenly, until `stop`: as a page on another machine does."""
    at = 0
    while not stop.wait(IDLE_S / max(1, len(paths))):
        c.get(url + paths[at % len(paths)])
        at += 1


def data_path(cluster: c.Cluster, page: Page, overview: list[str]) -> None:
    url, pid = cluster.http["n2"], cluster.nodes["n2"].pid
    shards = [(path.stem, path.stat().st_size) for path in sorted((cluster.store / "shards").rglob("*.arrow"))]
    read_ranges(url, shards, 2.0)

    def measured(state: str) -> tuple[float, float]:
        """Requests per second, and CPU milliseconds of the node for each."""
        stop = threading.Event()
        asking = threading.Thread(target=ask, args=(url, overview, stop))
        page.show("#/" if state == "Chromium" else "")
        if state == "its requests":
            asking.start()
        before, began = cpu_s(pid), time.monotonic()
        count = read_ranges(url, shards, READ_S)
        found = count / (time.monotonic() - began), 1000 * (cpu_s(pid) - before) / count
        stop.set()
        if asking.ident is not None:
            asking.join()
        return found

    print(f"\nranges of {RANGE >> 10} KiB of shards by HTTP from n2, {READ_S:.0f} s each, {CONNECTIONS} connections: requests/s, CPU ms of n2 for each")
    print("its requests: those of an open Overview, as from another machine; Chromium: an open Overview in Chromium on this machine")
    print("round   " + "".join(f"{state:>24}" for state in STATES))
    rounds: list[dict[str, tuple[float, float]]] = []
    for number in range(ROUNDS):
        # Each state is first, second and last in turn.
        order = STATES[number % len(STATES) :] + STATES[: number % len(STATES)]
        rounds.append({state: measured(state) for state in order})
        print(f"{number + 1:<8}" + "".join(f"{rounds[-1][state][0]:16.0f}{rounds[-1][state][1]:8.3f}" for state in STATES), flush=True)
    for state in STATES[1:]:
        for index, what in enumerate(("requests per second", "CPU time per request")):
            ratios = [one[state][index] / one[STATES[0]][index] for one in rounds]
            print(f"{state} to {STATES[0]}, {what}: median {statistics.median(ratios):.3f}, {min(ratios):.3f} to {max(ratios):.3f}")


def measure(programs: Path) -> None:
    for name in ("shardd", "shardctl", "shardtrain"):
        size = (programs / name).stat().st_size if (programs / name).exists() else 0
        print(f"{name:16}{size / c.MIB:10.1f} MiB")
    processors = sorted(os.sched_getaffinity(0))
    own, others = (processors[0], processors[1]) if len(processors) > 1 else (None, None)
    with c.Cluster(programs) as cluster:
        cluster.start_nodes()
        cluster.make_plan()
        page = Page(cluster, "n2", others)
        overview = idle(cluster, page)
        if own is not None:
            pin(cluster.nodes["n2"].pid, own)
            pin(os.getpid(), own)
        data_path(cluster, page, overview)


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    if os.environ.get("SHARDD_HAS_CHROMIUM") != "1":
        print("skipped: no Chromium or Node.js; the cost of a page is not measured\n0 passed, 0 failed")
        sys.exit(0)
    measure(Path(sys.argv[1]))
    print("1 passed, 0 failed")
