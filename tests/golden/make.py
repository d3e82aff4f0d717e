"""Makes the files in `inputs/`: small ones, of each kind of source that is ingested.

Made once, with numpy 2.4, Pillow 13 and pyarrow 26, and committed: other releases of these packages write other bytes, and a version's id
covers the bytes of its inputs.

    python tests/golden/make.py
"""

import gzip
import io
import json
import pathlib
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as parquet
from PIL import Image

HERE = pathlib.Path(__file__).parent / "inputs"
ROWS = 60
WORDS = "shard grain sample epoch cursor plan node order".split()


def write(name, content):
    path = HERE / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())


def text(row):
    return " ".join(WORDS[(row * at + at * at) % 8] for at in range(1, 3 + row % 9))


def rows():
    return [
        {"id": row, "score": row * 0.25 - 3, "label": row % 4, "text": text(row), "flag": row % 3 == 0}
        for row in range(ROWS)
    ]


def lines(delimiter):
    shown = [delimiter.join(rows()[0])]
    for row in rows():
        shown.append(delimiter.join(str(value).lower() if isinstance(value, bool) else str(value) for value in row.values()))
    return "\n".join(shown) + "\n"


def tables():
    write("table.csv", lines(","))
    write("table.tsv", lines("\t"))
    write("semicolons.csv", lines(";"))
    write("table.csv.gz", gzip.compress(lines(",").encode(), mtime=0))
    write("table.csv.zst", pa.Codec("zstd").compress(lines(",").encode(), asbytes=True))
    write("table.jsonl", "".join(json.dumps(row) + "\n" for row in rows()))
    nested = [{**row, "tags": WORDS[: row["id"] % 3], "at": {"x": row["id"], "y": None}} for row in rows()]
    write("nested.jsonl", "".join(json.dumps(row) + "\n" for row in nested))
    table = pa.Table.from_pylist(nested)
    parquet.write_table(table, HERE / "table.parquet", row_group_size=25)
    feather.write_feather(table, HERE / "table.feather", compression="lz4", chunksize=25)
    with pa.OSFile(str(HERE / "table.arrow"), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=25)
    with pa.OSFile(str(HERE / "table.arrows"), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table, max_chunksize=25)
    write("table.libsvm", "".join(f"{row % 2} {1 + row % 5}:{row * 0.5} {7 + row % 3}:1\n" for row in range(ROWS)))


def arrays():
    image = np.arange(ROWS * 12, dtype="u1").reshape(ROWS, 2, 2, 3)
    np.save(HERE / "images.npy", image)
    np.savez_compressed(HERE / "arrays.npz", image=image, label=np.arange(ROWS) % 4, weight=np.arange(ROWS) * 0.5)


def texts():
    write("lines.txt", "".join(text(row) + "\n" for row in range(ROWS)))
    write("paragraphs.txt", "\n\n".join(text(row) for row in range(ROWS)) + "\n")
    for row in range(8):
        write(f"documents/{row % 2}/{row}.txt", text(row))


def picture(row, kind):
    pixels = (np.arange(8 * 10 * 3).reshape(8, 10, 3) * (row + 1) % 251).astype("u1")
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind)
    return file.getvalue()


def pictures():
    for row in range(12):
        kind = ["png", "jpeg"][row % 2]
        write(f"pictures/{WORDS[row % 3]}/{row:02}.{kind}", picture(row, kind))
    members = {f"{WORDS[row % 3]}/{row:02}.png": picture(row, "png") for row in range(12)}
    tar("pictures.tar", members)
    members = {}
    for row in range(12):
        members[f"{row:04}.png"] = picture(row, "png")
        members[f"{row:04}.cls"] = str(row % 3).encode()
        members[f"{row:04}.json"] = json.dumps({"row": row}).encode()
    tar("webdataset.tar", members)


def tar(name, members):
    with tarfile.open(HERE / name, "w") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


if __name__ == "__main__":
    HERE.mkdir(exist_ok=True)
    tables()
    arrays()
    texts()
    pictures()
