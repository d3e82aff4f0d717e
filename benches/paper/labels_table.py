"""The table of docs/PAPER.md about labels in 4,096 partitions, from the lines that the bench `labels` left."""

from text import q_name, table

EPOCHS = (0, 1, 2, 5, 10, 15, 20)


def not_yet_moved(line, epoch):
    """The share of samples that no exchange has taken before `epoch`, by docs/PLAN.md."""
    shares = [float(share) for share in line["q"].split(",")]
    after = [shares[min(before, len(shares) - 1)] for before in range(epoch)]
    if line["selection"] == "cyclic":
        return max(1 - sum(after), 0)
    left = 1.0
    for share in after:
        left *= 1 - share
    return left


def rows(lines):
    for line in lines:
        distances = line["distances"]
        cells = [f"**{distances[epoch]:.2f}** ({distances[0] * not_yet_moved(line, epoch):.2f})" for epoch in EPOCHS]
        yield [f"{line['virtual_ranks']:,}", q_name(line["q"]), line["selection"], *cells, f"{line['floor']:.2f}"]


def tables(lines):
    by_ranks = sorted(lines, key=lambda line: -line["virtual_ranks"])
    head = ["V", "Q", "selection", *(f"epoch {epoch}" for epoch in EPOCHS), "drawn at random"]
    return {"labels": table(head, list(rows(by_ranks)), left=3)}
