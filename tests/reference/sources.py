"""Makes a file of every kind that is ingested, with the programs that people use, and compares what became of it.

  sources.py write FOLDER
      makes the files of each case in FOLDER/CASE; prints a line of JSON for each: its kind, the paths to
      ingest, the options, and the number of bytes
  sources.py check FOLDER STORE VERSIONS
      compares the files with the shards of VERSIONS, which is JSON: {CASE: VERSION, ...}; prints a line of JSON for
      each case: its rows as made and as found, how many columns it has, and of which types

Nothing of shardd is used: the shards are found as docs/FORMAT.md says, and read by pyarrow.
"""

import csv
import decimal
import gzip
import io
import json
import re
import struct
import sys
import tarfile
from pathlib import Path
from typing import Callable, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import tokenizers
import webdataset
from PIL import Image

from ingested import rows_of

ROWS = 1000


class Case(NamedTuple):
    kind: str
    given: str
    write: Callable  # (folder) writes `given` into it
    made: Callable  # (folder) the table that was written, in plain types
    options: tuple = ()


CASES: dict[str, Case] = {}


# --- tables -----------------------------------------------------------------------------------------------------------


def some(values, every):
    """The values, every so manieth of which is null."""
    return [value if row % every != every - 1 else None for row, value in enumerate(values)]


def table(is_parquet):
    """All types that pyarrow writes: into Parquet, or into Arrow's own files."""
    rows = range(ROWS)
    columns = {}
    for bits in (8, 16, 32, 64):
        signed = [(row * 0x9E3779B97F4A7C15) % 2**bits - 2 ** (bits - 1) for row in rows]
        columns[f"i{bits}"] = pa.array(some(signed, bits), f"int{bits}")
        columns[f"u{bits}"] = pa.array([value + 2 ** (bits - 1) for value in signed], f"uint{bits}")
    floats = np.array([np.nan, np.inf, -np.inf, -0.0, 65504.0] + [row / 8 - 50 for row in rows[5:]])
    for bits in (16, 32, 64):
        columns[f"f{bits}"] = pa.array(floats.astype(f"f{bits // 8}"))
    columns["flag"] = pa.array(some([row % 3 == 0 for row in rows], 5))
    columns["nothing"] = pa.nulls(ROWS)
    for bits, precision in ((32, 9), (64, 18), (128, 38), (256, 76)):
        largest = 10**precision - 1
        with decimal.localcontext(prec=80):
            values = [decimal.Decimal(largest - row * 7) / 1000 * (-1) ** row for row in rows]
        columns[f"decimal{bits}"] = pa.array(some(values, 11), getattr(pa, f"decimal{bits}")(precision, 3))
    columns |= times()
    texts = ["" if row % 10 == 0 else f"row {row} é𝄞 " + "x" * (row % 40) for row in rows]
    for kind in (pa.string(), pa.large_string(), pa.string_view()):
        columns[str(kind)] = pa.array(some(texts, 7), kind)
    blobs = [bytes([row % 256]) * (row % 30) for row in rows]
    for kind in (pa.binary(), pa.large_binary(), pa.binary_view()):
        columns[str(kind)] = pa.array(some(blobs, 9), kind)
    columns["fixed"] = pa.array(some([bytes([row % 256]) * 5 for row in rows], 4), pa.binary(5))
    columns["words"] = pa.array(some([f"word {row % 20}" for row in rows], 6)).dictionary_encode()
    columns |= nested()
    columns["id"] = pa.ExtensionArray.from_storage(
        pa.uuid(), pa.array([bytes([row % 256]) * 16 for row in rows], pa.binary(16))
    )
    pixels = np.arange(ROWS * 6, dtype="f4").reshape(ROWS, 2, 3)
    columns["tensor"] = pa.FixedShapeTensorArray.from_numpy_ndarray(pixels)
    if not is_parquet:
        columns["interval"] = pa.array(some([(row, -row, row * 1000) for row in rows], 8), pa.month_day_nano_interval())
        ends = pa.array(range(10, ROWS + 1, 10), pa.int32())
        columns["runs"] = pa.RunEndEncodedArray.from_arrays(ends, pa.array(some(range(len(ends)), 5), pa.int16()))
        numbers = pa.array(some([row % 9 for row in rows], 6), pa.int16())
        columns["classes"] = numbers.dictionary_encode()
        columns["deep_words"] = pa.array(
            [[f"w{row % 5}"] * (row % 3) for row in rows], pa.list_(pa.dictionary("int8", "string"))
        )
    return pa.table(columns)


def times():
    rows = range(ROWS)
    columns = {}
    days = [row * 13 - 4000 for row in rows]
    columns["date32"] = pa.array(some(days, 10), pa.int32()).cast(pa.date32())
    columns["date64"] = pa.array([day * 86_400_000 for day in days], pa.int64()).cast(pa.date64())
    for unit, second in (("s", 1), ("ms", 10**3), ("us", 10**6), ("ns", 10**9)):
        instants = pa.array(some([1_700_000_000 * second + row * 977 for row in rows], 12), pa.int64())
        columns[f"timestamp_{unit}"] = instants.cast(pa.timestamp(unit))
        columns[f"timestamp_{unit}_zone"] = instants.cast(pa.timestamp(unit, "Europe/Oslo"))
        columns[f"duration_{unit}"] = pa.array([row * 31 - 500 for row in rows], pa.int64()).cast(pa.duration(unit))
        bits = 32 if second <= 1000 else 64
        clock = pa.array([row * 86 * second for row in rows], getattr(pa, f"int{bits}")())
        columns[f"time_{unit}"] = clock.cast(getattr(pa, f"time{bits}")(unit))
    return columns


def nested():
    rows = range(ROWS)
    lists = some([[row + at if at != 2 else None for at in range(row % 5)] for row in rows], 6)
    structs = some(
        [{"x": row, "in": {"deep": row % 2 == 0, "name": None if row % 3 == 0 else "b" * (row % 6)}} for row in rows], 8
    )
    inner = pa.struct([("deep", pa.bool_()), ("name", pa.string())])
    maps = some([[(f"k{at}", row if at else None) for at in range(row % 3)] for row in rows], 12)
    boxes = [[{"at": [row / 2, at]} for at in range(row % 3)] for row in rows]
    return {
        "list": pa.array(lists, pa.list_(pa.int32())),
        "large_list": pa.array(lists, pa.large_list(pa.int64())),
        "list_view": pa.array(lists, pa.list_view(pa.int16())),
        "fixed_list": pa.array(some([[row, None, row / 2] for row in rows], 9), pa.list_(pa.float32(), 3)),
        "lists": pa.array(
            [[None if at else [f"{row}"] for at in range(row % 3)] for row in rows], pa.list_(pa.list_(pa.string()))
        ),
        "struct": pa.array(structs, pa.struct([("x", pa.uint16()), ("in", inner)])),
        "map": pa.array(maps, pa.map_(pa.string(), pa.int32())),
        "boxes": pa.array(boxes, pa.list_(pa.struct([("at", pa.list_(pa.float64()))]))),
    }


def plain_type(kind):
    """What shards hold instead: values for encodings, and lists for views."""
    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return plain_type(kind.value_type)
    if kind == pa.string_view():
        return pa.string()
    if kind == pa.binary_view():
        return pa.binary()
    if pa.types.is_list(kind) or pa.types.is_list_view(kind):
        return pa.list_(kind.value_field.with_type(plain_type(kind.value_type)))
    return kind


def plain(found):
    """The table with plain types; metadata that describes the file is dropped."""
    columns, fields = [], []
    for field, column in zip(found.schema, found.columns):
        kind = plain_type(field.type)
        columns.append(column if kind == field.type else pa.array(column.to_pylist(), kind))
        metadata = {key: value for key, value in (field.metadata or {}).items() if key != b"PARQUET:field_id"}
        fields.append(pa.field(field.name, kind, field.nullable, metadata))
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def of_parquet(found):
    """The table as Parquet holds it, which knows no seconds."""
    changed = {
        "time_s": pa.time32("ms"),
        "timestamp_s": pa.timestamp("ms"),
        "timestamp_s_zone": pa.timestamp("ms", "UTC"),
    }
    for name, kind in changed.items():
        at = found.schema.get_field_index(name)
        found = found.set_column(at, name, found[name].cast(kind))
    return found


for codec in ("none", "snappy", "gzip", "brotli", "zstd", "lz4"):
    CASES[f"parquet-{codec}"] = Case(
        f"Parquet, {codec}",
        "table.parquet",
        lambda folder, codec=codec: pq.write_table(
            table(True),
            folder / "table.parquet",
            compression=codec,
            row_group_size=300,
            data_page_version="2.0" if codec == "zstd" else "1.0",
        ),
        lambda _: plain(of_parquet(table(True))),
    )


def arrow(new, compression):
    def write(folder):
        options = pa.ipc.IpcWriteOptions(compression=compression, emit_dictionary_deltas=new is pa.ipc.new_stream)
        made = table(False)
        with open(folder / "table.arrow", "wb") as file, new(file, made.schema, options=options) as writer:
            writer.write_table(made, max_chunksize=300)

    return write


CASES["arrow-file"] = Case("Arrow file", "table.arrow", arrow(pa.ipc.new_file, None), lambda _: plain(table(False)))
CASES["arrow-stream"] = Case(
    "Arrow stream", "table.arrow", arrow(pa.ipc.new_stream, None), lambda _: plain(table(False))
)
CASES["arrow-stream-zstd"] = Case(
    "Arrow stream, zstd", "table.arrow", arrow(pa.ipc.new_stream, "zstd"), lambda _: plain(table(False))
)
for codec in ("lz4", "zstd"):
    CASES[f"feather-{codec}"] = Case(
        f"Feather, {codec}",
        "table.feather",
        lambda folder, codec=codec: pa.feather.write_feather(
            table(False), folder / "table.feather", compression=codec, chunksize=300
        ),
        lambda _: plain(table(False)),
    )


def ragged():
    pairs = [[{"index": at * 1000 + row, "value": at / 2} for at in range(row % 5)] for row in range(ROWS)]
    pair = pa.struct([pa.field("index", pa.uint32(), False), pa.field("value", pa.float32(), False)])
    return pa.table({"label": pa.array([row % 2 for row in range(ROWS)]), "features": pa.array(pairs, pa.list_(pair))})


CASES["parquet-ragged"] = Case(
    "Parquet, ragged pairs",
    "ragged.parquet",
    lambda folder: pq.write_table(ragged(), folder / "ragged.parquet"),
    lambda _: ragged(),
)

# --- tables as text ---------------------------------------------------------------------------------------------------


def typed_lines():
    rows = range(ROWS)
    words = [("plain", "with, comma", 'a "quoted" one', "two\nlines", "é𝄞", "tab\there")[row % 6] for row in rows]
    seconds = pa.array([1_700_000_000 + row * 977 for row in rows], pa.int64())
    return pa.table(
        {
            "id": pa.array([row * 10**12 - 5 for row in rows]),
            "ratio": pa.array(some([row / 7 for row in rows], 9)),
            "word": pa.array(words),
            "flag": pa.array(some([row % 2 == 0 for row in rows], 7)),
            "day": pa.array([row * 7 for row in rows], pa.int32()).cast(pa.date32()),
            "time": seconds.cast(pa.timestamp("s")),
        }
    )


def separated(delimiter):
    """As Python's own module writes it, with the least quoting."""
    text = io.StringIO()
    writer = csv.writer(text, delimiter=delimiter)
    made = typed_lines()
    writer.writerow(made.column_names)
    writer.writerows(
        [str(value).lower() if isinstance(value, bool) else value for value in row.values()] for row in made.to_pylist()
    )
    return text.getvalue().encode()


CASES["csv"] = Case(
    "CSV", "table.csv", lambda folder: pa.csv.write_csv(typed_lines(), folder / "table.csv"), lambda _: typed_lines()
)
CASES["csv-gz"] = Case(
    "CSV, gzip",
    "table.csv.gz",
    lambda folder: (folder / "table.csv.gz").write_bytes(gzip.compress(separated(","))),
    lambda _: typed_lines(),
)
CASES["tsv"] = Case(
    "TSV", "table.tsv", lambda folder: (folder / "table.tsv").write_bytes(separated("\t")), lambda _: typed_lines()
)


def objects():
    for row in range(ROWS):
        made = {
            "id": row,
            "big": 2**63 + row,
            "score": row / 4 if row % 2 else row,
            "name": f'row {row} é𝄞 "quoted"\n',
            "tags": [f"t{at}" for at in range(row % 4)],
            "box": {"x": row, "inner": {"deep": row % 2 == 0, "name": None if row % 3 else "n"}},
            "points": [{"x": at, "y": at / 2} for at in range(row % 3)],
        }
        if row % 5 == 0:
            made["maybe"] = row % 10 == 0
        yield made


def object_table():
    inner = pa.struct([("deep", pa.bool_()), ("name", pa.string())])
    point = pa.struct([("x", pa.int64()), ("y", pa.float64())])
    schema = {
        "id": pa.int64(),
        "big": pa.uint64(),
        "score": pa.float64(),
        "name": pa.string(),
        "tags": pa.list_(pa.string()),
    }
    schema |= {"box": pa.struct([("x", pa.int64()), ("inner", inner)]), "points": pa.list_(point), "maybe": pa.bool_()}
    return pa.Table.from_pylist(list(objects()), pa.schema(schema))


def json_lines(is_ascii):
    return "".join(json.dumps(made, ensure_ascii=is_ascii) + "\n" for made in objects()).encode()


def zstd(path, content):
    with pa.CompressedOutputStream(str(path), "zstd") as file:
        file.write(content)


CASES["jsonl"] = Case(
    "JSON Lines, nested",
    "rows.jsonl",
    lambda folder: (folder / "rows.jsonl").write_bytes(json_lines(True)),
    lambda _: object_table(),
)
CASES["jsonl-zst"] = Case(
    "JSON Lines, zstd",
    "rows.jsonl.zst",
    lambda folder: zstd(folder / "rows.jsonl.zst", json_lines(False)),
    lambda _: object_table(),
)


def sparse():
    for row in range(ROWS):
        yield row % 3 - 1, [(at * (row + 1) + 1, (at + 1) / 8 - 1) for at in range(row % 6)]


def libsvm(folder):
    """As scikit-learn's `dump_svmlight_file` writes it."""
    lines = [f"{label} " + " ".join("%d:%.16g" % pair for pair in pairs) + "\n" for label, pairs in sparse()]
    (folder / "rows.libsvm").write_text(
        "# Generated by dump_svmlight_file\n# Column indices are one-based\n" + "".join(lines)
    )


def sparse_table():
    pair = pa.struct([pa.field("index", pa.uint32(), False), pa.field("value", pa.float32(), False)])
    features = [[{"index": index, "value": value} for index, value in pairs] for _, pairs in sparse()]
    labels = pa.array([label for label, _ in sparse()], pa.int64())
    return pa.table({"label": labels, "features": pa.array(features, pa.list_(pa.field("item", pair, False)))})


CASES["libsvm"] = Case("libsvm", "rows.libsvm", libsvm, lambda _: sparse_table())

# --- arrays -----------------------------------------------------------------------------------------------------------


def column_of(array):
    """A column of the array's rows: tensors, if it has more than one dimension."""
    array = array.astype(array.dtype.newbyteorder("="))
    if array.ndim == 1:
        return pa.array(array)
    size = int(np.prod(array.shape[1:]))
    rows = pa.FixedSizeListArray.from_arrays(pa.array(array.ravel()), size)
    kind = pa.fixed_shape_tensor(rows.type.value_type, array.shape[1:])
    return pa.ExtensionArray.from_storage(kind, rows.cast(kind.storage_type))


def array(kind, made):
    CASES["npy-" + kind.replace(" ", "-")] = Case(
        f"NumPy .npy, {kind}",
        "array.npy",
        lambda folder: np.save(folder / "array.npy", made()),
        lambda _: pa.table({"data": column_of(made())}),
    )


def counted(shape, dtype):
    return (np.arange(np.prod(shape)) % 251).reshape(shape).astype(dtype)


array("three dimensions", lambda: counted((ROWS, 4, 5), "f4"))
array("fortran order", lambda: np.asfortranarray(counted((ROWS, 3, 2), "f8")))
array("big-endian", lambda: counted((ROWS,), ">i4"))
array("halves", lambda: counted((ROWS, 7), "f2"))


def structures():
    made = np.zeros(ROWS, [("id", "<u4"), ("place", ">f8", (2,)), ("word", "U5"), ("flag", "?")])
    made["id"], made["flag"] = np.arange(ROWS), np.arange(ROWS) % 3 == 0
    made["place"], made["word"] = counted((ROWS, 2), "f8"), [f"w{row % 90}é" for row in range(ROWS)]
    return made


def structure_table(_):
    made = structures()
    columns = {
        name: pa.array(made[name].tolist()) if name == "word" else column_of(made[name]) for name in made.dtype.names
    }
    return pa.table(columns)


CASES["npy-structured"] = Case(
    "NumPy .npy, structured", "array.npy", lambda folder: np.save(folder / "array.npy", structures()), structure_table
)


def arrays():
    times = counted((ROWS,), "M8[us]")
    times[::7] = np.datetime64("NaT")
    return {
        "images": counted((ROWS, 6, 6, 3), "u1"),
        "labels": counted((ROWS,), "i8"),
        "flags": counted((ROWS,), "u1") % 2 == 0,
        "words": np.array([f"w{row} é" for row in range(ROWS)]),
        "bytes": np.array([b"b%d" % row for row in range(ROWS)]),
        "times": times,
        "wide": np.asfortranarray(counted((ROWS, 9), ">f8")),
    }


def array_table():
    made = arrays()
    words, raw = pa.array(made.pop("words").tolist()), pa.array(made.pop("bytes").tolist())
    columns = {name: column_of(array) for name, array in made.items()}
    return pa.table({name: {"words": words, "bytes": raw}.get(name, columns.get(name)) for name in arrays()})


CASES["npz"] = Case(
    "NumPy .npz", "arrays.npz", lambda folder: np.savez(folder / "arrays.npz", **arrays()), lambda _: array_table()
)
CASES["npz-compressed"] = Case(
    "NumPy .npz, compressed",
    "arrays.npz",
    lambda folder: np.savez_compressed(folder / "arrays.npz", **arrays()),
    lambda _: array_table(),
)

# --- images and archives ----------------------------------------------------------------------------------------------

CLASSES = ["cat", "dog", "élan"]


def picture(number, mode="RGB"):
    y, x = np.mgrid[0:24, 0:32]
    pixels = np.stack([x * 7 + number, y * 9 + number * 3, (x + y) * 3], axis=-1).astype("u1")
    return Image.fromarray(pixels).convert(mode)


def pictures(folder):
    """Images of every format and of several modes, in the folders of their classes."""
    formats = [
        ("jpg", "RGB"),
        ("png", "RGBA"),
        ("webp", "RGB"),
        ("bmp", "RGB"),
        ("jpeg", "L"),
        ("png", "P"),
        ("png", "L"),
    ]
    for number in range(42):
        ending, mode = formats[number % len(formats)]
        path = folder / CLASSES[number % 3] / f"{number:03}.{ending}"
        path.parent.mkdir(parents=True, exist_ok=True)
        how = {"jpg": {"quality": 90}, "jpeg": {"progressive": number % 2 == 0}, "webp": {"lossless": True}}
        picture(number, mode).save(path, **how.get(ending, {}))


def sorted_paths(root):
    return sorted((path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()), key=str.encode)


def labelled(images, paths):
    labels = [CLASSES.index(path.split("/")[0]) for path in paths]
    classes = pa.field(
        "label", pa.int64(), metadata={"shardd.classes": json.dumps(CLASSES, ensure_ascii=False, separators=(",", ":"))}
    )
    columns = {"image": images, "label": pa.array(labels, pa.int64()), "path": pa.array(paths)}
    return pa.table(columns, schema=pa.schema([pa.field("image", images.type), classes, pa.field("path", pa.string())]))


def picture_table(folder, decoded=False):
    root = folder / "images"
    paths = sorted_paths(root)
    if decoded:
        pixels = np.stack([np.asarray(Image.open(root / path).convert("RGB")) for path in paths])
        return labelled(column_of(pixels), paths)
    return labelled(pa.array([(root / path).read_bytes() for path in paths], pa.binary()), paths)


def lossless(folder):
    for number in range(30):
        path = folder / "images" / CLASSES[number % 3] / f"{number:03}.{('png', 'bmp', 'webp')[number // 3 % 3]}"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture(number, ("RGB", "RGBA", "L")[number % 3] if path.suffix == ".png" else "RGB").save(
            path, **({"lossless": True} if path.suffix == ".webp" else {})
        )


CASES["images"] = Case("image folder", "images", lambda folder: pictures(folder / "images"), picture_table)
CASES["images-decoded"] = Case(
    "image folder, decoded", "images", lossless, lambda folder: picture_table(folder, True), ("--decode",)
)


def tarred(ending):
    def write(folder):
        pictures(folder / "images")
        content = io.BytesIO()
        with tarfile.open(fileobj=content, mode="w:gz" if ending == "tar.gz" else "w") as archive:
            for path in sorted_paths(folder / "images"):
                archive.add(folder / "images" / path, path)
        if ending == "tar.zst":
            zstd(folder / "images.tar.zst", content.getvalue())
        else:
            (folder / f"images.{ending}").write_bytes(content.getvalue())

    return write


for ending in ("tar", "tar.gz", "tar.zst"):
    CASES[ending.replace(".", "-")] = Case(f".{ending} of images", f"images.{ending}", tarred(ending), picture_table)


def samples():
    for row in range(120):
        image = io.BytesIO()
        picture(row).save(image, "JPEG")
        yield {
            "__key__": f"part/{row:06}",
            "jpg": image.getvalue(),
            "cls": row % 10,
            "json": {"row": row, "words": ["é", None, row / 2]},
            "npy": counted((2, 3), "f4") + np.float32(row),
            "txt": f"caption {row} é",
        }


def shards_of_samples(folder):
    (folder / "samples").mkdir()
    with webdataset.ShardWriter(str(folder / "samples/train-%04d.tar"), maxcount=50, verbose=0) as writer:
        for sample in samples():
            writer.write(sample)


def sample_table(_):
    made = list(samples())
    text = [webdataset.writer.default_handlers["json"](sample["json"]) for sample in made]
    text = [value.decode() if isinstance(value, bytes) else value for value in text]
    columns = {  # the writer sorts members by their endings
        "key": pa.array([sample["__key__"] for sample in made]),
        "label": pa.array([sample["cls"] for sample in made], pa.int64()),
        "image": pa.array([sample["jpg"] for sample in made], pa.binary()),
        "json": pa.array(text),
        "npy": column_of(np.stack([sample["npy"] for sample in made])),
        "text": pa.array([sample["txt"] for sample in made]),
    }
    return pa.table(columns)


CASES["webdataset"] = Case("WebDataset", "samples", shards_of_samples, sample_table)

# --- MosaicML shards --------------------------------------------------------------------------------------------------

# Name, encoding, bytes of a value if all have the same number.
MDS_COLUMNS = [
    ("caption", "str", None),
    ("embedding", "ndarray:float32:2,3", 24),
    ("id", "int", 8),
    ("image", "jpeg", None),
    ("meta", "json", None),
    ("raw", "bytes", None),
    ("score", "float64", 8),
    ("tokens", "ndarray:uint16", None),
]


def mds_rows():
    for row, sample in enumerate(samples()):
        meta = json.dumps(sample["json"])
        tokens = np.arange(1 + row % 7, dtype="u2") * 3
        yield [sample["txt"], sample["npy"], row * 5, sample["jpg"], meta, bytes([row]) * (row % 4), row / 3, tokens]


def mds_value(value, encoding):
    if encoding == "ndarray:uint16":  # the shape first: how many dimensions, in bytes; which
        return bytes([1 << 2, len(value)]) + value.tobytes()
    if encoding.startswith("ndarray"):
        return value.tobytes()
    if encoding == "int":
        return struct.pack("<q", value)
    if encoding == "float64":
        return struct.pack("<d", value)
    return value.encode() if isinstance(value, str) else value


def mds_shard(rows):
    """What `MDSWriter.encode_joint_shard` makes: a count, offsets, what the columns are, samples."""
    names, encodings, sizes = (list(part) for part in zip(*MDS_COLUMNS))
    about = {"version": 2, "format": "mds", "column_names": names, "column_encodings": encodings, "column_sizes": sizes}
    about = json.dumps(about | {"compression": None, "hashes": [], "size_limit": 1 << 26}, sort_keys=True).encode()
    made = []
    for row in rows:
        values = [mds_value(value, encoding) for value, encoding in zip(row, encodings)]
        lengths = [len(value) for value, size in zip(values, sizes) if size is None]
        made.append(struct.pack(f"<{len(lengths)}I", *lengths) + b"".join(values))
    first = 4 + 4 * (len(made) + 1) + len(about)
    offsets = first + np.cumsum([0] + [len(sample) for sample in made])
    return struct.pack("<I", len(made)) + offsets.astype("<u4").tobytes() + about + b"".join(made)


def mds(compression):
    def write(folder):
        names, encodings, sizes = (list(part) for part in zip(*MDS_COLUMNS))
        shards, rows = [], list(mds_rows())
        (folder / "mds").mkdir()
        for at in range(0, len(rows), 50):
            raw, name = mds_shard(rows[at : at + 50]), f"shard.{at // 50:05}.mds"
            zipped = pa.compress(raw, codec="zstd", asbytes=True) if compression else None
            (folder / "mds" / (f"{name}.zstd" if compression else name)).write_bytes(zipped or raw)
            zip_data = {"basename": f"{name}.zstd", "bytes": len(zipped), "hashes": {}} if zipped else None
            shards.append(
                {
                    "column_encodings": encodings,
                    "column_names": names,
                    "column_sizes": sizes,
                    "compression": compression,
                    "format": "mds",
                    "hashes": [],
                    "raw_data": {"basename": name, "bytes": len(raw), "hashes": {}},
                    "samples": len(rows[at : at + 50]),
                    "size_limit": 1 << 26,
                    "version": 2,
                    "zip_data": zip_data,
                }
            )
        (folder / "mds/index.json").write_text(json.dumps({"shards": shards, "version": 2}, sort_keys=True))

    return write


def mds_table(_):
    kinds = {
        "str": pa.string(),
        "json": pa.string(),
        "int": pa.int64(),
        "float64": pa.float64(),
        "jpeg": pa.binary(),
        "bytes": pa.binary(),
    }
    columns = {}
    for (name, encoding, _), values in zip(MDS_COLUMNS, zip(*mds_rows())):
        if encoding == "ndarray:uint16":
            columns[name] = pa.array(
                [value.tolist() for value in values], pa.list_(pa.field("item", pa.uint16(), False))
            )
        elif encoding.startswith("ndarray"):
            columns[name] = column_of(np.stack(values))
        else:
            columns[name] = pa.array(values, kinds[encoding])
    return pa.table(columns)


CASES["mds"] = Case("MDS", "mds", mds(None), mds_table)
CASES["mds-zstd"] = Case("MDS, zstd", "mds", mds("zstd"), mds_table)

# --- text -------------------------------------------------------------------------------------------------------------


def lines():
    words = "the quick brown fox jumps over a lazy dog while élan vital naïve 𝄞 counts".split()
    return [" ".join(words[(row * 7 + at * at) % len(words)] for at in range(3 + row % 11)) + "." for row in range(400)]


def document(folder):
    (folder / "lines.txt").write_text("\n".join(lines()) + "\n")


def documents(folder):
    (folder / "texts").mkdir()
    for number in range(0, 400, 20):
        (folder / "texts" / f"{number:03}.txt").write_text("\n".join(lines()[number : number + 20]))


def trained():
    bpe = tokenizers.Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=400, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator(lines(), trainer)
    around = [("<s>", bpe.token_to_id("<s>")), ("</s>", bpe.token_to_id("</s>"))]
    bpe.post_processor = tokenizers.processors.TemplateProcessing(single="<s> $A </s>", special_tokens=around)
    return bpe


def with_tokenizer(folder):
    document(folder)
    trained().save(str(folder / "tokenizer.json"))


def encoded(folder):
    bpe = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    return [bpe.encode(line).ids for line in lines()]


def packed(made, length, kind):
    """All tokens without a gap, cut into sequences, and where documents begin in each; the rest is left out."""
    tokens = np.array([token for document in made for token in document], kind)
    begins = np.cumsum([0] + [len(document) for document in made[:-1]])
    count = len(tokens) // length
    starts = [[int(begin % length) for begin in begins if begin // length == row] for row in range(count)]
    rows = column_of(tokens[: count * length].reshape(count, length))
    return pa.table({"tokens": rows, "documents": pa.array(starts, pa.list_(pa.field("item", pa.uint32(), False)))})


def token_lists(folder):
    return pa.table({"tokens": pa.array(encoded(folder), pa.list_(pa.field("item", pa.uint16(), False)))})


LINES = ("--documents", "line")
BPE = ("--tokenizer", "{}/tokenizer.json")
CASES["text-files"] = Case(
    "text, files",
    "texts",
    documents,
    lambda folder: pa.table(
        {"text": [(folder / "texts" / name).read_text() for name in sorted_paths(folder / "texts")]}
    ),
)
CASES["text-lines"] = Case("text, lines", "lines.txt", document, lambda _: pa.table({"text": lines()}), LINES)
CASES["text-tokens"] = Case("text, tokens", "lines.txt", with_tokenizer, token_lists, LINES + BPE)
CASES["text-packed-tokens"] = Case(
    "text, tokens packed",
    "lines.txt",
    with_tokenizer,
    lambda folder: packed(encoded(folder), 64, "u2"),
    LINES + BPE + ("--sequence-length", "64"),
)
CASES["text-packed-bytes"] = Case(
    "text, bytes packed",
    "lines.txt",
    document,
    lambda _: packed([line.encode() for line in lines()], 128, "u1"),
    LINES + ("--sequence-length", "128"),
)

# --- what became of them ----------------------------------------------------------------------------------------------


def without_names(kind):
    """A type as text, without the names that items of lists go by."""
    return str(kind).replace("<element: ", "<item: ")


def values(column):
    """One array of the values; numbers as their bits, so that NaN is equal to itself and -0.0 is not 0.0."""
    chunks = [getattr(chunk, "storage", chunk) for chunk in column.chunks]
    array = pa.concat_arrays(chunks)
    if pa.types.is_floating(array.type):
        array = array.view(
            pa.uint16()
            if pa.types.is_float16(array.type)
            else pa.int32()
            if pa.types.is_float32(array.type)
            else pa.int64()
        )
    return array


def differences(made, found):
    if made.num_rows != found.num_rows:
        yield f"{found.num_rows} rows instead of {made.num_rows}"
    if made.column_names != found.column_names:
        yield f"columns {found.column_names} instead of {made.column_names}"
        return
    for field in made.schema:
        other = found.schema.field(field.name)
        if without_names(field.type) != without_names(other.type):
            yield f"{field.name} is {other.type} instead of {field.type}"
        elif (field.metadata or {}) != (other.metadata or {}):
            yield f"{field.name} has metadata {other.metadata} instead of {field.metadata}"
        elif made.num_rows == found.num_rows:
            before, after = values(made[field.name]), values(found[field.name])
            if not before.equals(after.cast(before.type)):
                row = next(
                    (row for row in range(len(before)) if not before[row].equals(after[row].cast(before.type))), None
                )
                yield f"{field.name}, row {row}: {shown(after, row)} instead of {shown(before, row)}"


def shown(array, row):
    return array.slice(row or 0, 1).to_string(skip_new_lines=True)


def write(root):
    for name, case in CASES.items():
        folder = root / name
        folder.mkdir()
        case.write(folder)
        given = folder / case.given
        files = [given] if given.is_file() else [path for path in given.rglob("*") if path.is_file()]
        options = [option.format(folder) for option in case.options]
        size = sum(file.stat().st_size for file in files)
        print(json.dumps({"case": name, "kind": case.kind, "given": str(given), "options": options, "bytes": size}))


def check(root, store, versions):
    failed = False
    for name, version in json.loads(versions).items():
        made, found = CASES[name].made(root / name), rows_of(store, version)
        wrong = list(differences(made, found))
        for difference in wrong:
            print(f"{name}: {difference}", file=sys.stderr)
        failed |= bool(wrong)
        types = sorted(
            {re.split(r"[<\[(]", getattr(field.type, "extension_name", str(field.type)))[0] for field in found.schema}
        )
        print(
            json.dumps(
                {
                    "case": name,
                    "made": made.num_rows,
                    "found": found.num_rows,
                    "columns": found.num_columns,
                    "types": types,
                }
            )
        )
    sys.exit(failed)


if __name__ == "__main__":
    if sys.argv[1] == "write":
        write(Path(sys.argv[2]))
    else:
        check(Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])
