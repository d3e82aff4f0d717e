"""Builds `shardd-bench`, of this tree and of other revisions, and runs it."""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = "shardd-bench"
# Seconds for one benchmark and its preparation, on a machine that is busy with other work.
LIMIT_S = 300
MEMORY_DISK = Path("/dev/shm")
NEEDED_MEMORY = 1 << 30


class CannotRun(Exception):
    """The comparison could not be made; the text says why, and the way out."""


def target():
    return Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()


def git(*arguments):
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise CannotRun(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.strip()


def build(tree, into, artifacts, locked=True):
    """Builds the program of a source tree in a target directory; the path of a copy, which later builds leave alone."""
    command = ["cargo", "build", "--release", "-p", "shardd-benches", "--bin", PROGRAM]
    command += ["--locked"] if locked else []
    environment = {"RUST_MIN_STACK": "16777216", **os.environ, "CARGO_TARGET_DIR": str(artifacts)}
    if subprocess.run(command, cwd=tree, env=environment).returncode:
        raise CannotRun(f"{' '.join(command)} failed in {tree}")
    into.mkdir(parents=True, exist_ok=True)
    copy = into / PROGRAM
    fresh = copy.with_suffix(".new")
    shutil.copy2(artifacts / "release" / PROGRAM, fresh)
    source = subprocess.run([fresh, "--source"], capture_output=True, text=True).stdout.strip()
    if Path(source).resolve() != (Path(tree) / "benches").resolve():
        fresh.unlink()
        raise CannotRun(f"{artifacts / 'release' / PROGRAM} is of {source} and not of {tree}: give each tree a target directory of its own")
    fresh.replace(copy)
    return copy


def own():
    """The program of this tree."""
    return build(ROOT, target() / "guard" / "own", target())


def of_base(base):
    """The program of a revision, or in a directory that has one already."""
    if Path(base).is_dir():
        program = Path(base) / PROGRAM
        if not program.is_file():
            raise CannotRun(f"{base} has no {PROGRAM}: give a git revision, or a directory with a built {PROGRAM}")
        return program.resolve()
    commit = git("rev-parse", "--verify", "--quiet", "--end-of-options", f"{base}^{{commit}}")
    home = target() / "guard" / f"{commit[:16]}-{benches_digest()[:16]}"
    if (home / PROGRAM).is_file():
        return home / PROGRAM
    tree = home / "tree"
    home.mkdir(parents=True, exist_ok=True)
    with open(target() / "guard" / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lay_out(commit, tree)
        try:
            # The lock file is the revision's, and these benches may depend on other crates of the workspace.
            return build(tree, home, target() / "guard" / "target", locked=False)
        except CannotRun as error:
            raise CannotRun(f"{error}: the benches of this tree do not build with {base}") from error


def lay_out(commit, tree):
    """The product of a revision with the benches of this tree: a benchmark that changed is no change of the product.

    All revisions share a target directory, so that crates of other people are compiled once. It is not this tree's: cargo knows a
    crate of a workspace by its place in that, and takes a build of any tree for its own if no source is newer. Hence every file
    is as new as possible here, and one revision is built after the other."""
    shutil.rmtree(tree, ignore_errors=True)
    extract(commit, tree)
    shutil.rmtree(tree / "benches", ignore_errors=True)
    shutil.copytree(ROOT / "benches", tree / "benches", ignore=shutil.ignore_patterns("__pycache__"))
    for path in tree.rglob("*"):
        os.utime(path, follow_symlinks=False)


def extract(commit, tree):
    tree.mkdir(parents=True)
    with tempfile.TemporaryFile() as archive:
        if subprocess.run(["git", "archive", "--format=tar", commit], cwd=ROOT, stdout=archive).returncode:
            raise CannotRun(f"git archive {commit} failed")
        archive.seek(0)
        with tarfile.open(fileobj=archive) as files:
            files.extractall(tree, filter="data")


def benches_digest():
    """Of what the program is built from, in this tree."""
    digest = hashlib.sha256()
    benches = ROOT / "benches"
    for path in sorted([*benches.glob("src/**/*.rs"), benches / "Cargo.toml"]):
        digest.update(f"{path.relative_to(benches)}\n".encode() + path.read_bytes())
    return digest.hexdigest()


def environment(slow=None, figures=None):
    """Of a measurement: temporary files in memory where there is room, so that a disk is not what differs."""
    variables = {name: value for name, value in os.environ.items() if name not in ("SHARDD_BENCH_SLOW", "SHARDD_BENCH_FIGURES")}
    if "TMPDIR" not in os.environ and os.access(MEMORY_DISK, os.W_OK) and shutil.disk_usage(MEMORY_DISK).free > NEEDED_MEMORY:
        variables["TMPDIR"] = str(MEMORY_DISK)
    if slow:
        variables["SHARDD_BENCH_SLOW"] = slow
    if figures:
        variables["SHARDD_BENCH_FIGURES"] = str(figures)
    return variables


def to_one_processor():
    """Binds this process and its children to one processor of those it may use."""
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def sample(program, benchmark, budget_ms, slow=None):
    """One repetition: a process of its own, as memory and addresses differ from one process to the next."""
    command = [program, benchmark.name, "--budget", str(budget_ms)]
    bind = to_one_processor if benchmark.one_processor else None
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment(slow), timeout=LIMIT_S, preexec_fn=bind)
    except subprocess.TimeoutExpired as error:
        raise CannotRun(f"{benchmark.name} took more than {LIMIT_S} s") from error
    except OSError as error:
        raise CannotRun(f"{program}: {error}") from error
    if done.returncode:
        raise CannotRun(f"{program} {benchmark.name} failed: {done.stderr.strip()[-2000:]}")
    return read_line(done.stdout)


def read_line(line):
    found = json.loads(line)
    return {"ours": found["ours"], "yardstick": found["yardstick"], "ratio": found["ours"] / found["yardstick"]}


def of_bench(bench):
    """The samples of a bench that takes minutes, by name."""
    with tempfile.TemporaryDirectory() as home:
        figures = Path(home) / "figures.jsonl"
        command = ["cargo", "bench", "--locked", "-p", "shardd-benches", "--bench", bench.target, "--", *bench.arguments]
        variables = {"RUST_MIN_STACK": "16777216", **environment(figures=figures)}
        if subprocess.run(command, cwd=ROOT, env=variables, stdout=2).returncode:
            raise CannotRun(f"{' '.join(command)} failed")
        found = {}
        for line in figures.read_text().splitlines():
            found.setdefault(json.loads(line)["name"], []).append(read_line(line))
        return found
