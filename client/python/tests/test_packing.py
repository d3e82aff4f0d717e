"""Packed documents: as transformers' collator has them, in any number of ranks, and the loss of documents by themselves."""

import json
from contextlib import closing

import numpy as np
import pytest
import torch
from transformers import DataCollatorWithFlattening, LlamaConfig, LlamaForCausalLM

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
