"""Exact tests and intervals for few pairs, without a distribution assumed.

- Wilcoxon's signed-rank test (F. Wilcoxon, "Individual comparisons by ranking methods", 1945), by the exact distribution of its
  statistic given the ranks, ties and all (Hollander, Wolfe and Chicken, "Nonparametric Statistical Methods", 2014, 3.1).
- The estimate and the interval of Hodges and Lehmann that belong to it (the same, 3.2 and 3.3).
- The interval of a median between two order statistics (David and Nagaraja, "Order Statistics", 2003, 7.1).
- Holm's correction for many tests (S. Holm, "A simple sequentially rejective multiple test procedure", 1979).
"""

import math
import statistics


def p_greater(differences):
    """The probability of ranks as extreme as these if differences were symmetric about zero: small when they are above it."""
    values = [value for value in differences if value]
    if not values:
        return 1.0
    ranks = doubled_ranks([abs(value) for value in values])
    seen = sum(rank for rank, value in zip(ranks, values) if value > 0)
    ways = subset_sums(ranks)
    return sum(ways[seen:]) / 2 ** len(ranks)


def doubled_ranks(sizes):
    """Twice the rank of each, equal ones sharing the mean of theirs: whole numbers."""
    order = sorted(sizes)
    first, last = {}, {}
    for place, size in enumerate(order, 1):
        first.setdefault(size, place)
        last[size] = place
    return [first[size] + last[size] for size in sizes]


def subset_sums(ranks):
    """By sum, how many subsets of the ranks have it."""
    ways = [1] + [0] * sum(ranks)
    for rank in ranks:
        for total in range(len(ways) - 1, rank - 1, -1):
            ways[total] += ways[total - rank]
    return ways


def hodges_lehmann(differences, confidence=0.95):
    """The estimate of the centre of differences, and its interval; infinite ends where there are too few of them."""
    count = len(differences)
    walsh = sorted((differences[i] + differences[j]) / 2 for i in range(count) for j in range(i, count))
    ways, total = subset_sums(list(range(1, count + 1))), 2**count
    # As many of the smallest means are outside as keep the lower tail within its half of the error.
    outside, below = 0, 0
    for number in ways:
        below += number
        if below / total > (1 - confidence) / 2:
            break
        outside += 1
    estimate = statistics.median(walsh)
    if outside == 0:
        return estimate, -math.inf, math.inf
    return estimate, walsh[outside - 1], walsh[-outside]


def median_interval(values, confidence=0.95):
    """The median, and the narrowest pair of order statistics, symmetric about it, that has it with this confidence. The whole
    range, where there are too few values: the last figure is the confidence that the interval really has."""
    ordered, count = sorted(values), len(values)
    chosen, reached = 0, 1 - 2 / 2**count
    for outside in range(1, count // 2):
        tail = sum(math.comb(count, below) for below in range(outside + 1)) / 2**count
        if 1 - 2 * tail < confidence:
            break
        chosen, reached = outside, 1 - 2 * tail
    return statistics.median(ordered), ordered[chosen], ordered[count - 1 - chosen], max(0.0, reached)


def holm(probabilities):
    """Each probability, corrected for the number of tests."""
    order = sorted(range(len(probabilities)), key=probabilities.__getitem__)
    corrected, largest = [0.0] * len(probabilities), 0.0
    for place, index in enumerate(order):
        largest = max(largest, min(1.0, (len(probabilities) - place) * probabilities[index]))
        corrected[index] = largest
    return corrected
