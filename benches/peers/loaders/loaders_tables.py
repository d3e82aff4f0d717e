"""The tables of benches/README.md about loaders, from the lines of measure.py. Opens no files, and needs none of the packages."""

from table import Figures, title

HEAD = ["", "workers", "samples/s", "from - to", "of the loop", "first batch, ms", "first epoch, samples/s", "resume, ms", "own MB", "lag-1", "classes"]
OURS = "shardd"


def tables(lines, table, filled):
    """By the name of their place in the page."""
    if not lines:
        return {}
    machine = next(line for line in lines if line["what"] == "machine")
    letters = list(dict.fromkeys(line["kind"] for line in lines if "kind" in line))
    rows = {line["kind"]: line["samples"] for line in lines if line["what"] == "first"}
    rounds = 1 + max(line["round"] for line in lines if line["what"] == "round")
    words = (
        f"Measured ({', '.join(f'{letter} with {rows[letter]:,} rows' for letter in letters)}) on {machine['when'][:10]} on {machine['processors']} cores of an {machine['processor']} with "
        f"{machine['memory_gb']:.0f} GB, load {machine['load']:.1f} at the start, medians of {rounds} rounds."
    )
    return {"loaders": filled(words)[1:], **{f"loaders {letter}": of_kind(Figures(letter, lines), table, filled) for letter in letters}}


def of_kind(figures, table, filled):
    limit = max((figures.median(name) for name in ("take", "take_clip") if name in figures.rates), default=None)
    failed = "; ".join(f"{name}: {line['reason'].splitlines()[0]}" for name, line in figures.failed.items())
    return table(HEAD, [row(name, figures, limit) for name in figures.rates]) + (filled(f"Not measured, or not all of it: {failed}.") if failed else "")


def row(name, figures, limit):
    median, rates = figures.median(name), figures.rates[name]
    first, check, resume = (found.get(name, {}) for found in (figures.first, figures.check, figures.resume))
    shown = title(name, first)
    return [
        f"**{shown}**" if name.startswith(OURS) else shown,
        str(first.get("setting", "")),
        f"{median:,.0f}",
        f"{min(rates):,.0f} - {max(rates):,.0f}",
        f"{median / limit:.3f}" if limit else "",
        f"{first['first_ms']:,.0f}" if first else "",
        f"{first['samples'] / first['seconds']:,.0f}" if first else "",
        f"{resume['resume_ms']:,.0f}{'' if resume['exact'] else ' (not exact)'}" if resume else "",
        f"{check['own_mb']:,.0f}" if check else "",
        f"{check['lag']:.3f}" if check else "",
        f"{check['distinct']:.2f} of {check['perfect']:.2f}{'' if check['mixed'] else ' ✗'}{'' if check['once'] else ', not once'}" if check else "",
    ]
