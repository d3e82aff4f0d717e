"""Tokens have the ids of Hugging Face and of tiktoken, for any number of threads and in any process."""

import base64
import concurrent.futures
import json
import os
import pickle
import random
import time
from pathlib import Path

import numpy as np
import pytest
import tiktoken
import tiktoken_ext.openai_public
import tokenizers
import torch
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

import shardd

REPOSITORY = Path(__file__).parents[3]
SMALL = REPOSITORY / "shardfmt" / "tokens" / "testdata" / "small.json"
SHARED = os.environ.get("SHARDD_SHARED")
EDGES = [
    "",
    " ",
    "\n\r\n\t  x",
    "Größe, naïve café, Привет мир, 你好世界, こんにちは, 안녕하세요, שלום, नमस्ते",
    "e\u0301 \ufb01 \u212b \u200d \ufeff \u0000 \ufffd \U0010ffff",
    "👩‍👩‍👧‍👦 and 🇩🇪 👍🏽",
    "IT'S we'LL 'ſ DON'T 12345678901234567890",
    "<|begin|>a <|pad|> b<|end|><|endoftext|>",
    "a" * 5000,
    " " * 3000 + "x",
]


def code() -> list[str]:
    """Text that every clone has: the documents, by paragraphs."""
    return [part for page in sorted((REPOSITORY / "docs").glob("*.md")) for part in page.read_text().split("\n\n")]


def plays() -> list[str]:
    if not SHARED:
        pytest.skip("skipped: SHARDD_SHARED, with data/tinyshakespeare.txt, is not set")
    path = Path(SHARED) / "data" / "tinyshakespeare.txt"
    if not path.exists():
        pytest.skip(f"skipped: there is no {path}")
    return path.read_text().split("\n\n")


def noise(count: int = 300) -> list[str]:
    """Texts of any characters, apart from surrogates."""
    draw = random.Random(7)
    any_of = lambda: draw.choice([draw.randrange(32, 127), draw.randrange(0xD800), draw.randrange(0xE000, 0x110000)])  # noqa: E731
    return ["".join(chr(any_of()) for _ in range(draw.randrange(40))) for _ in range(count)]


def bpe() -> tokenizers.Tokenizer:
    """Byte-level BPE, as most models have it."""
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=4000, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), special_tokens=["<|endoftext|>"], show_progress=False)
    made.train_from_iterator(code(), trainer)
    made.post_processor = processors.TemplateProcessing("$A <|endoftext|>", special_tokens=[("<|endoftext|>", 0)])
    return made


def wordpiece() -> tokenizers.Tokenizer:
    """A model that the own path does not have."""
    made = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(vocab_size=2000, special_tokens=["[UNK]", "[CLS]"], show_progress=False)
    made.train_from_iterator(code(), trainer)
    made.post_processor = processors.TemplateProcessing("[CLS] $A", special_tokens=[("[CLS]", 1)])
    return made


@pytest.fixture(scope="module", params=["small", "bpe", "wordpiece"])
def pair(request, tmp_path_factory):
    """A tokenizer of ours and Hugging Face's of the same file."""
    path = SMALL
    if request.param != "small":
        path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
        {"bpe": bpe, "wordpiece": wordpiece}[request.param]().save(str(path))
    return shardd.Tokenizer.from_file(path), tokenizers.Tokenizer.from_file(str(path))


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("texts", [EDGES, noise(), code()], ids=["edges", "noise", "documents"])
def test_ids_are_those_of_hugging_face(pair, texts, special):
    ours, theirs = pair
    expected = [each.ids for each in theirs.encode_batch(texts, add_special_tokens=special)]
    assert ours.encode_batch(texts, add_special_tokens=special).to_list() == expected
    assert [ours.encode(text, add_special_tokens=special) for text in texts[:20]] == expected[:20]
    assert ours.vocab_size == max(theirs.get_vocab().values()) + 1


def test_ids_of_real_text_are_those_of_hugging_face(pair):
    ours, theirs = pair
    texts = plays()
    assert ours.encode_batch(texts).to_list() == [each.ids for each in theirs.encode_batch(texts)]


def test_special_tokens_in_a_text_may_stay_text():
    ours = shardd.Tokenizer.from_file(SMALL)
    ids = ours.encode("<|begin|>a", add_special_tokens=False)
    as_text = ours.encode("<|begin|>a", add_special_tokens=False, parse_special=False)
    assert len(ids) == 2 < len(as_text) and ours.decode_bytes(ids) == ours.decode_bytes(as_text) == b"<|begin|>a"


@pytest.mark.parametrize("encoding", ["cl100k_base", "o200k_base"])
def test_ids_of_ranks_are_those_of_tiktoken(tmp_path, encoding, monkeypatch):
    """Ranks of our own, with the pattern of the encoding: its file would have to be fetched."""
    model = json.loads(bpe().to_str())["model"]
    letters = {letter: byte for byte, letter in _letters().items()}
    words = [*_letters().values(), *("".join(pair) for pair in model["merges"])]
    ranks = {bytes(letters[letter] for letter in word): rank for rank, word in enumerate(words)}
    path = tmp_path / "own.tiktoken"
    path.write_bytes(b"".join(base64.b64encode(token) + b" %d\n" % rank for token, rank in ranks.items()))
    monkeypatch.setattr(tiktoken_ext.openai_public, "load_tiktoken_bpe", lambda *_, **__: ranks)
    pattern = getattr(tiktoken_ext.openai_public, encoding)()["pat_str"]
    theirs = tiktoken.Encoding("own", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    ours = shardd.Tokenizer.from_file(path, encoding=encoding)
    texts = [*EDGES, *noise(), *code()]
    found = ours.encode_batch(texts, add_special_tokens=False, parse_special=False)
    assert found.to_list() == theirs.encode_ordinary_batch(texts)
    assert b"".join(ours.decode_bytes(ids.tolist()) for ids in found) == "".join(texts).encode()
    with pytest.raises(ValueError, match=f"{path}: a rank file of .* tokens that belongs to no known encoding; name one of"):
        shardd.Tokenizer.from_file(path)


def _letters() -> dict[int, str]:
    """The letter for each byte in the vocabulary of byte-level BPE."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    return bytes_to_unicode()


def test_any_number_of_threads_gives_the_same_ids_at_once(pair):
    ours, _ = pair
    texts = [*code(), *EDGES, *noise()]
    expected = ours.encode_batch(texts, threads=1).to_list()
    for threads in (2, 3, 16, None):
        assert ours.encode_batch(texts, threads=threads).to_list() == expected
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert all(found.to_list() == expected for found in pool.map(lambda _: ours.encode_batch(texts), range(8)))


@pytest.mark.parametrize(("format", "kind"), [("torch", torch.Tensor), ("numpy", np.ndarray)])
def test_a_batch_is_ragged_with_numbers_that_embeddings_take(format, kind):
    ours = shardd.Tokenizer.from_file(SMALL)
    for texts in (EDGES, [], ["", ""]):
        found = ours.encode_batch(iter(texts), add_special_tokens=False, format=format)
        assert isinstance(found, shardd.Ragged) and len(found) == len(texts)
        assert isinstance(found.values, kind) and str(found.values.dtype).endswith("int64") and str(found.offsets.dtype).endswith("int64")
        assert found.to_list() == [ours.encode(text, add_special_tokens=False) for text in texts]
    embedding = torch.nn.Embedding(ours.vocab_size, 4)
    nested = ours.encode_batch(["one", "two three"])
    assert embedding(nested.values).shape == (len(nested.values), 4)


class ToIds:
    """A transform that holds a tokenizer."""

    def __init__(self, tokenizer: shardd.Tokenizer) -> None:
        self.tokenizer = tokenizer

    def __call__(self, sample: dict) -> dict:
        return {"id": sample["id"], "tokens": torch.tensor(self.tokenizer.encode(sample["text"])[:4])}


@pytest.mark.parametrize("processes", [0, 2])
def test_transforms_in_other_processes_have_it(tmp_path, processes):
    texts = [f"{n} is a number, and has a text" for n in range(60)]
    shardd.from_iter(({"id": n, "text": text} for n, text in enumerate(texts)), tmp_path, name="texts")
    ours = shardd.Tokenizer.from_file(SMALL)
    loader = shardd.DataLoader(shardd.StreamingDataset(tmp_path), batch_size=16, transform=ToIds(ours), transform_processes=processes)
    seen = {number: ids for batch in loader for number, ids in zip(batch["id"].tolist(), batch["tokens"].tolist())}
    assert seen == {n: ours.encode(text)[:4] for n, text in enumerate(texts)}


def test_it_is_pickled_with_its_file(tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(SMALL.read_bytes())
    ours = shardd.Tokenizer.from_file(path)
    path.unlink()
    again = pickle.loads(pickle.dumps(ours))
    assert again.encode_batch(EDGES).to_list() == ours.encode_batch(EDGES).to_list()
    assert repr(again) == repr(ours) == f"Tokenizer({path}, vocab_size {ours.vocab_size})"


def test_what_cannot_be_encoded_is_named(tmp_path):
    ours = shardd.Tokenizer.from_file(SMALL)
    with pytest.raises(ValueError, match="^text 1 has half of a surrogate pair"):
        ours.encode_batch(["a", "\ud800"])
    with pytest.raises(ValueError, match="^the text has half of a surrogate pair"):
        ours.encode("\ud800")
    with pytest.raises(TypeError, match="^text 2 is a NoneType; give a str"):
        ours.encode_batch(["a", "b", None])
    with pytest.raises(TypeError, match="takes several texts: pass a list"):
        ours.encode_batch("a text")
    with pytest.raises(ValueError, match="threads=0 encodes nothing"):
        ours.encode_batch(["a"], threads=0)
    with pytest.raises(ValueError, match="token 123456 at place 1 is not in the vocabulary"):
        ours.decode_bytes([1, 123456])
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    with pytest.raises(ValueError, match=f"{broken}: the tokenizer.json is not valid"):
        shardd.Tokenizer.from_file(broken)
    with pytest.raises(ValueError, match="cl100k_base"):
        shardd.Tokenizer.from_file(SMALL, encoding="cl100k")
    with pytest.raises(FileNotFoundError):
        shardd.Tokenizer.from_file(tmp_path / "none.json")


def test_a_batch_takes_less_time_of_the_processor_than_hugging_face(tmp_path):
    """Of all threads, so that other programs of the machine count less. The bound is wide; the ratio is printed."""
    texts = plays()
    bpe().save(str(tmp_path / "tokenizer.json"))
    ours, theirs = shardd.Tokenizer.from_file(tmp_path / "tokenizer.json"), tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))

    def seconds(encode) -> float:
        start = time.process_time()
        encode(texts)
        return time.process_time() - start

    rounds = [(seconds(theirs.encode_batch_fast), seconds(ours.encode_batch)) for _ in range(3)]
    ratio = min(theirs for theirs, _ in rounds) / min(ours for _, ours in rounds)
    print(f"{ratio:.1f} times the speed of encode_batch_fast")
    assert ratio > 8
