"""Counts the samples of an image archive and sums their row digests, by other code than shardd's: tarfile and blake3.

usage: source_digest.py ARCHIVE.tar.gz FOLDER   prints "<samples> <sum of the row digests, 32 hexadecimal digits>"
"""
import struct
import sys
import tarfile

from blake3 import blake3

ROW = "shardfmt 2026 row v1"


def field(value: bytes, variable: bool) -> bytes:
    return b"\x01" + (struct.pack("<I", len(value)) if variable else b"") + value


def main(archive: str, folder: str) -> None:
    images = []
    with tarfile.open(archive) as tar:
        for member in tar:
            parts = member.name.removeprefix("./").split("/")
            if member.isfile() and len(parts) == 3 and parts[0] == folder:
                images.append((parts[1], "/".join(parts), tar.extractfile(member).read()))
    classes = sorted({label for label, _, _ in images})
    total = 0
    for label, path, image in images:
        row = field(image, True) + field(struct.pack("<q", classes.index(label)), False) + field(path.encode(), True)
        total += int.from_bytes(blake3(row, derive_key_context=ROW).digest()[:16], "little")
    print(len(images), f"{total % 2**128:032x}")


if __name__ == "__main__":
    main(*sys.argv[1:])
