"""The story: a healthy training, three faults at once, and a node that dies; and what people see of each. `run` starts it."""

import fcntl
import json
import os
import re
import select
import shutil
import signal
import struct
import subprocess
import sys
import termios
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import cluster as c
import monitoring as m
import views as v

HERE = Path(__file__).parent
# How long nothing happens, as evaluations of the rules: in it, each alert could have fired.
HEALTHY = 60
# How long another program takes to fill the small disk, in seconds.
FILLING = 60.0


class Checks:
    """What passed and what failed so far."""

    def __init__(self) -> None:
        self.passed = self.failed = 0
        self.began = time.monotonic()

    def run(self, name: str, check: Callable[[], object]) -> None:
        """Runs one check. Its result is printed beside its name."""
        try:
            note = check()
        except Exception as error:  # whatever is wrong, the other checks run
            self.failed += 1
            place = "" if isinstance(error, (c.Missing, AssertionError)) else f"\n{traceback.format_exc()}"
            print(f"FAILED {name}: {error}{place}", flush=True)
        else:
            self.passed += 1
            print(f"ok     {name}{f': {note}' if note else ''} (at {time.monotonic() - self.began:.0f} s)", flush=True)

    def add(self, output: str, status: int, name: str) -> None:
        """Adds the checks of another program, whose last line is `N passed, N failed`."""
        lines = output.strip().splitlines() or [""]
        counts = re.fullmatch(r"(\d+) passed, (\d+) failed", lines[-1])
        print("\n".join(lines[:-1] if counts else lines), flush=True)
        self.passed += int(counts[1]) if counts else 0
        self.failed += int(counts[2]) if counts else 0
        if status != 0 and not (counts and int(counts[2])):
            self.failed += 1
            print(f"FAILED {name} ended with status {status}", flush=True)


def skip(what: str) -> None:
    print(f"skipped: {what}", flush=True)


def browser(cluster: c.Cluster, name: str, *command: object) -> subprocess.Popen:
    """A script of Node.js, with a pipe for its output."""
    return cluster.processes.start(name, ["node", *command], stdout=subprocess.PIPE, text=True)


def findings(cluster: c.Cluster, node: str = "n2") -> list[dict]:
    return c.get_json(f"{cluster.http[node]}/v1/overview")["findings"]


def finding(cluster: c.Cluster, kind: str, **about: object) -> str:
    """Waits for a finding about a node or a rank."""

    def found() -> dict | None:
        return next((one for one in findings(cluster) if one["kind"] == kind and about.items() <= one.items()), None)

    try:
        return c.until(f"a finding {kind} about {about}", found)["cause"]
    except c.Missing as error:
        seen = [{key: one.get(key) for key in ("kind", "node", "rank", "cause")} for one in findings(cluster)]
        raise c.Missing(f"{error}; there are {json.dumps(seen, indent=1)}") from None


def is_read(cluster: c.Cluster, ranks: list[subprocess.Popen]) -> dict:
    """The run, once all ranks of it report where their time goes."""

    def run() -> dict | None:
        for rank, process in enumerate(ranks):
            if process.poll() is not None:
                raise c.Missing(f"rank {rank} has ended:\n{cluster.processes.log(f'rank-{rank}')}")
        runs = c.get_json(f"{cluster.http['n2']}/v1/overview")["runs"]
        return runs[0] if runs and len(runs[0]["readers"]) == len(ranks) else None

    return c.until("all ranks report", run)


def expect(is_so: bool, what: object) -> None:
    if not is_so:
        raise AssertionError(what)


# --- the parts of the story ------------------------------------------------------------------------------------------------


def healthy(checks: Checks, cluster: c.Cluster, prometheus: m.Prometheus, watcher: m.Watcher) -> None:
    checks.run("all targets are up", lambda: c.until("all are", lambda: prometheus.targets_up() == list(c.NODES)) and None)

    def recorded() -> None:
        # The ratio of requests to the store needs some of them; a run that is in its caches has none.
        for name in m.recorded_names():
            c.until(f"{name} has series", lambda: prometheus.query(f"{{__name__={json.dumps(name)}}}"))

    checks.run("each recording rule has series", recorded)

    def nothing_fires() -> str:
        evaluated = 'count_over_time(run:shardd_rank_wait_seconds:max_rate5m{run="vit-b16"}[10m])'
        c.until(f"the rules were evaluated {HEALTHY} times", lambda: prometheus.value(evaluated) >= HEALTHY)
        expect(watcher.bad() == [], watcher.bad())
        return f"{HEALTHY} evaluations, {HEALTHY * m.FACTOR / 60:.0f} minutes of the rules as they are"

    checks.run("no alert of severity warning or critical fires while all is well", nothing_fires)


def quiet(views: v.Views) -> str:
    c.until("there are views", lambda: len(views.seen) >= 5)
    wrong = v.faults_in(views.seen)
    expect(wrong == [], "; ".join(wrong))
    return f"{len(views.seen)} views"


def faults(checks: Checks, cluster: c.Cluster) -> None:
    began = time.monotonic()
    cluster.slow_switch.touch()
    places = cluster.corrupt("n1")
    print(f"       now rank {c.STRAGGLER} is slow, {places} places of n1's cache have wrong bytes", flush=True)
    if cluster.has_small_disk:
        cluster.fill_small_disk(FILLING)
        print(f"       and another program fills the disk of n4 within {FILLING:.0f} s", flush=True)
        checks.run(
            "the overview names the disk of n4 before it is full",
            lambda: finding(cluster, "disk_fills_up", node="n4") and f"{cluster.free_share():.0%} free after {time.monotonic() - began:.0f} s",
        )
    checks.run("the overview names the corrupt disk of n1", lambda: finding(cluster, "corrupt_grains", node="n1"))
    checks.run("the overview names the straggler, and the stage", lambda: finding(cluster, "straggler", rank=c.STRAGGLER, run=c.RUN))
    if cluster.has_small_disk:
        checks.run(
            "the overview says that the disk of n4 is nearly full",
            lambda: c.until(
                "it is",
                lambda: next((one["title"] for one in findings(cluster) if one.get("node") == "n4" and "nearly full" in one["title"]), None),
            ),
        )


def at_its_node(views: v.Views, first: int) -> str:
    """A rank reports to several nodes. Its own is the one where to look, in every view from one on."""
    own, named = c.NODE_OF_RANK[c.STRAGGLER], v.nodes_of(views.seen[first:], c.STRAGGLER)
    expect(set(named) == {own}, f"the rank reads through {own}; views name {named}")
    return f"{own} in {named[own]} views"


def titles(cluster: c.Cluster) -> list[str]:
    """Regular expressions for the titles of the three faults."""
    disk = [r"disk of node n4 (is nearly full|fills up)"] if cluster.has_small_disk else []
    return [r"disk of node n1 corrupts data", *disk, rf"[Rr]ank {c.STRAGGLER} of {c.RUN}.*Python code"]


def causes(cluster: c.Cluster) -> list[str]:
    """The titles, each with its cause, as texts of the page, `top --once` and alerts have them."""
    corrupts, *fills, waits = titles(cluster)
    return [rf"{corrupts}.*did\s+not\s+match", *(rf"{one}.*MiB of \S+.MiB\s+are\s+free" for one in fills), rf"{waits}.*collate_fn"]


def in_terminal(cluster: c.Cluster) -> None:
    frame = cluster.shardctl("top", "--once", node="n2").replace("\u00a0", " ")
    for words in causes(cluster):
        expect(re.search(words, frame, re.S) is not None, f"{words} is not in\n{frame}")
    verdict = " ".join(frame.split("\n", 3)[:2])
    expect(f"rank {c.STRAGGLER}" in verdict and "python" in verdict.lower(), f"the first lines do not name the straggler: {verdict}")


def top_ends(cluster: c.Cluster) -> None:
    """`shardctl top` ends with its terminal, which sends no signal to a process of another session."""
    ours, its = os.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 110, 0, 0))
    command = [cluster.programs / "shardctl", "--server", cluster.http["n2"], "top"]
    top = cluster.processes.start("top", command, stdin=its, stdout=its, env={**os.environ, "TERM": "xterm"})
    os.close(its)
    seen = b""
    while b"Findings" not in seen:
        expect(select.select([ours], [], [], c.PATIENCE)[0] != [], f"top shows no findings, but {seen}")
        seen += os.read(ours, 65536)
    os.close(ours)
    expect((status := top.wait(c.PATIENCE)) == 129, f"status {status}")


def top_in_tmux(cluster: c.Cluster, out: Path) -> str:
    """Writes a frame of `shardctl top` in a terminal of 110 columns and 42 lines."""
    tmux = ["tmux", "-u", "-S", str(cluster.folder / "tmux"), "-f", "/dev/null"]
    command = [str(cluster.programs / "shardctl"), "--server", cluster.http["n2"], "top"]
    subprocess.run([*tmux, "new-session", "-d", "-x", "110", "-y", "42", *command], check=True, env={**os.environ, "NO_COLOR": "1"})
    try:

        def frame() -> str | None:
            seen = subprocess.run([*tmux, "capture-pane", "-p"], check=True, capture_output=True, text=True).stdout.replace("\u00a0", " ")
            return seen if all(re.search(words, seen) for words in titles(cluster)) else None

        out.write_text(c.until("a frame names each fault", frame))
    finally:
        subprocess.run([*tmux, "kill-server"], check=False)
    return out.name


def continues(cluster: c.Cluster, ranks: list[subprocess.Popen], first: int) -> str:
    """A whole epoch after the faults of epoch `first`, no rank has met a wrong byte: each compares every row that it reads."""
    now = c.until("the next epoch but one begins", lambda: (run := is_read(cluster, ranks))["epoch"] >= first + 2 and run)
    return f"epoch {first} to {now['epoch']}"


def pages(checks: Checks, cluster: c.Cluster) -> None:
    url = cluster.http["n2"]
    first = browser(cluster, "first-screen", HERE / "first-screen.mjs", f"{url}/", *causes(cluster))
    checks.add(first.communicate()[0], first.returncode, "first-screen.mjs")
    every = browser(cluster, "console-tests", c.ROOT / "tests" / "console" / "tests.mjs", "--node", url)
    checks.add(every.communicate()[0], every.returncode, "tests/console/tests.mjs --node")


def alerts(checks: Checks, cluster: c.Cluster, prometheus: m.Prometheus, watcher: m.Watcher, began: float) -> None:
    def fires(name: str, **labels: str) -> str:
        one = c.until(f"{name} {labels} fires", lambda: watcher.named(name, **labels))[0]
        late = one["at"] - began
        return f"{one['text']['summary']} {late:.0f} s after the fault, {late * m.FACTOR / 60:.0f} minutes of the rules as they are"

    def fires_in_time(severity: str) -> str:
        fired = c.until("it fires", lambda: watcher.named("SharddDiskFillsUp", instance="n4", directory="cache", severity=severity))[0]
        expect(fired["free"] > 0.03, f"only {fired['free']:.1%} of the disk was free")
        return f"{fired['free']:.0%} of the disk was free"

    if cluster.has_small_disk:
        for severity in ("warning", "critical"):
            checks.run(f"SharddDiskFillsUp ({severity}) fires before the disk of n4 is full", lambda: fires_in_time(severity))
    checks.run("SharddCorruptGrains fires for n1", lambda: fires("SharddCorruptGrains", instance="n1"))
    checks.run(f"SharddStraggler fires for rank {c.STRAGGLER}", lambda: fires("SharddStraggler", run=c.RUN, rank=str(c.STRAGGLER)))

    def only_the_straggler() -> None:
        wrong = [one["labels"] for one in watcher.named("SharddStraggler") if one["labels"]["rank"] != str(c.STRAGGLER)]
        expect(wrong == [], wrong)

    checks.run("SharddStraggler names no other rank", only_the_straggler)

    def once() -> None:
        fired = watcher.named("SharddStraggler", rank=str(c.STRAGGLER), reason="waits_for_data")
        expect(len(fired) == 1, [one["labels"] for one in fired])

    checks.run("SharddStraggler fires once for this rank", once)

    def at_its_node() -> None:
        node, texts = c.NODE_OF_RANK[c.STRAGGLER], {alert["annotations"]["description"] for alert in prometheus.firing() if alert["labels"].get("rank")}
        expect(texts and all(f"reads at {node}" in text for text in texts), f"the rank reads through {node}; {texts}")

    checks.run("SharddStraggler names the node that the rank reads through", at_its_node)


def death(checks: Checks, cluster: c.Cluster, prometheus: m.Prometheus | None, watcher: m.Watcher | None) -> None:
    began = time.monotonic()
    cluster.processes.end(cluster.nodes["n4"])
    print("       now n4 is killed", flush=True)
    checks.run("the overview names the lost node n4", lambda: finding(cluster, "node_lost", node="n4"))
    if not (prometheus and watcher):
        return

    def lost() -> str:
        one = c.until("it fires", lambda: watcher.named("SharddNodeLost"))[0]
        return f"{one['text']['summary']} {one['at'] - began:.0f} s after the kill"

    checks.run("SharddNodeLost fires", lost)
    checks.run("SharddNodeDown fires for n4", lambda: c.until("it does", lambda: watcher.named("SharddNodeDown", instance="n4")) and None)


# --- the whole -------------------------------------------------------------------------------------------------------------


def tell(programs: Path, python: str, pictures: str | None) -> int:
    checks = Checks()
    has_browser = shutil.which("node") is not None and os.environ.get("SHARDD_HAS_CHROMIUM") == "1"
    if not has_browser:
        skip("no Chromium or Node.js; what the pages show is not checked")
    with c.Cluster(programs) as cluster:
        cluster.start_nodes()
        if not cluster.has_small_disk:
            skip("only root may mount a small disk; nothing is checked about a full one")
        prometheus = watcher = None
        if m.have_prometheus() and pictures is None:
            prometheus = m.Prometheus(cluster)
            watcher = m.Watcher(cluster, prometheus)
        elif pictures is None:
            skip("no prometheus (Debian's package prometheus); alerts are not checked")
        cluster.make_plan()
        views = v.Views(cluster, "n2")
        ranks = cluster.start_ranks(python)
        checks.run("a run of four ranks is read, and each reports where its time goes", lambda: is_read(cluster, ranks) and None)
        if checks.failed:
            return finish(checks)
        if prometheus and watcher:
            healthy(checks, cluster, prometheus, watcher)
        checks.run("the overview finds nothing wrong while all is well", lambda: quiet(views))
        healthy_views = len(views.seen)
        began, epoch = time.monotonic(), is_read(cluster, ranks)["epoch"]
        faults(checks, cluster)
        checks.run("shardctl top --once names each cause", lambda: in_terminal(cluster))
        checks.run("shardctl top ends when its terminal closes", lambda: top_ends(cluster))
        if pictures is not None:
            if shutil.which("tmux"):
                checks.run("shardctl top in a terminal names each fault", lambda: top_in_tmux(cluster, Path(pictures) / "top.txt"))
            else:
                skip("no tmux; shardctl top is not captured")
            taken = browser(cluster, "pictures", HERE / "pictures.mjs", f"{cluster.http['n2']}/", "n1", c.RUN, pictures)
            checks.add(taken.communicate()[0], taken.returncode, "pictures.mjs")
            return finish(checks)
        if has_browser:
            pages(checks, cluster)
        checks.run("the training continues, and no rank gets a wrong byte", lambda: continues(cluster, ranks, epoch))
        checks.run("the overview names the node that the straggler reads through", lambda: at_its_node(views, healthy_views))
        if prometheus and watcher:
            alerts(checks, cluster, prometheus, watcher, began)
        death(checks, cluster, prometheus, watcher)
        checks.run("the training survives the node", lambda: is_read(cluster, ranks) and None)
    return finish(checks)


def finish(checks: Checks) -> int:
    print(f"{checks.passed} passed, {checks.failed} failed", flush=True)
    return int(checks.failed > 0)


def stop(number: int, _: object) -> None:
    sys.exit(128 + number)


if __name__ == "__main__":
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    programs, python, pictures = sys.argv[1:]
    sys.exit(tell(Path(programs), python, pictures or None))
