"""How well an epoch was shuffled, and whether every row was in it once. Knows numbers of rows, nothing of loaders."""

import math

import numpy as np

from kinds import CLASSES, classes


def of_epochs(epochs, kind):
    """`epochs`: for each epoch the numbers of its batches, as they came. A dictionary for the report.

    Lag-1 autocorrelation of the class along the epoch (0 is a perfect shuffle, 1 no shuffle), the mean number of distinct
    classes in a full batch, and whether each epoch saw each row once. Of few rows even a perfect shuffle has some
    autocorrelation: three of its standard deviations are allowed where that is more than 0.01. And a small batch does
    not hold all classes: 99 % of what a perfect shuffle has is asked for, 9.9 where batches are of 64 and more.
    """
    lags, distinct, once, count = [], [], True, 0
    for batches in epochs:
        numbers = np.concatenate(batches)
        once &= bool(np.array_equal(np.sort(numbers), np.arange(kind.rows)))
        labels = classes(numbers, kind.rows).astype(float)
        labels -= labels.mean()
        power = float((labels * labels).sum())
        lags.append(float((labels[1:] * labels[:-1]).sum()) / power if power else 1.0)
        full = [batch for batch in batches if len(batch) == kind.batch]
        distinct += [len(set(classes(batch, kind.rows).tolist())) for batch in full]
        count += len(numbers)
    lag, mean = float(np.mean(lags)), float(np.mean(distinct)) if distinct else 0.0
    perfect = CLASSES * (1 - (1 - 1 / CLASSES) ** kind.batch)
    mixed = lag < max(0.01, 3 / math.sqrt(count)) and mean >= 0.99 * perfect
    return {"lag": lag, "distinct": mean, "perfect": perfect, "once": once, "mixed": mixed}
