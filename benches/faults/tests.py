"""Tests of the counting of this bench, which need nothing but Python: `python benches/faults/tests.py`."""

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import count
from setting import faults


def begin(step, rank, *ids):
    return {"event": "begin", "step": step, "rank": rank, "ids": list(ids)}


def end(step, rank, **more):
    return {"event": "end", "step": step, "rank": rank, **more}


class Restarts(unittest.TestCase):
    # Two ranks, a sample each in a step. A rank dies in step 2, and the checkpoint is that before step 1.
    before = [begin(0, 0, 0), begin(0, 1, 1), end(0, 0), begin(1, 0, 2), begin(1, 1, 3), end(1, 0), begin(2, 0, 4)]

    def test_a_resumed_order_repeats_steps_and_no_sample(self):
        after = [begin(1, 0, 2), begin(1, 1, 3), end(1, 0), begin(2, 0, 4), begin(2, 1, 5), end(2, 0)]
        self.assertEqual(count.of_restarts(self.before + after, 3, 6), {"lost": 0, "twice": 0, "recomputed": 1})

    def test_an_order_that_begins_from_the_first_sample_loses_some_and_reads_others_twice(self):
        after = [begin(1, 0, 0), begin(1, 1, 1), end(1, 0), begin(2, 0, 2), begin(2, 1, 3), end(2, 0)]
        self.assertEqual(count.of_restarts(self.before + after, 3, 6), {"lost": 2, "twice": 2, "recomputed": 1})


class Replicas(unittest.TestCase):
    first = [begin(0, 0, 0), begin(0, 1, 1), end(0, 0, takes_part=True, participants=2), end(0, 1, takes_part=True, participants=2)]

    def test_a_replica_that_died_after_its_gradient_was_added_is_counted(self):
        lines = [*self.first, begin(1, 0, 2), begin(1, 1, 3), end(1, 0, takes_part=True, participants=2)]
        self.assertEqual(count.of_replicas(lines, 2, 4), {"lost": 0, "twice": 0, "recomputed": 0})

    def test_the_samples_of_a_replica_that_is_gone_are_lost(self):
        lines = [*self.first, begin(1, 0, 2), begin(1, 1, 3), begin(1, 0, 2), end(1, 0, takes_part=True, participants=1)]
        self.assertEqual(count.of_replicas(lines, 2, 4), {"lost": 1, "twice": 0, "recomputed": 1})

    def test_replicas_that_all_died_begin_from_the_first_step(self):
        second = [begin(1, 0, 2), begin(1, 1, 3), end(1, 0, takes_part=True, participants=2), end(1, 1, takes_part=True, participants=2)]
        alone = [begin(0, 0, 0), end(0, 0, takes_part=True, participants=1), begin(1, 0, 2), end(1, 0, takes_part=True, participants=1)]
        self.assertEqual(count.of_replicas(self.first + second + alone, 2, 4), {"lost": 2, "twice": 0, "recomputed": 2})

    def test_a_replica_that_heals_adds_nothing(self):
        healing = [begin(1, 1, 3), end(1, 1, takes_part=False, participants=1)]
        lines = [*self.first, begin(1, 0, 2), *healing, end(1, 0, takes_part=True, participants=1)]
        self.assertEqual(count.of_replicas(lines, 2, 4)["lost"], 1)


class Faults(unittest.TestCase):
    def test_they_are_those_of_the_seed_and_apart_from_the_ends(self):
        for seed in range(100):
            found = faults(("rank", "launcher", "node"), seed, 240)
            self.assertEqual(found, faults(("rank", "launcher", "node"), seed, 240))
            self.assertEqual(sorted(fault.kind for fault in found), ["launcher", "node", "rank"])
            steps = [fault.step for fault in found]
            self.assertTrue(24 <= steps[0] < steps[1] < steps[2] < 216, steps)
        self.assertNotEqual(faults(("rank",), 1, 240), faults(("rank",), 2, 240))


if __name__ == "__main__":
    unittest.main()
