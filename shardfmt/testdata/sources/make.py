"""Makes the files in this folder: what others write, for the stories of ingest to read.

Made once, with numpy 2.4, pyarrow 26 and tokenizers 0.23; the stories know their contents.
"""

import json

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

ROWS = 6


def numpy_files():
    count = np.arange(ROWS)
    arrays = {
        "image": np.asfortranarray(np.arange(ROWS * 6, dtype="u1").reshape(ROWS, 2, 3)),
        "label": count,
        "big": (count * 0.5).astype(">f4"),
        "half": (count * 0.25).astype("f2"),
        "flag": count % 2 == 0,
        "name": np.array(["", "a", "bc", "é", "𝄞", "last"]),
        "raw": np.array([b"", b"a", b"bc", b"\xff", b"\x00x", b"last"]),
        "time": np.array(["NaT", *(f"2020-01-0{day}" for day in range(1, ROWS))], dtype="M8[ms]"),
    }
    np.savez("plain.npz", **arrays)
    np.savez_compressed("compressed.npz", **arrays)
    record = np.dtype(
        [("id", ">i4"), ("place", "<f4", (2,)), ("text", "U3"), ("inner", [("a", "u1"), ("b", "<f8")])], align=True
    )
    rows = [(n, (n, -n), "abc"[: n % 4], (n, n / 2)) for n in range(ROWS)]
    np.save("structured.npy", np.array(rows, dtype=record))
    np.save("fortran.npy", np.asfortranarray(np.arange(ROWS * 6, dtype="<i8").reshape(ROWS, 3, 2)))
    np.save("complex.npy", np.zeros(ROWS, dtype="c16"))
    np.save("objects.npy", np.array([None] * ROWS, dtype=object), allow_pickle=True)


def arrow_files():
    table = pa.table(
        {
            "label": pa.array(range(ROWS), pa.int64()),
            "class": pa.array(["cat", "dog", None, "cat", "bird", "dog"]).dictionary_encode(),
            "view": pa.array(["a text too long to be inlined", None, "b", "", "c", "d"], pa.string_view()),
            "nested": pa.array([[{"a": 1}], [], None, [None], [{"a": None}], [{"a": 2}, {"a": 3}]]),
            "tags": pa.array([["x"], ["x", "y"], None, [], ["y"], ["x"]], pa.list_(pa.dictionary(pa.int8(), pa.string()))),
        }
    )
    feather.write_feather(table, "lz4.feather", compression="lz4", chunksize=4)
    feather.write_feather(table, "zstd.feather", compression="zstd", chunksize=4)
    # A stream whose dictionary grows, and is then another one.
    schema = pa.schema([("class", pa.dictionary(pa.int8(), pa.string()))])
    parts = [["cat"], ["cat", "dog"], ["bird"]]
    options = pa.ipc.IpcWriteOptions(emit_dictionary_deltas=True)
    with pa.OSFile("dictionaries.arrows", "wb") as file, pa.ipc.new_stream(file, schema, options=options) as stream:
        for values in parts:
            indices = pa.array(list(range(len(values))) + [None], pa.int8())
            stream.write_batch(pa.record_batch([pa.DictionaryArray.from_arrays(indices, pa.array(values))], schema))


def tokenizer_files():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    text = ["the quick brown fox jumps over the lazy dog\n" * 20, "she sells sea shells by the sea shore\n" * 20]
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=["<s>", "</s>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator(text, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    # What a model needs, and an ingest must not do.
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=8)
    tokenizer.save("tokenizer.json", pretty=False)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    texts = ["", "the quick fox\nsells sea shells", "é 𝄞\n\n by the lazy dog "]
    with open("tokens.json", "w", encoding="utf-8") as file:
        json.dump([[text, tokenizer.encode(text).ids] for text in texts], file)


numpy_files()
arrow_files()
tokenizer_files()
