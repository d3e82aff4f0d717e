"""Packs staged files into a wheel, an archive and a Debian package. Equal files give equal bytes.

    pack.py --stage DIR --version V --epoch SECONDS --out DIR

The folder STAGE has `bin` (programs), `lib` (the loader), `python` (the package's sources), `dist-info` (of maturin),
`documents`, `completions`, `man` and `systemd`.
"""

import argparse
import base64
import gzip
import hashlib
import io
import os
import re
import subprocess
import tarfile
import tempfile
import zipfile
from datetime import datetime, timezone
from email.utils import format_datetime
from pathlib import Path

PROGRAMS = ("shardctl", "shardd", "shardtrain")
LOADER = "shardd/_native.abi3.so"
TAG = "cp311-abi3-manylinux_2_28_x86_64"
DEB = Path(__file__).resolve().parent / "deb"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--stage", type=Path, required=True)
    parser.add_argument("--version", required=True)
    parser.add_argument("--epoch", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    for pack in (wheel, archive, deb):
        made = pack(arguments.stage, arguments.version, arguments.epoch, arguments.out)
        print(f"{made.stat().st_size / 1e6:7.1f} MB  {made.name}")


def files(folder, under=""):
    """The files of a folder by their names below `under`, in one order."""
    found = sorted(path for path in folder.rglob("*") if path.is_file())
    return {f"{under}{path.relative_to(folder).as_posix()}": path.read_bytes() for path in found}


def programs(stage, under):
    return {f"{under}{name}": (stage / "bin" / name).read_bytes() for name in PROGRAMS}


# --- wheel -----------------------------------------------------------------------------------------------------------


def wheel(stage, version, epoch, out):
    """The loader as a module, the programs as scripts, which pip puts beside python."""
    name = f"shardd-{version}"
    info = f"{name}.dist-info"
    documents = files(stage / "documents")
    licences = {"LICENSE": documents["LICENSE"], "THIRD-PARTY.txt": documents["THIRD-PARTY.txt"]}
    content = files(stage / "python") | programs(stage, f"{name}.data/scripts/")
    content |= {LOADER: (stage / "lib/_native.abi3.so").read_bytes()}
    content |= {f"{info}/licenses/{file}": text for file, text in licences.items()}
    content[f"{info}/sboms/shardd.cdx.json"] = documents["shardd.cdx.json"]
    content[f"{info}/METADATA"] = with_licences((stage / "dist-info/METADATA").read_text(), licences, version).encode()
    content[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: shardd ({version})\nRoot-Is-Purelib: false\nTag: {TAG}\n".encode()
    record = f"{info}/RECORD"
    lines = [f"{file},sha256={digest(data)},{len(data)}\n" for file, data in sorted(content.items())]
    content[record] = "".join([*lines, f"{record},,\n"]).encode()
    made = out / f"{name}-{TAG}.whl"
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as packed:
        # The metadata last, as the specification of wheels recommends.
        for file in sorted(content, key=lambda file: (file.startswith(info), file)):
            entry = zipfile.ZipInfo(file, datetime.fromtimestamp(epoch, timezone.utc).timetuple()[:6])
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system = 3
            entry.external_attr = (0o100755 if "/scripts/" in file or file == LOADER else 0o100644) << 16
            packed.writestr(entry, content[file], compresslevel=9)
    return made


def with_licences(metadata, licences, version):
    """The metadata of maturin, and the names of licence files."""
    if f"\nVersion: {version}\n" not in metadata:
        raise SystemExit(f"the metadata of the Python package has another version than {version}")
    head, body = metadata.split("\n\n", 1)
    return head + "".join(f"\nLicense-File: {file}" for file in licences) + f"\n\n{body}"


def digest(data):
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


# --- archive ---------------------------------------------------------------------------------------------------------


def archive(stage, version, epoch, out):
    """Programs and all that belongs to them, for machines without Python and without dpkg."""
    name = f"shardd-{version}-x86_64-linux"
    content = programs(stage, "bin/") | files(stage / "documents")
    content |= files(stage / "completions", "completions/") | files(stage / "man", "man/man1/")
    content["systemd/shardd.service"] = unit("/usr/local/bin/shardd")
    content["systemd/shardd.toml"] = (DEB / "shardd.toml").read_bytes()
    made = out / f"{name}.tar.gz"
    with open(made, "wb") as file, gzip.GzipFile("", "wb", 9, file, mtime=epoch) as packed:
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as tar:
            for path, data in sorted(content.items()):
                entry = tarfile.TarInfo(f"{name}/{path}")
                entry.size, entry.mtime, entry.mode = len(data), epoch, 0o755 if path.startswith("bin/") else 0o644
                entry.uname = entry.gname = "root"
                tar.addfile(entry, io.BytesIO(data))
    return made


def unit(program):
    return (DEB / "shardd.service").read_text().replace("@PROGRAM@", program).encode()


# --- Debian package --------------------------------------------------------------------------------------------------


def deb(stage, version, epoch, out):
    """The programs, the unit of a node with its settings, and the user it runs as."""
    documents = files(stage / "documents")
    content = programs(stage, "usr/bin/")
    content["usr/lib/systemd/system/shardd.service"] = unit("/usr/bin/shardd")
    content["etc/shardd/shardd.toml"] = (DEB / "shardd.toml").read_bytes()
    content["usr/share/bash-completion/completions/shardctl"] = (stage / "completions/shardctl.bash").read_bytes()
    content["usr/share/zsh/vendor-completions/_shardctl"] = (stage / "completions/_shardctl").read_bytes()
    content["usr/share/fish/vendor_completions.d/shardctl.fish"] = (stage / "completions/shardctl.fish").read_bytes()
    for page, text in files(stage / "man").items():
        content[f"usr/share/man/man1/{page}.gz"] = gzip.compress(text, 9, mtime=0)
    shared = "usr/share/doc/shardd/"
    content[f"{shared}copyright"] = (DEB / "copyright").read_bytes()
    content[f"{shared}README.md"] = documents["README.md"]
    content[f"{shared}THIRD-PARTY.txt.gz"] = gzip.compress(documents["THIRD-PARTY.txt"], 9, mtime=0)
    content[f"{shared}shardd.cdx.json.gz"] = gzip.compress(documents["shardd.cdx.json"], 9, mtime=0)
    content[f"{shared}CHANGELOG.md.gz"] = gzip.compress(documents["CHANGELOG.md"], 9, mtime=0)
    content[f"{shared}changelog.gz"] = gzip.compress(debian_changelog(version, epoch), 9, mtime=0)
    made = out / f"shardd_{version}_amd64.deb"
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "root")
        for path, data in content.items():
            write(root / path, data, 0o755 if path.startswith("usr/bin/") else 0o644)
        size = sum(-(-len(data) // 1024) for data in content.values())
        control = (DEB / "control").read_text().replace("@VERSION@", version).replace("@SIZE@", str(size))
        write(root / "DEBIAN/control", control.encode(), 0o644)
        write(root / "DEBIAN/conffiles", b"/etc/shardd/shardd.toml\n", 0o644)
        sums = [f"{hashlib.md5(data).hexdigest()}  {path}\n" for path, data in sorted(content.items()) if not path.startswith("etc/")]
        write(root / "DEBIAN/md5sums", "".join(sums).encode(), 0o644)
        for script in ("postinst", "prerm", "postrm"):
            write(root / "DEBIAN" / script, (DEB / script).read_bytes(), 0o755)
        # Depends on the umask else.
        for directory in (root, *(path for path in root.rglob("*") if path.is_dir())):
            directory.chmod(0o755)
        # One thread: how many there are must not show in the bytes. Bullseye reads xz, and not zstd.
        build = ["dpkg-deb", "--root-owner-group", "-Zxz", "-z6", "--threads-max=1", "--build", root, made]
        subprocess.run(build, check=True, stdout=subprocess.DEVNULL, env=os.environ | {"SOURCE_DATE_EPOCH": str(epoch)})
    return made


def debian_changelog(version, epoch):
    """One entry: CHANGELOG.md has the changes."""
    text = (DEB / "control").read_text()
    maintainer = re.search("^Maintainer: (.*)$", text, re.M)[1]
    entry = f"shardd ({version}) unstable; urgency=medium\n\n  * Release {version}; its changes are in CHANGELOG.md.gz.\n\n"
    return f"{entry} -- {maintainer}  {format_datetime(datetime.fromtimestamp(epoch, timezone.utc))}\n".encode()


def write(path, data, mode):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    path.chmod(mode)


if __name__ == "__main__":
    main()
