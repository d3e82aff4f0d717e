"""Makes docs/PERFORMANCE.md and its plots from benches/results: what this repository measured, losses and all."""

import json
import re
import textwrap

import dots
import loaders
from programs import ROOT, CannotRun

RESULTS, DOCS = ROOT / "benches" / "results", ROOT / "docs"
README = "benches/README.md"

HEAD = """# Performance

This page shows figures as ratios. Below 1 on the first plot, shardd needs less time than its yardstick.
Above 1 on the second, shardd is better than the peer. Points in orange are losses. The command
`benches/run --page` makes the page from the files in `benches/results`, and a test checks that it is
current. Do not edit it.
"""

YARDSTICKS = """
## Beside yardsticks

`benches/run` measures each operation in turns with a plain loop, a socket or a hash of the same bytes. A
point is the median of several processes, and a bar has that median with the confidence of the last
column. Most operations do more than their yardstick: a gather makes Arrow columns, and an ingest
shuffles, hashes and encodes.

![Ratios of the time to the yardstick's time](performance/quick.svg)
"""

PEERS = """
## Beside other people's programs

The [benches]({readme}) have the setting, the versions and the command of each row.
Within a section, systems took turns, unless the section says otherwise. Sections come from different days.
The last column divides the two before it. "Mixes too little" marks a loader whose batches have
neighbours of the source together. In rows of emulated accelerators, a sleep takes the time of computing.

![How many times as good as the peer](performance/peers.svg)
"""

GUARD = """
## How a change is judged

`benches/run --compare BASE` builds a revision beside this tree. It runs both builds in pairs of
processes, in the order A B, B A. A benchmark is slower if Wilcoxon's signed-rank test of the pairs finds
a change beyond its least effect, which is 5 % for most. Holm's correction accounts for the number of
benchmarks, at a level of 5 % for all together. `benches/run --self-check` shows that a build slowed by a
quarter is found, and that a build passes beside itself. `tests/run` asks `benches/run --check` whether a
few ratios are within a factor of {factor} of the usual ones.
"""


def load(name):
    path = RESULTS / name
    try:
        return json.loads(path.read_text())
    except FileNotFoundError as error:
        raise CannotRun(f"no {path}: copy the figures of `benches/run` there") from error


def table(head, rows, right):
    lines = [head, ["--:" if column in right else "---" for column in range(len(head))], *rows]
    return "".join(f"| {' | '.join(row)} |\n" for row in lines)


def machine_of(document):
    machine, versions = document["machine"], document["versions"]
    crates = ", ".join(f"{name} {version}" for name, version in versions["crates"].items())
    words = (
        f"Measured at {document['date'][:16].replace('T', ' ')} UTC on {machine['cores']} cores of {machine['cpu']} with "
        f"{machine['memory_bytes'] / 2**30:.0f} GiB, {machine['kernel']}, temporary files on {machine['disk']}, load {machine['load']:.1f}. "
        f"Commit `{versions['commit'][:12]}`{' with changes' if versions['changed'] else ''}, {versions['rustc'].split(' (')[0]}, {crates}."
    )
    return f"\n{textwrap.fill(words, 110)}\n"


def yardstick_rows(document):
    rows = []
    for found in document["benchmarks"]:
        ratio = found["ratio"]
        interval = f"{ratio['low']:.3g} to {ratio['high']:.3g}"
        rows.append(
            [f"`{found['name']}`", found["what"], found["yardstick"], f"**{ratio['median']:.3g}**", interval, f"{100 * ratio['confidence']:.0f} %"]
        )
    return table(["", "operation", "yardstick", "ratio", "interval", "confidence"], rows, {3, 4, 5})


def is_good(found):
    return found["ratio"]["median"] <= 1 if found["better"] == "lower" else found["ratio"]["median"] >= 1


def number(words):
    return float(words.replace(",", ""))


def times_as_good(row):
    ours, theirs = number(row["ours"]), number(row["theirs"])
    return ours / theirs if row["better"] == "higher" else theirs / ours


def section(text, anchor):
    """The text under a heading, to the next one."""
    for part in re.split(r"^## ", text, flags=re.M)[1:]:
        heading, _, body = part.partition("\n")
        if re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") == anchor:
            return body
    raise CannotRun(f"{README} has no section {anchor}")


def check_peers(rows):
    """Every figure of a peer stands in the section that it names."""
    text = (ROOT / README).read_text()
    for row in rows:
        body = section(text, row["section"])
        for side in ("ours", "theirs"):
            if not re.search(rf"(?<![\d.,]){re.escape(row[side])}(?![\d]|[.,]\d)", body):
                raise CannotRun(f"{README}, {row['section']}: no {row[side]}, which benches/results/peers.json has for {row['what']}")


def peer_rows(rows):
    lines = []
    for row in rows:
        ratio = times_as_good(row)
        shown = f"{ratio:.3g}"
        link = f"[{row['what']}](../{README}#{row['section']})"
        lines.append([link, row["peer"], row["unit"], row["ours"], row["theirs"], f"**{shown}**" + ("" if ratio >= 1 else " (loss)")])
    return table(["", "peer", "unit", "shardd", "peer's", "times as good"], lines, {3, 4, 5})


def pages():
    """By path what this page and its plots are."""
    quick, peers = load("quick.json"), load("peers.json")
    check_peers(peers)
    peers = loaders.page_rows([json.loads(line) for line in loaders.RESULTS.read_text().splitlines()]) + peers
    factor = json.loads((ROOT / "benches" / "baseline.json").read_text())["factor"]
    points = [(found["what"], *(found["ratio"][key] for key in ("median", "low", "high")), is_good(found)) for found in quick["benchmarks"]]
    ratios = [(row, times_as_good(row)) for row in peers]
    beside = [(f"{row['what']}, {row['peer']}", ratio, ratio, ratio, ratio >= 1) for row, ratio in ratios]
    losses = sum(ratio < 1 for _, ratio in ratios)
    page = HEAD + YARDSTICKS + machine_of(quick) + "\n" + yardstick_rows(quick)
    page += PEERS.format(readme=f"../{README}") + f"\nOf {len(peers)} rows, {losses} are losses.\n\n" + peer_rows(peers)
    page += GUARD.format(factor=factor)
    return {
        DOCS / "PERFORMANCE.md": page,
        DOCS / "performance" / "quick.svg": dots.plot(points, "time, as times the yardstick's (lower is better)"),
        DOCS / "performance" / "peers.svg": dots.plot(beside, "times as good as the peer (higher is better)"),
    }


def write(dry_run):
    changed = [(path, text) for path, text in pages().items() if not path.is_file() or path.read_text() != text]
    for path, text in changed:
        print(f"{path.relative_to(ROOT)} is not current: run benches/run --page" if dry_run else f"wrote {path.relative_to(ROOT)}")
        if not dry_run:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    return 1 if dry_run and changed else 0
