"""How much faster a loop would be with batches from memory."""

import time

import pytest

import shardd
from helpers import SAMPLES, ids, loader


def test_a_slow_transform_leaves_headspace_and_the_loader_is_where_it_was(store):
    def slow(sample):
        time.sleep(0.004)
        return sample

    own = loader(store, batch_size=16, transform=slow)
    seen = []
    measured = shardd.headspace(own, lambda batch: seen.append(batch["id"].tolist()), steps=6, cached_batches=2)
    assert measured.steps == 6 and measured.share > 0.5
    assert measured.waits_for == "python" and "transform_processes" in measured.advice
    assert "% of the time" in str(measured)
    # Two to warm up, six of the loader, and the two again and again.
    assert len(seen) == 2 + 6 + 6 and len({tuple(batch) for batch in seen[:8]}) == 8
    assert seen[8:] == seen[:2] * 3
    # As if nothing had been measured, here and after an iteration that ended early.
    epoch = ids(own)
    assert epoch[:16] == seen[0] and sorted(epoch) == list(range(SAMPLES))
    next(iter(own))
    state = own.state_dict()
    shardd.headspace(own, lambda batch: None, steps=1, cached_batches=1)
    assert own.state_dict() == state and len(ids(own)) == SAMPLES


def test_a_loop_that_takes_its_time_has_no_headspace(store):
    measured = shardd.headspace(loader(store), lambda batch: time.sleep(0.02), steps=10)
    assert measured.waits_for == "nothing" and measured.share < 0.5


def test_more_steps_than_an_epoch_has_go_through_several(store):
    counted = []
    own = loader(store, batch_size=64)
    shardd.headspace(own, lambda batch: counted.append(len(batch["id"])), steps=2 * len(own), cached_batches=1)
    assert len(counted) == 1 + 4 * len(own)
    assert sorted(ids(own)) == list(range(SAMPLES))


@pytest.mark.parametrize("numbers", [{"steps": 0}, {"cached_batches": 0}])
def test_numbers_that_measure_nothing_are_refused(store, numbers):
    with pytest.raises(ValueError, match="use at least 1"):
        shardd.headspace(loader(store), print, **numbers)
    broken = loader(store)

    def fail(batch):
        raise RuntimeError("out of memory")

    with pytest.raises(RuntimeError, match="out of memory"):
        shardd.headspace(broken, fail)
    assert sorted(ids(broken)) == list(range(SAMPLES))
