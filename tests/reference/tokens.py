"""Compares the tokens of shardd-tokens with those of Hugging Face `tokenizers` and of tiktoken.

    python tests/reference/tokens.py ENCODE hf    TOKENIZER.json             FILE.docs ...
    python tests/reference/tokens.py ENCODE tik   NAME RANKS.tiktoken        FILE.docs ...
    python tests/reference/tokens.py pack OUT.docs FILE ...

ENCODE is the program of `shardfmt/tokens/examples/encode.rs`. NAME is an encoding of tiktoken, or `llama3` or `qwen2`. A `.docs` file
has documents with their lengths before them; `pack` makes one of text files. Needs `tokenizers` and `tiktoken`; the
process exits with 1 if an id or an offset differs.
"""

import array
import base64
import os
import struct
import subprocess
import sys
import tempfile

os.environ["TOKENIZERS_PARALLELISM"] = "false"


def documents(path):
    data = open(path, "rb").read()
    at, found = 0, []
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        found.append(data[at + 8 : at + 8 + length].decode())
        at += 8 + length
    return found


def pack(out, paths):
    with open(out, "wb") as file:
        for path in paths:
            text = open(path, "rb").read().decode(errors="ignore").encode()
            file.write(struct.pack("<Q", len(text)) + text)


def ours(encode, tokenizer, mode, path):
    with tempfile.NamedTemporaryFile() as out:
        subprocess.run([encode, tokenizer, mode, path, out.name], check=True)
        data = open(out.name, "rb").read()
    at, numbers = 0, 3 if mode == "offsets" else 1
    while at < len(data):
        (count,) = struct.unpack_from("<Q", data, at)
        yield array.array("I", data[at + 8 : at + 8 + 4 * numbers * count]).tolist()
        at += 8 + 4 * numbers * count


def chunks(texts, limit=1 << 22):
    chunk, size = [], 0
    for text in texts:
        chunk.append(text)
        size += len(text)
        if size > limit:
            yield chunk
            chunk, size = [], 0
    yield chunk


def byte_offsets(text, offsets):
    if text.isascii():
        return offsets
    starts, at = [0], 0
    for c in text:
        at += len(c.encode())
        starts.append(at)
    return [(starts[start], starts[end]) for start, end in offsets]


def hugging_face(path, mode, texts):
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(path)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = mode == "text"
    for chunk in chunks(texts):
        template = mode in ("all", "offsets")
        for text, encoding in zip(chunk, tokenizer.encode_batch(chunk, add_special_tokens=template)):
            if mode != "offsets":
                yield encoding.ids
                continue
            offsets = byte_offsets(text, encoding.offsets)
            yield [n for id, (start, end) in zip(encoding.ids, offsets) for n in (id, start, end)]


def tiktoken_encoding(name, path):
    import tiktoken
    from tiktoken_ext import openai_public

    lines = (line.split() for line in open(path, "rb") if line.strip())
    ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
    words = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|NUMBER| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    if name == "llama3":
        names = ["begin_of_text", "end_of_text", "start_header_id", "end_header_id", "eom_id", "eot_id"]
        specials = dict(zip((f"<|{n}|>" for n in names), [128000, 128001, 128006, 128007, 128008, 128009]))
        return tiktoken.Encoding(name, pat_str=words.replace("NUMBER", r"\p{N}{1,3}"), mergeable_ranks=ranks, special_tokens=specials)
    if name == "qwen2":
        specials = {"<|endoftext|>": 151643, "<|im_start|>": 151644, "<|im_end|>": 151645}
        return tiktoken.Encoding(name, pat_str=words.replace("NUMBER", r"\p{N}"), mergeable_ranks=ranks, special_tokens=specials)
    # The constructor asks for its ranks by name: it gets those of the file.
    openai_public.load_tiktoken_bpe = lambda *_, **__: ranks
    return tiktoken.Encoding(**openai_public.ENCODING_CONSTRUCTORS[name]())


def tiktoken_ids(encoding, mode, texts):
    from tokenizers import normalizers

    for text in texts:
        if encoding.name == "qwen2":
            # The tables of `tokenizers` are of Unicode 9; those of Python are newer, and compose more.
            text = normalizers.NFC().normalize_str(text)
        try:
            yield encoding.encode_ordinary(text) if mode == "text" else encoding.encode(text, allowed_special="all")
        except BaseException as error:
            # The regex of o200k gives up on a million letters.
            if type(error).__name__ != "PanicException" and "stack size" not in str(error):
                raise
            yield None


def compare(expected, found, texts, label):
    tokens = different = refused = 0
    for number, (want, have, text) in enumerate(zip(expected, found, texts, strict=True)):
        if want is None:
            refused += 1
            continue
        tokens += len(want)
        if want != have:
            different += 1
            if different <= 3:
                place = next((i for i, (a, b) in enumerate(zip(want, have)) if a != b), min(len(want), len(have)))
                print(f"  document {number} ({text[:60]!r}) from {place}: {want[place:place + 9]} here {have[place:place + 9]}")
    size = sum(len(text.encode()) for text in texts)
    print(f"{label}: {len(texts)} documents, {size} bytes, {tokens} numbers, {refused} refused there, {different} documents differ", flush=True)
    return different


def main():
    if sys.argv[1] == "pack":
        return pack(sys.argv[2], sys.argv[3:])
    encode, kind, rest = sys.argv[1], sys.argv[2], sys.argv[3:]
    different = 0
    if kind == "hf":
        tokenizer, paths = rest[0], rest[1:]
        for path in paths:
            texts = documents(path)
            for mode in os.environ.get("MODES", "text parse all offsets").split():
                found = ours(encode, tokenizer, mode, path)
                different += compare(hugging_face(tokenizer, mode, texts), found, texts, f"{tokenizer} {path} {mode}")
    else:
        name, ranks, paths = rest[0], rest[1], rest[2:]
        encoding = tiktoken_encoding(name, ranks)
        for path in paths:
            texts = documents(path)
            for mode in os.environ.get("MODES", "text parse").split():
                found = ours(encode, f"{ranks}={name}", mode, path)
                different += compare(tiktoken_ids(encoding, mode, texts), found, texts, f"{name} {path} {mode}")
    sys.exit(different > 0)


if __name__ == "__main__":
    main()
