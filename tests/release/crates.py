"""The crates of which the code is in the programs of a release, as cargo resolves them. Writes nothing."""

import json
import os
import subprocess
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass
class Crate:
    """One crate in one version."""

    name: str
    version: str
    licence: str
    folder: Path
    authors: list[str]
    description: str
    is_ours: bool
    is_macro: bool
    checksum: str | None = None
    uses: list[str] = field(default_factory=list)

    @property
    def reference(self):
        return f"{self.name}@{self.version}"


def crates(platform, packages, features):
    """Crates by their reference. Development and build dependencies leave no code in a program, so none of them is here."""
    reached = tree(platform, packages, features)
    metadata = json.loads(cargo("metadata", "--format-version", "1", "--filter-platform", platform, "--features", features))
    ours, sums = set(metadata["workspace_members"]), checksums()
    found, by_id = {}, {}
    for package in metadata["packages"]:
        key = package["name"], package["version"]
        if key not in reached:
            continue
        crate = Crate(
            *key,
            expression(package),
            Path(package["manifest_path"]).parent,
            package["authors"],
            " ".join((package["description"] or "").split()),
            package["id"] in ours,
            any("proc-macro" in target["kind"] for target in package["targets"]),
            sums.get(key),
        )
        by_id[package["id"]] = found[crate.reference] = crate
    for node in metadata["resolve"]["nodes"]:
        if node["id"] in by_id:
            normal = [dep["pkg"] for dep in node["deps"] if any(kind["kind"] is None for kind in dep["dep_kinds"])]
            by_id[node["id"]].uses = sorted({by_id[used].reference for used in normal if used in by_id})
    missing = reached - {(crate.name, crate.version) for crate in found.values()}
    if missing:
        raise SystemExit(f"cargo metadata lacks {sorted(missing)}")
    return dict(sorted(found.items()))


def tree(platform, packages, features):
    """Names and versions. `cargo tree` takes the features of these packages alone, as their build does."""
    chosen = [word for package in packages for word in ("--package", package)]
    lines = cargo("tree", "--target", platform, "--edges", "normal", "--prefix", "none", "--features", features, *chosen)
    words = (line.split() for line in lines.splitlines() if line)
    return {(name, version.removeprefix("v")) for name, version, *_ in words}


def expression(package):
    """The licence as an SPDX expression. Old manifests have a slash for OR."""
    licence = package["license"] or ""
    if not licence:
        raise SystemExit(f"{package['name']} {package['version']} names no licence")
    return " OR ".join(part.strip() for part in licence.split("/"))


def checksums():
    """SHA-256 of each crate's file at the registry, as Cargo.lock has it."""
    locked = tomllib.loads((ROOT / "Cargo.lock").read_text())["package"]
    return {(one["name"], one["version"]): one["checksum"] for one in locked if "checksum" in one}


def cargo(command, *arguments):
    line = [os.environ.get("CARGO", "cargo"), command, "--locked", *arguments]
    return subprocess.run(line, cwd=ROOT, check=True, capture_output=True, text=True).stdout
