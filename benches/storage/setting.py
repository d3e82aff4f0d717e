"""The workloads of MLPerf Storage, and its measure. Pure: opens no files.

Sizes, batches and seconds of computing are those of MLCommons (github.com/mlcommons/storage,
configs/dlio/workload/{resnet50,unet3d}_{a100,h100}.yaml). Accelerator utilisation is that of section 4 of its
Submission_guidelines.md (v2.0): computing as a share of the running time.
"""

import math
from dataclasses import dataclass, field

# A run passes at this utilisation.
FED = 0.9
# A batch is touched once in this many bytes, so that all of its pages have been read.
PAGE_BYTES = 4096
# Counted steps of a run, at least.
LEAST_STEPS = 2


@dataclass(frozen=True)
class Workload:
    name: str
    sample_bytes: int
    deviation_bytes: int
    batch: int
    compute_s: dict = field(hash=False)
    # Steps that each thread or worker process reads ahead.
    ahead: int

    def demand(self, accelerator):
        """Bytes a second that an accelerator computes on."""
        return self.batch * self.sample_bytes / self.compute_s[accelerator]


WORKLOADS = {
    "resnet50": Workload("resnet50", 114_660, 0, 400, {"a100": 0.435, "h100": 0.224}, 2),
    "unet3d": Workload("unet3d", 146_600_628, 68_341_808, 7, {"a100": 0.636, "h100": 0.323}, 1),
}


def threads(ranks):
    """Threads (shardd) or worker processes (PyTorch) of each rank, on a machine of two cores."""
    return 2 if ranks <= 4 else 1


def read_ahead(workload, ranks):
    """Steps that a rank may have read before its first one ends."""
    return threads(ranks) * workload.ahead


def utilisation(compute_s, ends, waits, skipped):
    """Of the ends of steps on the clock of a rank: computing as a share of the time from the end of the step `skipped`
    (from 1) to the end of the last, and the seconds of waiting for data in it.

    MLPerf skips the first step. Steps that were read before it ended cost nothing either, and weigh more in a short
    run than in one of 500 steps. The steady utilisation skips as many more as a rank reads ahead."""
    if len(ends) < skipped + LEAST_STEPS:
        raise ValueError(f"{len(ends)} steps are too few, because the first {skipped} do not count")
    return (len(ends) - skipped) * compute_s / (ends[-1] - ends[skipped - 1]), sum(waits[skipped:])


def bound(disk_bytes_s, demand, ranks):
    """The utilisation that a disk of this speed allows, if every byte comes from it."""
    return min(1.0, disk_bytes_s / (demand * ranks))


def most(disk_bytes_s, demand):
    """How many accelerators such a disk can keep at `FED`."""
    return math.floor(disk_bytes_s / (FED * demand))
