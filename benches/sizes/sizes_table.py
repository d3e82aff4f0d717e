"""The table of benches/README.md about sizes of shards and slow links, from the lines that benches/sizes/run left. Opens no files."""

import statistics
from collections import defaultdict

MIB = 1 << 20


def by_link(lines):
    """By link: by size, in the order of the lines."""
    found = defaultdict(lambda: defaultdict(list))
    for line in lines:
        found[line["mbit"], line["round_trip_ms"], line["mib"]][line["size"]].append(line)
    return found


def tables(lines, table):
    if not lines:
        return {}
    rows = []
    for (mbit, round_trip_ms, mib), sizes in by_link(lines).items():
        seconds = {size: statistics.median(line["epoch_s"] for line in seen) for size, seen in sizes.items()}
        least, alone = min(seconds.values()), mib * MIB * 8 / (mbit * 1e6)
        for size, seen in sizes.items():
            middle = lambda name, seen=seen: statistics.median(line[name] for line in seen)
            rows.append(
                [
                    f"{mbit} Mbit/s, {round_trip_ms} ms, {mib} MiB",
                    f"`{size}`" if size == "auto" else size.replace("KiB", " KiB").replace("MiB", " MiB"),
                    f"{middle('shards'):.0f}",
                    f"{middle('requests'):.0f}",
                    f"{middle('first_batch_s'):.1f} s",
                    f"{middle('samples') / seconds[size]:,.0f}",
                    f"{least / seconds[size]:.2f}",
                    f"{alone / seconds[size]:.2f}",
                ]
            )
    head = ["link, dataset", "size", "shards", "requests", "first batch", "samples/s", "of the best", "of the link"]
    return {"far": table(head, rows, 2)}
