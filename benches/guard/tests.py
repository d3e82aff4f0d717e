"""Tests of the guard, which need nothing but Python: `python -m unittest benches/guard/tests.py`.

The program of these tests is a stand-in that prints figures at once, so that they test the judgement alone."""

import contextlib
import itertools
import json
import math
import os
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from random import Random

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import compare
import loaders
import programs
import signed_rank
from registry import CHECKED, QUICK, SELF_CHECKED

RUN = HERE.parent / "run"
STAND_IN = """#!{python}
import os, random, sys
from pathlib import Path
name = sys.argv[1]
# Another process, another figure; the same ones in every run of the tests.
count = Path(__file__).with_suffix(".count")
number = int(count.read_text()) if count.exists() else 0
count.write_text(str(number + 1))
noise = random.Random(f"{{name}} {{number}} {seed}").gauss(0, 0.03)
slowed, _, part = os.environ.get("SHARDD_BENCH_SLOW", "=0").partition("=")
ours = {ratio} * (1 + noise) * (1 + (float(part) if slowed == name else 0))
print('{{"name":"%s","ours":%r,"yardstick":1.0}}' % (name, ours))
"""


class Loaders(unittest.TestCase):
    LINES = [
        {"what": "first", "kind": "A", "system": "shardd", "title": "shardd", "versions": {"shardd": "0.1"}, "first_ms": 4.0, "samples": 10, "seconds": 2},
        {"what": "first", "kind": "A", "system": "mosaic", "title": "MosaicML", "versions": {"streaming": "0.13"}, "first_ms": 9.0, "samples": 10, "seconds": 5},
        {"what": "first", "kind": "A", "system": "mosaic_bucket", "title": "MosaicML, bucket", "versions": {}, "first_ms": 9.0, "samples": 10, "seconds": 5},
        *({"what": "round", "kind": "A", "system": "shardd", "round": number, "samples": 100, "seconds": 1} for number in range(3)),
        *({"what": "round", "kind": "A", "system": "mosaic", "round": number, "samples": 10 * number, "seconds": 1} for number in (1, 2)),
        {"what": "round", "kind": "A", "system": "mosaic_bucket", "round": 0, "samples": 10, "seconds": 1},
        {"what": "check", "kind": "A", "system": "mosaic", "mixed": False},
    ]

    def test_a_peer_is_compared_in_the_rounds_that_both_have(self):
        self.assertEqual(loaders.pairs(self.LINES), {("A", "mosaic"): [(100, 10), (100, 20)]})
        self.assertEqual(loaders.versions(self.LINES), {"shardd": "0.1", "streaming": "0.13"})

    def test_a_bucket_is_compared_with_a_bucket_and_poor_mixing_is_shown(self):
        row = loaders.page_rows(self.LINES)[0]
        self.assertEqual((row["what"], row["peer"]), ("samples of 784 B", "MosaicML, mixes too little"))
        self.assertEqual((row["ours"], row["theirs"]), ("100", "15"))
        own = {"what": "round", "kind": "A", "system": "shardd_bucket", "round": 0, "samples": 30, "seconds": 1}
        first = {**self.LINES[0], "system": "shardd_bucket", "samples": 20}
        rows = loaders.page_rows([*self.LINES, own, first])
        found = {row["what"]: (row["ours"], row["theirs"]) for row in rows if row["peer"] == "MosaicML, bucket"}
        self.assertEqual(found, {"samples of 784 B, bucket, later epochs": ("30", "10"), "samples of 784 B, bucket, first epoch": ("10", "2")})


class SignedRank(unittest.TestCase):
    def test_the_tail_is_that_of_the_published_table(self):
        # Hollander, Wolfe and Chicken, table A.4: for 10 pairs.
        ways = signed_rank.subset_sums(list(range(1, 11)))
        self.assertAlmostEqual(sum(ways[47:]) / 2**10, 0.024, 3)
        self.assertAlmostEqual(sum(ways[44:]) / 2**10, 0.053, 3)

    def test_the_tail_counts_every_assignment_of_signs(self):
        random = Random(1)
        for _ in range(50):
            # Few different sizes, so that there are ties.
            values = [random.randint(-4, 4) for _ in range(random.randint(1, 8))]
            sizes = [abs(value) for value in values if value]
            ranks = signed_rank.doubled_ranks(sizes)
            seen = sum(rank for rank, value in zip(ranks, (value for value in values if value)) if value > 0)
            signs = itertools.product([0, 1], repeat=len(ranks))
            extreme = [sum(map(lambda rank, sign: rank * sign, ranks, sign)) >= seen for sign in signs]
            self.assertAlmostEqual(signed_rank.p_greater(values), sum(extreme) / len(extreme))

    def test_intervals_have_what_they_promise(self):
        random = Random(2)
        rounds, hits, medians = 400, 0, 0
        for _ in range(rounds):
            values = [random.gauss(1, 1) for _ in range(12)]
            _, low, high = signed_rank.hodges_lehmann(values)
            hits += low <= 1 <= high
            _, low, high, confidence = signed_rank.median_interval(values)
            medians += low <= 1 <= high
            self.assertGreaterEqual(confidence, 0.95)
        # 0.95 less four standard deviations.
        self.assertGreaterEqual(hits / rounds, 0.95 - 4 * math.sqrt(0.95 * 0.05 / rounds))
        self.assertGreaterEqual(medians / rounds, 0.95 - 4 * math.sqrt(0.95 * 0.05 / rounds))

    def test_holm_corrects_as_in_its_paper(self):
        self.assertEqual([round(p, 9) for p in signed_rank.holm([0.01, 0.04, 0.03])], [0.03, 0.06, 0.06])


class Judgement(unittest.TestCase):
    def of_changes(self, changes):
        benchmark = QUICK[0]
        found = {benchmark.name: [(1.0, 1.0 + change) for change in changes]}
        return compare.verdicts(found, [benchmark])[0].word

    def test_a_change_counts_only_beyond_the_least_effect(self):
        effect = QUICK[0].effect
        self.assertEqual(self.of_changes([effect * 0.9] * 12), "")
        self.assertEqual(self.of_changes([effect * 1.1] * 12), "slower")
        self.assertEqual(self.of_changes([-2 * effect] * 12), "faster")

    def test_one_disturbed_pair_in_twelve_changes_nothing(self):
        self.assertEqual(self.of_changes([0.01] * 11 + [5.0]), "")
        self.assertEqual(self.of_changes([0.2] * 11 + [-0.9]), "slower")

    def test_pairs_alternate_their_order(self):
        order = []

        class Programs:
            @staticmethod
            def sample(program, *_):
                order.append(program)
                return {"ratio": 1.0}

        kept, compare.programs = compare.programs, Programs
        try:
            compare.pairs("A", "B", QUICK[:1], 4, 1)
        finally:
            compare.programs = kept
        self.assertEqual("".join(order), "ABBAABBA")


class Run(unittest.TestCase):
    def setUp(self):
        self.home = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def program(self, name, ratio=1.0):
        directory = self.home / name
        directory.mkdir()
        path = directory / "shardd-bench"
        path.write_text(STAND_IN.format(python=sys.executable, seed=name, ratio=ratio))
        path.chmod(0o755)
        return str(directory)

    def run_guard(self, *arguments):
        done = subprocess.run([sys.executable, "-B", RUN, *arguments], capture_output=True, text=True)
        return done.returncode, done.stdout, done.stderr

    def test_a_slower_build_ends_with_1_and_names_the_benchmark(self):
        status, printed, _ = self.run_guard("--compare", self.program("a"), "--program", self.program("b", 1.25), "--only", "gather/784,cache/hit")
        self.assertEqual(status, 1, printed)
        self.assertIn("slower: gather/784, cache/hit", printed)

    def test_a_faster_build_and_an_equal_one_end_with_0(self):
        base = self.program("a")
        for name, ratio in (("equal", 1.0), ("faster", 0.7)):
            status, printed, _ = self.run_guard("--compare", base, "--program", self.program(name, ratio), "--only", "gather/784,cache/hit")
            self.assertEqual(status, 0, printed)
            self.assertIn("no regression", printed)

    def test_the_self_check_passes_with_a_program_that_can_be_slowed_and_fails_with_another(self):
        self_check = ("--self-check", "--only", "gather/784,cache/hit", "--pairs", "8")
        status, printed, _ = self.run_guard(*self_check, "--nulls", "2", "--program", self.program("a"))
        self.assertEqual(status, 0, printed)
        # This one ignores the variable.
        deaf = self.program("deaf")
        path = Path(deaf) / "shardd-bench"
        path.write_text(path.read_text().replace("SHARDD_BENCH_SLOW", "ANOTHER"))
        status, printed, _ = self.run_guard(*self_check, "--nulls", "1", "--program", deaf)
        self.assertEqual((status, "the slowed build was not found" in printed), (1, True), printed)

    def test_what_cannot_be_run_ends_with_2_and_says_why(self):
        program = self.program("a")
        broken = self.program("broken")
        (Path(broken) / "shardd-bench").write_text("#!/bin/sh\necho nothing >&2\nexit 3\n")
        for arguments, reason in [
            (("--compare", "no-such-revision", "--program", program), "no-such-revision"),
            (("--compare", str(self.home), "--program", program), "has no shardd-bench"),
            (("--compare", broken, "--program", program), "nothing"),
            (("--compare", program, "--program", program, "--only", "gather"), "no benchmark gather"),
            (("--compare", program, "--program", program, "--pairs", "3"), "need at least"),
            (("--pairs", "0"), "--pairs has to be at least 1"),
            (("--unknown",), "--unknown"),
        ]:
            status, printed, error = self.run_guard(*arguments)
            self.assertEqual(status, 2, f"{arguments}: {printed}{error}")
            self.assertIn(reason, error)

    def test_bounds_are_wide_and_hold_in_the_bad_direction_only(self):
        baseline = json.loads((HERE.parent / "baseline.json").read_text())
        name, factor = "gather/784", baseline["factor"]
        for ratio, expected in [(factor * 0.5, 0), (factor * 1.5, 1), (0.01, 0)]:
            program = self.program(f"r{ratio}", baseline["ratios"][name] * ratio)
            status, printed, _ = self.run_guard("--check", "--only", name, "--program", program)
            self.assertEqual(status, expected, printed)

    def test_figures_keep_all_repetitions(self):
        out = self.home / "figures.json"
        status, printed, error = self.run_guard("--only", "gather/784", "--program", self.program("a"), "--out", str(out))
        self.assertEqual(status, 0, printed + error)
        (found,) = json.loads(out.read_text())["benchmarks"]
        ratios = sorted(sample["ratio"] for sample in found["samples"])
        self.assertEqual((len(ratios), found["ratio"]["median"]), (9, ratios[4]))
        self.assertEqual((found["ratio"]["low"], found["ratio"]["high"]), (ratios[1], ratios[7]))


class Trees(unittest.TestCase):
    def test_a_revision_is_laid_out_newer_than_any_build_and_with_the_benches_of_this_tree(self):
        home = Path(self.enterContext(tempfile.TemporaryDirectory()))
        for folder in ("base", "base/benches", "base/server", "own", "own/benches"):
            (home / folder).mkdir()
        base, own = home / "base", home / "own"
        (base / "server/code.rs").write_text("the product of the revision")
        (base / "benches/bench.rs").write_text("an old bench")
        (own / "benches/bench.rs").write_text("the bench of this tree")
        os.utime(own / "benches/bench.rs", (1, 1))
        git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", base]
        dated = {**os.environ, "GIT_COMMITTER_DATE": "2001-01-01T00:00:00Z"}
        for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "a: b"]):
            subprocess.run([*git, *command], check=True, env=dated)
        before = time.time() - 1
        kept, extract = programs.ROOT, programs.extract
        programs.ROOT = own

        def of_base(commit, tree):
            programs.ROOT = base
            extract(commit, tree)
            programs.ROOT = own

        programs.extract = of_base
        try:
            programs.lay_out("HEAD", home / "tree")
        finally:
            programs.ROOT, programs.extract = kept, extract
        self.assertEqual((home / "tree/server/code.rs").read_text(), "the product of the revision")
        self.assertEqual((home / "tree/benches/bench.rs").read_text(), "the bench of this tree")
        for path in (home / "tree").rglob("*"):
            self.assertGreaterEqual(path.stat().st_mtime, before, path)


class Registry(unittest.TestCase):
    def test_names_are_known_and_bounds_exist(self):
        names = [benchmark.name for benchmark in QUICK]
        self.assertEqual(len(set(names)), len(names))
        self.assertLessEqual({*CHECKED, *SELF_CHECKED}, {*names})
        self.assertEqual(sorted(CHECKED), sorted(json.loads((HERE.parent / "baseline.json").read_text())["ratios"]))
        with contextlib.suppress(FileNotFoundError):
            main = (HERE.parent / "src/bin/shardd-bench/main.rs").read_text()
            for name in names:
                self.assertIn(f'"{name}"', main)


class OtherBenches(unittest.TestCase):
    def test_their_arithmetic_holds(self):
        for tests in ("storage/tests.py", "faults/tests.py"):
            done = subprocess.run([sys.executable, "-B", HERE.parent / tests], capture_output=True, text=True)
            self.assertEqual(done.returncode, 0, f"{tests}: {done.stderr}")


if __name__ == "__main__":
    unittest.main()
