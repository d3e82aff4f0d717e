"""Prints the version of the release, or the places that do not agree on it."""

import re
import subprocess
import sys
import tomllib
from datetime import date, datetime, timezone

from crates import ROOT

HEADING = re.compile(r"^## \[(\d+\.\d+\.\d+)\] - (\d{4}-\d\d-\d\d)$", re.M)


def main():
    version = manifest("Cargo.toml")["workspace"]["package"]["version"]
    faults = [*changelog(version), *python(), *lock(version), *tag(version)]
    print("\n".join(faults) if faults else version, file=sys.stderr if faults else sys.stdout)
    return 1 if faults else 0


def manifest(file):
    return tomllib.loads((ROOT / file).read_text())


def changelog(version):
    text = (ROOT / "CHANGELOG.md").read_text()
    if "\n## [Unreleased]\n" not in text:
        yield "CHANGELOG.md has no section [Unreleased]"
    newest = HEADING.search(text)
    if newest is None:
        yield "CHANGELOG.md has no heading such as ## [0.1.0] - 2026-11-30"
    elif newest[1] != version:
        yield f"the newest release of CHANGELOG.md is {newest[1]}, and Cargo.toml has {version}"
    elif date.fromisoformat(newest[2]) > datetime.now(timezone.utc).date():
        yield f"CHANGELOG.md has a date in the future, {newest[2]}"


def python():
    """Maturin takes the version from Cargo.toml, unless pyproject.toml has one of its own."""
    project = manifest("client/python/pyproject.toml")["project"]
    if "version" in project or "version" not in project.get("dynamic", []):
        yield "client/python/pyproject.toml has a version of its own"
    if manifest("client/python/Cargo.toml")["package"]["version"] != {"workspace": True}:
        yield "client/python/Cargo.toml has a version of its own"


def lock(version):
    ours = [one for one in manifest("Cargo.lock")["package"] if "source" not in one]
    yield from (f"Cargo.lock has {one['name']} {one['version']}" for one in ours if one["version"] != version)


def tag(version):
    """A tag of a release on this commit has its version."""
    tags = subprocess.run(["git", "tag", "--points-at", "HEAD", "v[0-9]*"], cwd=ROOT, check=True, capture_output=True, text=True)
    yield from (f"this commit has the tag {name}" for name in tags.stdout.split() if name != f"v{version}")


if __name__ == "__main__":
    sys.exit(main())
