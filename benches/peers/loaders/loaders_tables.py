"""The tables of benches/README.md about loaders, from the lines of measure.py. Opens no files, and needs none of the packages."""

from table import HEAD, Figures, cells

# Of the columns that measure.py prints. What GB/s follow from is not in the lines.
SHOWN = [heading for heading in HEAD if heading not in ("GB/s", "peak RSS MB")]
OURS = "shardd"


def tables(lines, table, filled):
    """By the name of their place in the page."""
    if not lines:
        return {}
    machine = next(line for line in lines if line["what"] == "machine")
    letters = list(dict.fromkeys(line["kind"] for line in lines if "kind" in line))
    rows = {line["kind"]: line["samples"] for line in lines if line["what"] == "first"}
    rounds = 1 + max(line["round"] for line in lines if line["what"] == "round")
    kinds = ", ".join(f"{letter} with {rows[letter]:,} rows" for letter in letters)
    words = (
        f"Measured ({kinds}) on {machine['when'][:10]} on {machine['processors']} cores of an {machine['processor']} with "
        f"{machine['memory_gb']:.0f} GB, load {machine['load']:.1f} at the start, medians of {rounds} rounds."
    )
    return {"loaders": filled(words)[1:], **{f"loaders {letter}": of_kind(Figures(letter, lines), table, filled) for letter in letters}}


def of_kind(figures, table, filled):
    rows = []
    for name in figures.rates:
        of_all = cells(name, figures, row_bytes=0)
        shown, *rest = (of_all[heading] for heading in SHOWN)
        rows.append([f"**{shown}**" if name.startswith(OURS) else shown, *rest])
    failed = "; ".join(f"{name}: {line['reason'].splitlines()[0]}" for name, line in figures.failed.items())
    return table(SHOWN, rows) + (filled(f"Not measured, or not all of it: {failed}.") if failed else "")
