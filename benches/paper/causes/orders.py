"""The order of a plan's samples, by tests/reference/plan.py, with its permutations computed in NumPy."""

import sys
from fractions import Fraction
from pathlib import Path

import numpy
from cells import ORDER, Cell

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "tests" / "reference"))
import plan as reference

SLOW = reference.permutation
LOW = numpy.uint64(32)


def permutation(key, n):
    """tests/reference/plan.py's, all images at once."""
    if n <= 256:
        return SLOW(key, n)
    side = numpy.uint64(int((n - 1) ** 0.5) + 1)
    while int(side) ** 2 < n:
        side += numpy.uint64(1)
    while (int(side) - 1) ** 2 >= n:
        side -= numpy.uint64(1)
    columns = numpy.uint64(-(-n // int(side)))
    keys = [numpy.uint64(word) for word in reference.stream(key, 12)]
    walking, images = numpy.arange(n, dtype=numpy.uint64), numpy.empty(n, dtype=numpy.int64)
    at = numpy.arange(n)
    while len(at):
        row, column = walking // columns, walking % columns
        for i in range(0, 12, 2):
            row = (row + scaled(mix(column, keys[i]), side)) % side
            column = (column + scaled(mix(row, keys[i + 1]), columns)) % columns
        walking = row * columns + column
        arrived = walking < numpy.uint64(n)
        images[at[arrived]] = walking[arrived].astype(numpy.int64)
        at, walking = at[~arrived], walking[~arrived]
    return images.tolist()


def mix(values, key):
    with numpy.errstate(over="ignore"):
        z = (values ^ key) * numpy.uint64(0xBF58476D1CE4E5B9)
        z ^= z >> LOW
        return z * numpy.uint64(0x94D049BB133111EB)


def scaled(values, factor):
    """values * factor >> 64, of a factor below 2^32."""
    high, low = values >> LOW, values & numpy.uint64(2**32 - 1)
    return (high * factor + (low * factor >> LOW)) >> LOW


def order_of(task):
    """The samples of all epochs by position, and their partitions: `[epochs, samples]` of each."""
    order, labels = task
    cell = Cell("", **dict(zip(ORDER, order)))
    reference.permutation = permutation
    schedule = [int(Fraction(share) * 2**32 + Fraction(1, 2)) for share in cell.q.split(",")]
    document = dict(
        **dict(format=1, version="", seed=cell.seed, schedule=schedule, partitions=cell.partitions, grain_rows=cell.grain),
        **dict(chunks=cell.chunks, selection=cell.selection, placement=cell.placement, order="samples"),
    )
    rows = [len(labels)]
    made = reference.Plan(document, rows, labels if cell.stratified else None)
    held = [sum(made.grains[grain][2] for grain in [*table, *short]) for table, short in zip(made.initial, made.shorts)]
    turn = [reference.reversed_digits(i, cell.partitions) for i in range(cell.partitions)]
    homes = [m for j in range(max(held)) for m in turn if j < held[m]]
    epochs = []
    for epoch, table in zip(range(cell.epochs), made.tables()):
        epochs.append([first for _, first in made.order(epoch, table)])
    samples = numpy.array(epochs, dtype=numpy.int32)
    assert (numpy.sort(samples, axis=1) == numpy.arange(len(labels))).all(), "an epoch has each sample once"
    return samples, numpy.array(homes, dtype=numpy.int32)


def steps_of(samples, homes, cell):
    """Of each step, the samples of each virtual rank, `[virtual ranks, share]`. In a last step that does not divide, the rest is
    left out."""
    owners = homes.astype(numpy.int64) * cell.virtual_ranks // cell.partitions
    steps = []
    for epoch in samples:
        for start in range(0, len(epoch), cell.step):
            own, taken = owners[start : start + cell.step], epoch[start : start + cell.step]
            if len(own) % cell.virtual_ranks or (numpy.bincount(own, minlength=cell.virtual_ranks) != len(own) // cell.virtual_ranks).any():
                own = numpy.array(reference.deal(own.tolist(), cell.virtual_ranks))
            share = len(own) // cell.virtual_ranks
            by_rank = numpy.argsort(own, kind="stable")
            counts = numpy.bincount(own, minlength=cell.virtual_ranks)
            firsts = numpy.cumsum(counts) - counts
            if share:
                steps.append(taken[by_rank[(firsts[:, None] + numpy.arange(share)).ravel()]].reshape(cell.virtual_ranks, share))
    return steps
