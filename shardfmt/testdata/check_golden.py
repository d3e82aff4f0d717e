#!/usr/bin/env python3
"""Reads the golden files as docs/FORMAT.md describes them, without a line of shardfmt.

Needs pyarrow and blake3:  python3 shardfmt/testdata/check_golden.py
"""

import datetime
import json
import struct
from pathlib import Path

import pyarrow as pa
from blake3 import blake3

HERE = Path(__file__).parent


def u32(number):
    return struct.pack("<I", number)


def run(values, field):
    """The canonical bytes of some values of one type; None is null."""
    if not values:
        return b""
    present = [value is not None for value in values]
    if all(present):
        head = b"\x01"
    elif len(values) == 1:
        return b"\x00"
    else:
        bits = sum(1 << at for at, is_present in enumerate(present) if is_present)
        head = b"\x02" + bits.to_bytes((len(values) + 7) // 8, "little")
    return head + body(values, field.type)


def blank(field):
    """What lies beneath a null: null where it may be, and else zero."""
    if field.nullable:
        return None
    if pa.types.is_struct(field.type):
        return {child.name: blank(child) for child in field.type}
    if pa.types.is_fixed_size_list(field.type):
        return [blank(field.type.value_field)] * field.type.list_size
    if pa.types.is_list(field.type) or pa.types.is_large_list(field.type):
        return []
    return {"B": b"", "s": ""}.get("s" if is_text(field.type) else "B" if is_bytes(field.type) else "", 0)


def is_text(kind):
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def is_bytes(kind):
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind)


def body(values, kind):
    if is_text(kind) or is_bytes(kind):
        raw = [b"" if v is None else v.encode() if isinstance(v, str) else v for v in values]
        return b"".join(u32(len(v)) for v in raw) + b"".join(raw)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        lists = [v or [] for v in values]
        return b"".join(u32(len(v)) for v in lists) + run([i for v in lists for i in v], kind.value_field)
    if pa.types.is_fixed_size_list(kind):
        empty = [blank(kind.value_field)] * kind.list_size
        return run([i for v in values for i in (empty if v is None else v)], kind.value_field)
    if pa.types.is_struct(kind):
        columns = [[blank(child) if v is None else v[child.name] for v in values] for child in kind]
        return b"".join(run(column, child) for column, child in zip(columns, kind))
    if pa.types.is_boolean(kind):
        return bytes(bool(v) for v in values)
    if pa.types.is_fixed_size_binary(kind):
        return b"".join(bytes(kind.byte_width) if v is None else v for v in values)
    if pa.types.is_decimal(kind):
        return b"".join(int((v or 0) * 10**kind.scale).to_bytes(kind.byte_width, "little", signed=True) for v in values)
    if pa.types.is_timestamp(kind):
        values = [None if v is None else round(v.timestamp() * 1000) for v in values]
    codes = {pa.int64(): "q", pa.int32(): "i", pa.uint16(): "H", pa.float32(): "f"}
    return b"".join(struct.pack("<" + codes.get(kind, "q"), v or 0) for v in values)


def measure(value):
    """What statistics are over: the value, or its length."""
    if isinstance(value, str):
        return len(value.encode())
    if isinstance(value, (bytes, list)):
        return len(value)
    return round(value.timestamp() * 1000) if isinstance(value, datetime.datetime) else value


def variance(numbers, mean):
    return sum((number - mean) ** 2 for number in numbers) / len(numbers)


def keyed(context, content):
    return blake3(content, derive_key_context=context).digest()


def root(digests):
    return tree([keyed("shardfmt 2026 merkle leaf v1", digest) for digest in digests])


def tree(leaves):
    """RFC 6962, section 2.1."""
    if len(leaves) == 1:
        return leaves[0]
    split = 1 << (len(leaves) - 1).bit_length() - 1
    return keyed("shardfmt 2026 merkle node v1", tree(leaves[:split]) + tree(leaves[split:]))


def plain(table):
    """The fields and columns of a table; the extension type of a tensor is read as its storage type."""
    columns = [column.combine_chunks() for column in table.columns]
    columns = [getattr(column, "storage", column).to_pylist() for column in columns]
    fields = [field.with_type(getattr(field.type, "storage_type", field.type)) for field in table.schema]
    return fields, columns


def rows_of(table):
    """The canonical rows of a table."""
    fields, columns = plain(table)
    return [b"".join(run([column[at]], field) for column, field in zip(columns, fields)) for at in range(table.num_rows)]


def check_sidecar(sidecar, shard, digests, compressed):
    """Compares a sidecar with the shard that it lies beside."""
    assert sidecar[-32:] == blake3(sidecar[:-32]).digest(), "the sidecar's own digest"
    magic, form, shard_id, count, blocks = struct.unpack_from("<8sI32sII", sidecar)
    assert (magic, form, shard_id, count) == (b"SHARDROW", 1, blake3(shard).digest(), len(digests))
    assert sidecar[52:][: 16 * count] == b"".join(digests), "the digests of the rows"
    at = 52 + 16 * count

    def take(layout):
        nonlocal at
        values = struct.unpack_from("<" + layout, sidecar, at)
        at += struct.calcsize("<" + layout)
        return values

    rows = 0
    for _ in range(blocks):
        block_rows, offset, body_length, length = take("IQQI")
        (message,) = take(f"{length}s")
        assert shard[offset:][:length] == message, "the message of a record batch"
        assert pa.ipc.read_message(shard[offset:][: length + body_length]).type == "record batch"
        (buffers,) = take("I")
        assert (buffers == 0) == compressed, "a compressed body is fetched whole"
        for _ in range(buffers):
            start, length = take("QI")
            (kept,) = take(f"{length}s")
            assert start + length <= body_length
            assert shard[offset + len(message) + start :][:length] == kept, "a buffer that the sidecar keeps"
        rows += block_rows
    assert (rows, at) == (count, len(sidecar) - 32), "the rows of all record batches, and nothing after them"


def check_epoch_root():
    """The test vector of the roots of epochs."""

    def u64(number):
        return struct.pack("<Q", number)

    rows = [keyed("shardfmt 2026 row v1", u64(at))[:16] for at in range(7)]
    leaves = [keyed("shardfmt 2026 epoch leaf v1", u64(at) + u64(6 - at) + rows[at]) for at in range(7)]
    assert leaves[3].hex() == "07b016cd5c469cf0df59a4555779fa1f316f4da6cb1d051905c13a75d2af3cd6"
    subject = blake3(b"plan").digest() + blake3(b"version").digest() + u32(1) + u64(7)
    sealed = keyed("shardfmt 2026 epoch root v1", subject + tree(leaves))
    assert sealed.hex() == "586dc7821aa0b912ba9f4d7a5d85bd88fd498512b8eee73c9fe44eda4dfbaa9b"


def main():
    check_epoch_root()
    shard = (HERE / "golden.arrow").read_bytes()
    shard_id = blake3(shard).digest()
    table = pa.ipc.open_file(shard).read_all()
    rows = rows_of(table)
    digests = [keyed("shardfmt 2026 row v1", row)[:16] for row in rows]
    check_sidecar((HERE / "golden.rows").read_bytes(), shard, digests, compressed=False)
    for codec in ("lz4", "zstd"):
        packed = (HERE / f"golden.{codec}.arrow").read_bytes()
        assert len(packed) < len(shard)
        assert pa.ipc.open_file(packed).read_all().equals(table, check_metadata=True), codec
        check_sidecar((HERE / f"golden.{codec}.rows").read_bytes(), packed, digests, compressed=True)

    manifest_bytes = (HERE / "golden.manifest2.arrow").read_bytes()
    manifest = pa.ipc.open_file(manifest_bytes).read_all()
    entry = manifest.to_pylist()[0]
    total = sum(int.from_bytes(digest, "little") for digest in digests) % 2**128
    assert entry["shard"] == shard_id
    assert (entry["rows"], entry["bytes"], entry["row_bytes"]) == (len(rows), len(shard), sum(map(len, rows)))
    assert entry["root"] == root(digests)
    assert entry["digest_sum"] == total.to_bytes(16, "little")
    assert json.loads(entry["labels"]) == {"0": 7, "1": 7, "2": 7}
    stored = pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(manifest.schema.metadata[b"shardd.schema"].decode())))
    assert stored.equals(table.schema, check_metadata=True)

    indexed_bytes = (HERE / "golden.indexed2.arrow").read_bytes()
    indexed = pa.ipc.open_file(indexed_bytes).read_all()
    metadata = indexed.schema.metadata
    entries = indexed.to_pylist()
    assert entries[0]["shard"] == shard_id and [e["rows"] for e in entries] == [len(rows)] * 3
    known = entries[0]["statistics"]
    fields, columns = plain(table)
    lengths = sorted(map(len, rows))
    for name, part in {"min": 0, "p25": 25, "p50": 50, "p75": 75, "p99": 99, "max": 100}.items():
        assert known["row_bytes"][name] == lengths[(len(rows) - 1) * part // 100], name
    for field, column in zip(fields, columns):
        present = [v for v in column if v is not None]
        found = known["columns"][field.name]
        assert found["count"] == len(present), field.name
        if "mean" in found:
            numbers = [float(measure(v)) for v in present]
            mean = sum(numbers) / len(numbers)
            assert (found["min"], found["max"]) == (min(numbers), max(numbers)), field.name
            assert abs(found["mean"] - mean) < 1e-3 and abs(found["variance"] - variance(numbers, mean)) < 1e-3, field.name
    totals = json.loads(metadata[b"shardd.totals"])
    assert (totals["shards"], totals["samples"]) == (3, 3 * len(rows))
    assert totals["digest_sum"] == f"{3 * total % 2**128:032x}"
    assert totals["statistics"]["columns"][1]["mean"] == "1e0"
    assert json.loads(metadata[b"shardd.batches"]) == [[3, 3 * len(rows)]]
    assert json.loads(metadata[b"shardd.rows"]) == [[3, len(rows)]]
    end = len(indexed_bytes) - 10 - struct.unpack("<i", indexed_bytes[-10:-6])[0]
    tail = {}
    for key, length in reversed(json.loads(metadata[b"shardd.tail"])):
        tail[key] = json.loads(indexed_bytes[end - length : end])
        end -= length
    many = {f"class {number:040}": 1 for number in range(4096)}
    assert json.loads(entries[1]["labels"]) == many
    assert tail == {"shardd.labels": {"0": 14, "1": 14, "2": 14, **many}}
    assert b"shardd.labels" not in metadata, "a long text is in the tail alone"

    grain = (HERE / "golden.grain").read_bytes()
    row_count, path_length = struct.unpack_from("<II", grain)
    path, ends = grain[8:][: 32 * path_length], 8 + 32 * path_length
    offsets = [0, *struct.unpack_from(f"<{row_count}I", grain, ends)]
    data = grain[ends + 4 * row_count :]
    assert [data[a:b] for a, b in zip(offsets, offsets[1:])] == rows[8:12], "rows 8 to 11"
    # Grain 2 of 6, of 4 rows each: beside it grain 3, then grains 0 and 1, then 4 and 5.
    expected = root(digests[12:16]) + root(digests[0:8]) + root(digests[16:21])
    assert path == expected, "the path of grain 2"
    print(f"{len(rows)} rows of shard {shard_id.hex()[:12]}, version {blake3(manifest_bytes).hexdigest()[:12]}, with lz4 and zstd: as described")


if __name__ == "__main__":
    main()
