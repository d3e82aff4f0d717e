"""The tables in the report, from the lines that were noted. Knows nothing of processes or loaders."""

import statistics

from systems import SYSTEMS

SMALL = ["mosaic", "webdataset", "grain", "litdata", "litdata_full"]
# Kind, of what, how many times as fast we mean to be, and the systems that are meant: None, those that read a bucket and mix.
WANTED = [
    ("A", "torch's batched sampler on memmap", 1.5, ["torch_batched"]),
    ("A", "the fastest that streams from a bucket and mixes", 3.0, None),
    ("A", "MosaicML, WebDataset, Grain, LitData", 20.0, SMALL),
    ("A", "the bare loop `from_numpy(mm[idx])`", 0.6, ["from_numpy"]),
    ("C", "torch's batched sampler on memmap", 1.0, ["torch_batched"]),
    ("C", "the fastest that streams from a bucket and mixes", 3.0, None),
]
LIMITS = ("from_numpy", "take", "take_clip")


class Figures:
    """The notes on one kind, by system."""

    def __init__(self, letter, lines):
        self.lines = [line for line in lines if line.get("kind") == letter]
        self.rates = {}
        for line in self.of("round"):
            self.rates.setdefault(line["system"], []).append(line["samples"] / line["seconds"])
        self.first, self.check, self.resume, self.failed = (
            {line["system"]: line for line in self.of(what)} for what in ("first", "check", "resume", "failed")
        )

    def of(self, what):
        return [line for line in self.lines if line["what"] == what]

    def median(self, name):
        return statistics.median(self.rates[name])

    def limit(self):
        """The rate of the faster bare loop of `np.take`."""
        return max((self.median(name) for name in ("take", "take_clip") if name in self.rates), default=None)


HEAD = [
    *["", "workers", "samples/s", "from - to", "GB/s", "of take", "first batch ms", "first epoch samples/s", "resume ms", "peak RSS MB"],
    *["own MB", "lag-1", "classes", "once"],
]


def of_kind(kind, lines):
    figures = Figures(kind.letter, lines)
    rows = [
        f"\n**{kind.letter}: {kind.rows:,} {kind.title}, batches of {kind.batch}**\n",
        f"| {' | '.join(HEAD)} |",
        "|---|" + "--:|" * (len(HEAD) - 1),
        *(f"| {' | '.join(cells(name, figures, kind.row_bytes).values())} |" for name in figures.rates),
    ]
    failures = [f"- {name}: {line['reason']}" for name, line in figures.failed.items()]
    return "\n".join([*rows, *(["\nNot measured, or not all of it:\n", *failures] if failures else [])])


def cells(name, figures, row_bytes):
    """What a row of a table has, by its heading."""
    median, all_of, limit = figures.median(name), figures.rates[name], figures.limit()
    first, check, resume = (found.get(name, {}) for found in (figures.first, figures.check, figures.resume))
    values = [
        title(name, first),
        str(first.get("setting", "")),
        f"{median:,.0f}",
        f"{min(all_of):,.0f} - {max(all_of):,.0f}",
        f"{median * row_bytes / 1e9:.2f}",
        f"{median / limit:.3f}" if limit else "",
        f"{first['first_ms']:,.1f}" if first else "",
        f"{first['samples'] / first['seconds']:,.0f}" if first else "",
        f"{resume['resume_ms']:,.0f}{'' if resume['exact'] else ' (not exact)'}" if resume else "",
        f"{check['peak_mb']:,.0f}" + (f" + {check['worker_mb']:,.0f}" if check.get("worker_mb", 0) > 1 else "")
        if check
        else "",
        f"{check['own_mb']:,.0f}" if check else "",
        f"{check['lag']:.4f}" if check else "",
        f"{check['distinct']:.2f} of {check['perfect']:.2f}{'' if check['mixed'] else ' ✗'}" if check else "",
        ("yes" if check["once"] else "no") if check else "",
    ]
    return dict(zip(HEAD, values, strict=True))


def title(name, first):
    versions = [version for version in first.get("versions", {}).values()][:1]
    return first.get("title", name) + (f" ({versions[0]})" if versions and name not in LIMITS else "")


def criteria(lines):
    """Ours beside its goal; a line that says so where ours was not measured."""
    printed = ["\n**What is wanted**\n"]
    for letter, of_what, wanted, names in WANTED:
        figures = Figures(letter, lines)
        ours = max((figures.median(name) for name in ("shardd", "shardd_bucket") if name in figures.rates), default=None)
        others = {name: figures.median(name) for name in (names or streaming(figures)) if name in figures.rates}
        if not others:
            continue
        fastest = max(others, key=others.get)
        had = f"{ours / others[fastest]:.2f}" if ours else "shardd was not measured"
        printed.append(f"- {letter}: {of_what} ({fastest}, {others[fastest]:,.0f}): {had}, wanted {wanted}")
    for letter in "BEX":
        figures = Figures(letter, lines)
        others = {name: figures.median(name) for name in figures.rates if name not in LIMITS}
        ours = max((others.pop(name) for name in ("shardd", "shardd_bucket") if name in others), default=None)
        if others:
            fastest = max(others, key=others.get)
            had = f"{ours / others[fastest]:.2f}" if ours else "shardd was not measured"
            printed.append(f"- {letter}: the fastest of all ({fastest}, {others[fastest]:,.0f}): {had}, wanted 1.0")
    return "\n".join(printed)


def streaming(figures):
    """Those that read a bucket, and passed the check of their shuffle."""
    reading = [name for name in SYSTEMS if name.endswith("_bucket") and name != "shardd_bucket"]
    return [name for name in reading if figures.check.get(name, {}).get("mixed")]
