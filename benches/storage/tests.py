"""Tests of the arithmetic of this bench, which need nothing but Python: `python benches/storage/tests.py`."""

import itertools
import os
import signal
import subprocess
import sys
import threading
import unittest
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).resolve().parent))

from control_group import ROOT, group
from disk_bytes import disk_bytes
from search import Search
from setting import FED, WORKLOADS, bound, most, utilisation


class Utilisation(unittest.TestCase):
    def test_waits_beyond_a_ninth_of_computing_fail(self):
        for wait, passes in [(0.0, True), (0.1, True), (0.12, False), (0.2, False)]:
            ends = list(itertools.accumulate([5.0] + [1.0 + wait] * 20))
            share, waited = utilisation(1.0, ends, [4.0] + [wait] * 20, 1)
            self.assertAlmostEqual(share, 1 / (1 + wait))
            self.assertAlmostEqual(waited, 20 * wait)
            self.assertEqual(share >= FED, passes)

    def test_steps_that_were_read_before_the_first_one_ended_do_not_count(self):
        # Four steps are there at once; then the data of each takes as long as two steps.
        ends = list(itertools.accumulate([5.0, 1, 1, 1, 1] + [2.0] * 8))
        waits = [4.0, 0, 0, 0, 0] + [1.0] * 8
        self.assertAlmostEqual(utilisation(1.0, ends, waits, 5)[0], 0.5)
        self.assertGreater(utilisation(1.0, ends, waits, 1)[0], 0.55)

    def test_a_run_of_too_few_steps_has_no_utilisation(self):
        with self.assertRaisesRegex(ValueError, "3 steps are too few"):
            utilisation(1.0, [1.0, 2.0, 3.0], [0.0] * 3, 2)

    def test_a_disk_feeds_as_many_as_its_bound_says(self):
        for workload in WORKLOADS.values():
            for accelerator in workload.compute_s:
                demand = workload.demand(accelerator)
                for disk in (0.5e9, 1.3e9, 7e9):
                    number = most(disk, demand)
                    self.assertLess(bound(disk, demand, number + 1), FED)
                    if number:
                        self.assertGreaterEqual(bound(disk, demand, number), FED)


class Groups(unittest.TestCase):
    def test_a_group_goes_with_the_processes_that_are_left_in_it(self):
        before = set(ROOT.glob("**/shardd-storage-*"))
        with group(limit_bytes=1 << 30) as join:
            if join is None:
                self.skipTest("no control group can be made here")
            left = subprocess.Popen(["sleep", "1000"], preexec_fn=join)
            self.assertNotEqual(set(ROOT.glob("**/shardd-storage-*")), before)
        self.assertEqual(left.wait(), -signal.SIGKILL)
        self.assertEqual(set(ROOT.glob("**/shardd-storage-*")), before)


class Searching(unittest.TestCase):
    def found(self, first, rounds, most_ranks, utilisation_of):
        search = Search(first, rounds, most_ranks)
        for _ in range(1000):
            if (number := search.next()) is None:
                return search
            search.add(utilisation_of(number))
        self.fail("the search does not end")

    def test_it_ends_with_the_largest_number_that_passes_and_the_next_each_measured_in_all_rounds(self):
        random = Random(1)
        for _ in range(300):
            capacity, rounds = random.uniform(0.1, 40), random.randint(1, 4)
            search = self.found(random.randint(0, 30), rounds, 16, lambda number: min(0.99, capacity / number))
            expected = max((number for number in range(1, 17) if min(0.99, capacity / number) >= FED), default=0)
            self.assertEqual(search.fed(), expected)
            for number in {expected, expected + 1} & set(range(1, 17)):
                self.assertEqual(len(search.runs[number]), rounds)

    def test_it_ends_where_runs_differ(self):
        random = Random(2)
        for _ in range(100):
            search = self.found(random.randint(1, 16), 3, 16, lambda number: min(1, 8 / number) + random.gauss(0, 0.05))
            self.assertLess(search.fed(), 13)

    def test_a_system_that_does_not_end_feeds_none(self):
        search = self.found(5, 3, 16, lambda _: 0.0)
        self.assertEqual((search.fed(), len(search.runs[1])), (0, 1))


class DiskBytes(unittest.TestCase):
    def test_threads_may_end_while_they_are_counted(self):
        over = threading.Event()

        def come_and_go():
            while not over.is_set():
                threading.Thread(target=bool).start()

        started = threading.Thread(target=come_and_go)
        started.start()
        try:
            for _ in range(2000):
                self.assertGreaterEqual(disk_bytes(os.getpid()), 0)
        finally:
            over.set()
            started.join()


if __name__ == "__main__":
    unittest.main()
