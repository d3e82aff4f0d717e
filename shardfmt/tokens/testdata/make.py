"""Trains `small.json` and writes `small.expected.json`: texts with the ids and byte offsets of Hugging Face `tokenizers`.

    python testdata/make.py
"""

import json
import os

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

WORDS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
HERE = os.path.dirname(os.path.abspath(__file__))
TEXTS = [
    "",
    " ",
    "The first line of the text.\nThe second line, isn't it?\n",
    "  indented\r\n\r\n\tif (x[0] == 10000) { return 'll'; }  \n  ",
    "Größe, naïve café, Привет мир, 你好世界, こんにちは, 안녕하세요, שלום, नमस्ते",
    "👩‍👩‍👧‍👦 and 🇩🇪, e\u0301, \u0000, \ufffd, \U0010ffff",
    "IT'S we'LL 'ſ DON'T",
    "<|begin|>a <|pad|> b<|end|>",
    "a" * 500,
    " " * 300 + "x",
]


def main():
    lines = []
    for name in ("../src/lib.rs", "../src/tokenizer.rs", "../src/scan.rs", "../src/json.rs"):
        lines += open(os.path.join(HERE, name), encoding="utf-8").read().splitlines(True)
    lines += TEXTS * 3
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(WORDS), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=1000, initial_alphabet=alphabet, show_progress=False))
    tokenizer.add_special_tokens(["<|begin|>", "<|end|>"])
    tokenizer.add_tokens([AddedToken("<|pad|>", lstrip=True, rstrip=True, normalized=False)])
    begin, end = tokenizer.token_to_id("<|begin|>"), tokenizer.token_to_id("<|end|>")
    template = processors.TemplateProcessing("<|begin|> $A <|end|>", special_tokens=[("<|begin|>", begin), ("<|end|>", end)])
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=True), template])
    tokenizer.save(os.path.join(HERE, "small.json"), pretty=False)
    expected = []
    for text in TEXTS:
        whole = tokenizer.encode(text)
        places = [len(text[:at].encode()) for at in range(len(text) + 1)]
        offsets = [[places[start], places[stop]] for start, stop in whole.offsets]
        expected.append({"text": text, "ids": whole.ids, "offsets": offsets})
    with open(os.path.join(HERE, "small.expected.json"), "w", encoding="utf-8") as file:
        json.dump(expected, file, ensure_ascii=True)


main()
