"""Packed documents: as transformers' collator has them, in any number of ranks, and the loss of documents by themselves. And packed
conversations: their tokens and marks are those of transformers."""

import json
from contextlib import closing

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from transformers import DataCollatorWithFlattening, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import helpers
import shardd
from shardd import packing

LENGTH = 64


def documents():
    numbers = np.random.default_rng(5)
    return ["".join(map(chr, numbers.integers(97, 123, int(size)))) for size in numbers.integers(1, 60, 300)]


@pytest.fixture(scope="module", params=["best_fit_decreasing", "concat_then_split"])
def store(request, tmp_path_factory):
    directory = tmp_path_factory.mktemp("packing")
    (directory / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in documents()))
    flags = ["--text-column", "text", "--sequence-length", str(LENGTH), "--packing", request.param]
    helpers.ingest(directory / "store", "text", directory / "text.jsonl", *flags)
    return str(directory / "store")


def reading(store, rank=0, world=1):
    dataset = shardd.StreamingDataset(store, dataset="text", q=0.5, partitions=2, rank=rank, world_size=world)
    return closing(shardd.DataLoader(dataset, batch_size=4, virtual_ranks=2))


def parts(batch):
    """The documents of a batch, cut where they begin."""
    used = batch["length"].tolist() if "length" in batch else [LENGTH] * len(batch["tokens"])
    for tokens, starts, count in zip(batch["tokens"], batch["documents"], used):
        ends = sorted({0, *np.asarray(starts).tolist(), count})
        for start, end in zip(ends, ends[1:]):
            yield tokens[start:end].tolist()


def test_a_batch_is_that_of_the_collator_of_transformers(store):
    collate = DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_position_ids=True)
    with reading(store) as loader:
        for batch in loader:
            ours, theirs = packing.flatten(batch), collate([{"input_ids": part} for part in parts(batch)])
            assert ours.keys() == {*theirs.keys()}
            for key, value in theirs.items():
                assert torch.equal(torch.as_tensor(ours[key]), torch.as_tensor(value)), key


def test_every_rank_has_the_same_batches_and_all_documents_are_there(store):
    def read(world):
        found = {}
        for rank in range(world):
            with reading(store, rank, world) as loader:
                for batch in loader:
                    flat = packing.flatten(batch)
                    found[tuple(flat["input_ids"][0].tolist())] = flat["cu_seq_lens_q"].tolist()
        return found

    alone = read(1)
    assert read(2) == alone
    tokens = sum(len(batch) for batch in alone)
    whole = sum(map(len, documents()))
    assert tokens == whole or tokens == whole - whole % LENGTH


def test_packed_filtered_and_mixed_ids_and_masks_are_those_of_any_world_and_of_a_resume(store, request):
    is_whole = request.node.callspec.params["store"] == "best_fit_decreasing"
    rule = ["--filter", f"length >= {LENGTH - 2}"] if is_whole else ["--fraction", "0.5", "--seed", "3"]
    helpers.shardctl("--store", store, "derive", "text", "mostly-full", *rule)

    def part(world, state, steps):
        """The keys of each micro-batch by its step, up to a step; and the state there."""
        found = {}
        for rank in range(world):
            streams = [shardd.Stream(store, dataset=name, proportion=share) for name, share in (("text", 0.7), ("mostly-full", 0.3))]
            dataset = shardd.StreamingDataset(streams=streams, epoch_size=96, rank=rank, world_size=world)
            with closing(shardd.DataLoader(dataset, batch_size=2, virtual_ranks=6)) as loader:
                if state is not None:
                    loader.load_state_dict(state)
                for batch in loader:
                    keys = {name: torch.as_tensor(value).tolist() for name, value in packing.flatten(batch).items()}
                    found.setdefault(loader.step, []).append(keys)
                    if loader.is_last_micro and loader.step + 1 >= steps:
                        break
                after = loader.state_dict()
        return {step: sorted(keys, key=str) for step, keys in found.items()}, after

    whole, _ = part(1, None, 99)
    assert len(whole) == 8 and all(len(keys) == 6 for keys in whole.values())
    assert part(2, None, 99)[0] == part(3, None, 99)[0] == whole
    some, state = part(2, None, 3)
    rest, _ = part(3, state, 99)
    assert {**some, **rest} == whole and not set(some) & set(rest)


def test_the_loss_of_packed_documents_is_that_of_each_by_itself(store):
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=128, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4)
    model = LlamaForCausalLM(config).eval()
    with reading(store) as loader, torch.no_grad():
        batch = next(iter(loader))
        flat = packing.flatten(batch)
        # The mask that kernels make of cu_seq_lens.
        ids = torch.repeat_interleave(torch.arange(len(flat["cu_seq_lens_q"]) - 1), flat["cu_seq_lens_q"].diff())
        causal = torch.ones(len(ids), len(ids), dtype=torch.bool).tril() & (ids[:, None] == ids[None, :])
        mask = torch.zeros(len(ids), len(ids)).masked_fill(~causal, float("-inf"))[None, None]
        packed = model(input_ids=flat["input_ids"], position_ids=flat["position_ids"], attention_mask=mask).logits[0]
        labels = flat["labels"][0]
        loss = torch.nn.functional.cross_entropy(packed[:-1], labels[1:], ignore_index=packing.IGNORED, reduction="sum")
        alone = 0.0
        for part in parts(batch):
            ids = torch.tensor([part])
            logits = model(input_ids=ids).logits[0]
            alone += torch.nn.functional.cross_entropy(logits[:-1], ids[0, 1:], reduction="sum") if len(part) > 1 else 0.0
        assert abs(float(loss - alone)) <= 1e-5 * float(alone)


def test_mistakes_name_the_way_out(store):
    with pytest.raises(ValueError, match="column 'tokens' is not among image"):
        packing.flatten({"image": torch.zeros(1)})
    with pytest.raises(ValueError, match="made with --sequence-length"):
        packing.flatten({"tokens": torch.zeros(3), "documents": []})


GENERATION, END = "{% generation %}", "{% endgeneration %}"
# The templates of models, with generation blocks for the assistant's text.
TEMPLATES = {
    "chatml": (
        "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' }}{% if message['role'] == 'assistant' %}"
        + GENERATION
        + "{{ message['content'] + '<|im_end|>' }}"
        + END
        + "{{ '\\n' }}{% else %}{{ message['content'] + '<|im_end|>' + '\\n' }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
    ),
    "llama3": (
        "{% set loop_messages = messages %}{% for message in loop_messages %}"
        "{% set head = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' %}"
        "{% if loop.index0 == 0 %}{% set head = bos_token + head %}{% endif %}{{ head }}{% if message['role'] == 'assistant' %}"
        + GENERATION
        + "{{ message['content'] | trim + '<|eot_id|>' }}"
        + END
        + "{% else %}{{ message['content'] | trim + '<|eot_id|>' }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
    ),
    "qwen": (
        "{%- if tools %}\n    {{- '<|im_start|>system\\n# Tools\\n<tools>' }}\n    {%- for tool in tools %}\n"
        "        {{- '\\n' }}\n        {{- tool | tojson }}\n    {%- endfor %}\n    {{- '\\n</tools><|im_end|>\\n' }}\n{%- endif %}\n"
        "{%- for message in messages %}\n    {{- '<|im_start|>' + message.role + '\\n' }}\n    {%- if message.role == 'assistant' %}\n"
        "        {%- generation %}\n        {%- if message.content %}\n            {{- message.content }}\n        {%- endif %}\n"
        "        {%- for call in message.tool_calls %}\n"
        "            {{- '\\n<tool_call>\\n{\"name\": \"' + call.function.name + '\", \"arguments\": ' }}\n"
        "            {{- call.function.arguments | tojson }}\n            {{- '}\\n</tool_call>' }}\n        {%- endfor %}\n"
        "        {{- '<|im_end|>' }}\n        {%- endgeneration %}\n    {%- else %}\n        {{- message.content + '<|im_end|>' }}\n"
        "    {%- endif %}\n    {{- '\\n' }}\n{%- endfor %}"
    ),
}
SPECIALS = ["<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|pad|>"]


def conversations():
    """Rows of JSON Lines: messages, and for some of them tools."""
    numbers = np.random.default_rng(11)
    words = ["the", " weather", "  in", " Zürich", " is", "\n", "日本", " 21°", "👩‍👩‍👧", "e\u0301", " <|im_end|>", "'ll", "\t{x}", ""]

    def text():
        return "".join(numbers.choice(words, int(numbers.integers(0, 9))))

    for number in range(120):
        turns = [("user", "assistant")[turn % 2] for turn in range(int(numbers.integers(2, 8)))]
        messages = [{"role": role, "content": text()} for role in turns]
        if number % 3 == 0:
            messages.insert(0, {"role": "system", "content": "Be terse."})
        row = {"messages": messages, "id": number}
        if number % 5 == 0:
            call = {"function": {"name": "weather", "arguments": {"days": number, "place": "Zürich"} if number % 2 else {}}}
            messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
            row["tools"] = [{"type": "function", "function": {"name": "weather", "b": [1, 2.5], "a": None}}]
        yield row


@pytest.fixture(scope="module")
def tokenizer():
    """A byte-level tokenizer as that of Llama 3 and Qwen."""
    own = Tokenizer(models.BPE())
    own.normalizer = normalizers.NFC()
    own.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=SPECIALS, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    own.train_from_iterator((json.dumps(row, ensure_ascii=False) for row in conversations()), trainer)
    begin = own.token_to_id("<|begin_of_text|>")
    template = processors.TemplateProcessing("<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", begin)])
    own.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), template])
    return PreTrainedTokenizerFast(tokenizer_object=own, bos_token="<|begin_of_text|>", pad_token="<|pad|>")


def theirs(tokenizer, row):
    """The tokens of a row and their marks by transformers."""
    both = tokenizer.apply_chat_template(
        row["messages"], tools=row.get("tools"), tokenize=True, return_dict=True, return_assistant_tokens_mask=True
    )
    return list(zip(both["input_ids"], both["assistant_masks"]))


@pytest.mark.parametrize("name", TEMPLATES)
def test_tokens_and_marks_of_conversations_are_those_of_transformers(name, tokenizer, tmp_path):
    rows = list(conversations())
    if name != "qwen":
        rows = [row for row in rows if "tools" not in row]
    tokenizer.chat_template = TEMPLATES[name]
    tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "chats.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    flags = ["--tokenizer", tmp_path / "model/tokenizer.json", "--chat-template", tmp_path / "model/tokenizer_config.json"]
    helpers.ingest(tmp_path / "store", "whole", tmp_path / "chats.jsonl", *flags, "--mix", "sequential")
    packed = ["--sequence-length", "512", "--packing", "best_fit_decreasing"]
    helpers.ingest(tmp_path / "store", "packed", tmp_path / "chats.jsonl", *flags, *packed)

    expected = [theirs(tokenizer, row) for row in rows]
    assert any(mark for tokens in expected for _, mark in tokens) and not all(mark for tokens in expected for _, mark in tokens)
    dataset = shardd.StreamingDataset(str(tmp_path / "store"), dataset="whole", q=0.0, partitions=1)
    found = []
    with closing(shardd.DataLoader(dataset, batch_size=8)) as loader:
        for batch in loader:
            for tokens, marks in zip(batch["tokens"], batch["loss_mask"]):
                found.append(list(zip(np.asarray(tokens).tolist(), np.asarray(marks).tolist())))
    assert sorted(found) == sorted(expected)

    collate = DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_position_ids=True)
    dataset = shardd.StreamingDataset(str(tmp_path / "store"), dataset="packed", q=0.0, partitions=1)
    labels = []
    with closing(shardd.DataLoader(dataset, batch_size=4)) as loader:
        for batch in loader:
            ours = packing.flatten(batch)
            shifted = packing.next_token(batch)["labels"]
            kept = torch.arange(512)[None, :] < torch.as_tensor(batch["length"]).long()[:, None]
            ends = torch.cat([ours["labels"][0, 1:], torch.tensor([-100])])
            ends[ours["cu_seq_lens_q"][1:] - 1] = -100
            assert torch.equal(shifted[kept], ends)
            for start, end in zip(ours["cu_seq_lens_q"][:-1], ours["cu_seq_lens_q"][1:]):
                ids = ours["input_ids"][0, start:end].tolist()
                labels.append((ids, ours["labels"][0, start:end].tolist()))
    features = [
        {"input_ids": [token for token, _ in tokens], "labels": [token if mark else -100 for token, mark in tokens]}
        for tokens in expected
    ]
    flat = collate(features)
    bounds = flat["cu_seq_lens_q"].tolist()
    from_theirs = [
        (flat["input_ids"][0, start:end].tolist(), flat["labels"][0, start:end].tolist())
        for start, end in zip(bounds, bounds[1:])
    ]
    assert all(len(tokens) <= 512 for tokens in expected)
    assert sorted(labels) == sorted(from_theirs)


def test_a_loss_mask_of_another_shape_is_refused():
    batch = {"tokens": torch.zeros(1, 4), "documents": [[0]], "loss_mask": torch.zeros(1, 3)}
    for function in (packing.flatten, packing.next_token):
        with pytest.raises(ValueError, match="'loss_mask' has the shape .1, 3., and the tokens .1, 4."):
            function(batch)
