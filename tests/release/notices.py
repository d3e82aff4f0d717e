"""Writes the bill of materials (CycloneDX 1.6) and the texts of licences for the programs of a release.

    notices.py --platform TARGET --packages A,B --features F,G --epoch SECONDS --commit ID --out DIR
"""

import argparse
import json
import re
import subprocess
import uuid
from datetime import datetime, timezone
from pathlib import Path

from crates import ROOT, crates

CONSOLE = ROOT / "server/console/dist/LICENSES.txt"
DIGITS = ROOT / "client/data/digits/README.md"
TEXT_NAMES = re.compile(r"(licen[cs]e|copying|notice|copyright|unlicense)", re.I)
# Of crates without a text of their own, by the first of these licences that they name.
TEXTS = {
    "Apache-2.0": ROOT / "LICENSE",
    "MIT": ROOT / "tests/release/licences/MIT.txt",
    "BSD-3-Clause": ROOT / "tests/release/licences/BSD-3-Clause.txt",
}


def main():
    parser = argparse.ArgumentParser()
    for name in ("platform", "packages", "features", "commit"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--epoch", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    found = crates(arguments.platform, arguments.packages.split(","), arguments.features)
    arguments.out.mkdir(parents=True, exist_ok=True)
    version = found_version(found)
    sbom = bill(found, version, arguments)
    (arguments.out / "shardd.cdx.json").write_text(json.dumps(sbom, indent=1, ensure_ascii=False) + "\n")
    others = [crate for crate in found.values() if not crate.is_ours]
    (arguments.out / "THIRD-PARTY.txt").write_text(texts(others))
    print(f"{len(others)} crates of others and {len(found) - len(others)} of ours, {len(sbom['components'])} components")


def found_version(found):
    versions = {crate.version for crate in found.values() if crate.is_ours}
    if len(versions) != 1:
        raise SystemExit(f"our crates have several versions: {sorted(versions)}")
    return versions.pop()


# --- the bill of materials -------------------------------------------------------------------------------------------


def bill(found, version, arguments):
    root = f"shardd-release@{version}"
    top = [crate.reference for crate in found.values() if crate.name in arguments.packages.split(",")]
    extra = [standard_library(), *console()]
    graph = [{"ref": root, "dependsOn": top + [part["bom-ref"] for part in extra]}]
    graph += [{"ref": crate.reference, "dependsOn": crate.uses} for crate in found.values()]
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_OID, arguments.commit)}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(arguments.epoch, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": {
                "type": "application",
                "bom-ref": root,
                "name": "shardd",
                "version": version,
                "licenses": [{"expression": "Apache-2.0"}],
            },
            "properties": [
                {"name": "shardd:commit", "value": arguments.commit},
                {"name": "shardd:features", "value": arguments.features},
                {"name": "shardd:target", "value": arguments.platform},
            ],
        },
        "components": [component(crate) for crate in found.values()] + extra,
        "dependencies": graph,
    }


def component(crate):
    part = {
        "type": "library",
        "bom-ref": crate.reference,
        "name": crate.name,
        "version": crate.version,
        # A macro runs in the compiler.
        "scope": "excluded" if crate.is_macro else "required",
        "licenses": [{"expression": crate.licence}],
    }
    if crate.description:
        part["description"] = crate.description
    if crate.checksum:
        part["hashes"] = [{"alg": "SHA-256", "content": crate.checksum}]
        part["purl"] = f"pkg:cargo/{crate.name}@{crate.version.replace('+', '%2B')}"
    return part


def standard_library():
    version = subprocess.run(["rustc", "--version"], check=True, capture_output=True, text=True).stdout.split()[1]
    return {
        "type": "library",
        "bom-ref": f"rust-std@{version}",
        "name": "rust-std",
        "version": version,
        "description": "The standard library of Rust",
        "licenses": [{"expression": "MIT OR Apache-2.0"}],
    }


def console():
    """The packages of npm in the console's scripts, as the list of their licences names them."""
    for name, version, licence in re.findall(r"^(\S+) (\d\S*) \(([^)]+)\)$", CONSOLE.read_text(), re.M):
        yield {
            "type": "library",
            "bom-ref": f"npm:{name}@{version}",
            "name": name,
            "version": version,
            "purl": f"pkg:npm/{name}@{version}",
            "licenses": [{"expression": licence}],
        }


# --- texts of licences -----------------------------------------------------------------------------------------------


def texts(others):
    """Every text once, under the names of the crates that have it."""
    crates_of_text = {}
    for crate in others:
        for text in texts_of(crate):
            crates_of_text.setdefault(text, []).append(crate)
    parts = [
        "shardctl, shardd, shardtrain and the Python package have code of these crates.\n\n"
        + "".join(f"{crate.name} {crate.version} ({crate.licence})\n" for crate in others)
        + "\nNo file of a crate under MPL-2.0 is changed. The registry of Rust's packages has its source, under its name and version.\n"
    ]
    for text, crates_with_it in crates_of_text.items():
        names = ", ".join(f"{crate.name} {crate.version}" for crate in crates_with_it)
        parts.append(f"{'=' * 100}\n{names}\n{'=' * 100}\n\n{text}\n")
    parts.append(f"{'=' * 100}\nThe console of a node\n{'=' * 100}\n\n{CONSOLE.read_text().strip()}\n")
    parts.append(f"{'=' * 100}\nThe digits of shardctl demo\n{'=' * 100}\n\n{DIGITS.read_text().strip()}\n")
    return "\n".join(parts)


def texts_of(crate):
    files = [path for path in sorted(crate.folder.rglob("*")) if path.is_file() and TEXT_NAMES.match(path.name)]
    kept = [path for path in files if path.suffix.lower() not in (".rs", ".py", ".c", ".h", ".toml", ".json")]
    # A text as a tool may lay it out: line ends and blank edges say nothing.
    found = {"\n".join(line.rstrip() for line in path.read_text(errors="replace").strip().splitlines()) for path in kept}
    if found:
        return sorted(found)
    named = next((name for name in TEXTS if name in re.split(r"[ ()]+", crate.licence)), None)
    if named is None:
        raise SystemExit(f"{crate.reference} has no text of its licence, {crate.licence}; add one to TEXTS")
    owners = ", ".join(re.sub(r"\s*<[^>]*>", "", author) for author in crate.authors) or f"the authors of {crate.name}"
    return [f"Copyright (c) {owners}\n\n{TEXTS[named].read_text().strip()}"]


if __name__ == "__main__":
    main()
