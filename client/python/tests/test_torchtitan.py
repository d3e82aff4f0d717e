"""torchtitan: batches as its trainer takes them, checkpoints of any data-parallel degree, and its own Trainer."""

import itertools
import json
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

import shardd
from helpers import ingest, run
from shardd import packing

pytest.importorskip("torchtitan", reason="skipped: torchtitan is not installed (requirements-torchtitan.txt)")

from torch.distributed import checkpoint as dcp
from torchtitan.components.loss import IGNORE_INDEX

from shardd.torchtitan import BaseDataLoader, ShardDataLoader

LENGTH = 64
GLOBAL = 12
# 1, 2, 3 and 6 ranks divide the partitions; 4, 5, 7 and 12 do not.
PLAN = {"q": 0.5, "partitions": 6}


def documents():
    numbers = np.random.default_rng(5)
    return ["".join(map(chr, numbers.integers(97, 123, int(size)))) for size in numbers.integers(1, 60, 300)]


def made(directory, length, packing):
    (directory / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in documents()))
    flags = ["--text-column", "text", "--sequence-length", str(length), "--packing", packing]
    ingest(directory / "store", "text", directory / "text.jsonl", *flags)
    return str(directory / "store")


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    return made(tmp_path_factory.mktemp("packed"), LENGTH, "best_fit")


def loader(store, rank=0, world=1, total=GLOBAL, seq_len=LENGTH, **config):
    config = ShardDataLoader.Config(**{"dataset_path": store, **PLAN, **config})
    place = {"dp_rank": rank, "dp_world_size": world}
    return config.build(**place, tokenizer=None, seq_len=seq_len, local_batch_size=total // world, snapshot_every_n_steps=1)


def samples(store):
    """The rows of the dataset, as tuples."""
    return Counter(tuple(row) for row in shardd.StreamingDataset(store)[:]["tokens"].tolist())


def rows(batch):
    """The rows of a batch that have labels: not those of padding."""
    inputs, labels = batch
    return [tuple(row) for row, label in zip(inputs["input"].tolist(), labels) if (label != IGNORE_INDEX).any()]


class Ranks:
    """The loaders of a world, one step after the other."""

    def __init__(self, store, world, state=None, local=None, **how):
        self.loaders = [loader(store, rank, world, total=world * local if local else GLOBAL, **how) for rank in range(world)]
        if state is not None:
            for each in self.loaders:
                each.load_state_dict(state)
        self.iterators = [iter(each) for each in self.loaders]

    def step(self):
        """What all ranks read in a global batch: by as many batches as fill it."""
        read = []
        while len(read) < GLOBAL:
            batches = [next(iterator, None) for iterator in self.iterators]
            if None in batches:
                assert batches == [None] * len(batches), "some ranks have fewer batches"
                break
            read += [row for batch in batches for row in rows(batch)]
        return sorted(read)

    def steps(self, count):
        return [self.step() for _ in range(count)]

    def state(self):
        states = [each.state_dict() for each in self.loaders]
        assert all(state == states[0] for state in states)
        return states[0]

    def close(self):
        for each in self.loaders:
            each.close()


# --- batches --------------------------------------------------------------------------------------------------------------


def by_hand(tokens, starts, used, seq_len):
    """Inputs, labels and positions of a row, document by document."""
    labels, positions = [IGNORE_INDEX] * len(tokens), [0] * len(tokens)
    ends = sorted({0, *starts, used, len(tokens)})
    for start, end in itertools.pairwise(ends):
        for at in range(start, end):
            positions[at] = at - start
            if at + 1 < end <= used:
                labels[at] = tokens[at + 1]
    return tokens[:seq_len], labels[:seq_len], positions[:seq_len]


@pytest.mark.parametrize("how", ["best_fit", "concat_then_split"])
@pytest.mark.parametrize("more", [0, 1])
def test_labels_and_positions_stay_inside_documents(tmp_path, how, more):
    store = made(tmp_path, LENGTH + more, how)
    stored = shardd.StreamingDataset(store, format="numpy")[:]
    used = stored["length"] if "length" in stored else [LENGTH + more] * len(stored["tokens"])
    expected = {
        tuple(map(tuple, by_hand(tokens.tolist(), starts.tolist(), int(count), LENGTH)))
        for tokens, starts, count in zip(stored["tokens"], stored["documents"], used)
    }
    own = loader(store, infinite=False)
    found = set()
    for inputs, labels in own:
        assert set(inputs) == {"input", "positions"} and isinstance(own, BaseDataLoader)
        for values in (inputs["input"], inputs["positions"], labels):
            assert values.dtype == torch.int64 and values.shape == (GLOBAL, LENGTH) and values.is_contiguous()
        found |= set(zip(*(map(tuple, values.tolist()) for values in (inputs["input"], labels, inputs["positions"]))))
    padding = {row for row in found if set(row[1]) == {IGNORE_INDEX} and row not in expected}
    assert found - padding == expected and len(padding) <= 1


def test_a_column_of_labels_is_shifted_as_tokens_are():
    tokens = torch.tensor([[5, 6, 7, 8, 9, 0]])
    batch = {"tokens": tokens, "documents": [[3]], "length": torch.tensor([5]), "own": torch.where(tokens == 6, -100, tokens)}
    shifted = packing.next_token(batch, labels="own")
    assert shifted["labels"].tolist() == [[-100, 7, -100, 9, -100, -100]]
    assert shifted["positions"].tolist() == [[0, 1, 2, 0, 1, 0]]
    assert packing.next_token({"tokens": tokens})["labels"].tolist() == [[6, 7, 8, 9, 0, -100]]


def test_a_trainer_that_counts_tokens_gets_batches_without_rows(packed):
    config = ShardDataLoader.Config(dataset_path=packed, **PLAN)
    own = config.build(dp_rank=1, dp_world_size=2, tokenizer=None, max_context_length=LENGTH, num_tokens_per_batch=6 * LENGTH)
    (inputs, labels), (others, other_labels) = next(iter(own)), next(iter(loader(packed, 1, 2)))
    assert inputs["input"].shape == inputs["positions"].shape == labels.shape == (6 * LENGTH,)
    assert torch.equal(inputs["input"], others["input"].flatten()) and torch.equal(labels, other_labels.flatten())


# --- any data-parallel degree ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", [True, pytest.param(False, marks=pytest.mark.filterwarnings("ignore:shuffle=False"))])
def test_a_step_has_the_same_samples_on_any_number_of_ranks(packed, shuffle):
    """Whether they divide the partitions or not, and with several batches in a step."""
    alone = Ranks(packed, 1, shuffle=shuffle).steps(30)
    for world, local in ((2, 6), (3, 4), (4, 3), (6, 1), (12, 1), (4, 1)):
        assert Ranks(packed, world, local=local, shuffle=shuffle).steps(30) == alone, world


@pytest.mark.parametrize("worlds", [(4, 3), (3, 4, 1, 12), (1, 6, 2)])
def test_a_state_of_any_degree_resumes_at_any_other(packed, worlds):
    whole = Ranks(packed, 1).steps(8 * len(worlds))
    read, state = [], None
    for world in worlds:
        ranks = Ranks(packed, world, state)
        read += ranks.steps(8)
        state = ranks.state()
        ranks.close()
    assert read == whole


def test_degrees_that_do_not_divide_the_partitions_read_on(packed):
    """Steps of 5, 7 and 5 ranks have other sizes; the samples are those of one order, each once."""
    every = samples(packed)
    read, state = Counter(), None
    for world in (4, 5, 7, 5):
        ranks = Ranks(packed, world, state, local=2, infinite=False)
        for _ in range(2) if world != 5 or state is None else range(3):
            read.update(row for iterator in ranks.iterators for row in rows(next(iterator)))
        state = ranks.state()
        ranks.close()
    rest = Ranks(packed, 3, state, local=2, infinite=False)
    for batches in zip(*rest.iterators, strict=True):
        read.update(row for batch in batches for row in rows(batch))
    assert read == every


def test_every_epoch_has_every_sample_once(packed):
    every = samples(packed)
    count = every.total()
    assert count % GLOBAL
    for world in (1, 4):
        read = sum(Ranks(packed, world).steps(-(-3 * count // GLOBAL)), [])
        epochs = [Counter(read[epoch * count : (epoch + 1) * count]) for epoch in range(3)]
        # A step that two epochs share is sorted here.
        assert sum(epochs, Counter()) == Counter(read[: 3 * count])
    whole = [row for batch in itertools.islice(loader(packed, total=1), 2 * count) for row in rows(batch)]
    assert Counter(whole[:count]) == Counter(whole[count:]) == every and whole[:count] != whole[count:]


@pytest.mark.parametrize("world", [1, 2, 3, 4, 5])
def test_a_finite_loader_has_equally_many_batches_on_all_ranks_and_every_sample(packed, world):
    every = samples(packed)
    ranks = Ranks(packed, world, local=3, infinite=False)
    read = [list(iterator) for iterator in ranks.iterators]
    assert {len(batches) for batches in read} == {-(-every.total() // (3 * world))}
    assert Counter(row for batches in read for batch in batches for row in rows(batch)) == every
    for batches in read:
        for inputs, labels in batches:
            assert inputs["input"].shape == inputs["positions"].shape == labels.shape == (3, LENGTH)
    # It stays at its end, also after a resume at another degree, and with repeat=False, as later trainers say it.
    state = ranks.state()
    assert all(next(iter(each), None) is None for each in ranks.loaders)
    assert next(iter(Ranks(packed, 2, state, repeat=False).loaders[0]), None) is None


# --- checkpoints ----------------------------------------------------------------------------------------------------------


def test_a_checkpoint_of_torch_keeps_one_state_that_any_rank_finds(packed, tmp_path):
    ranks = Ranks(packed, 4)
    before = ranks.steps(5)
    dcp.save({"dataloader": ranks.loaders[2]}, checkpoint_id=str(tmp_path / "step-5"))
    keys = dcp.FileSystemReader(str(tmp_path / "step-5")).read_metadata().state_dict_metadata
    assert set(keys) == {"dataloader.shardd"}
    others = Ranks(packed, 6)
    for each in others.loaders:
        dcp.load({"dataloader": each}, checkpoint_id=str(tmp_path / "step-5"))
    others.iterators = [iter(each) for each in others.loaders]
    assert before + others.steps(5) == Ranks(packed, 1).steps(10)


def test_a_state_counts_batches_that_were_read_and_iterating_again_goes_on(packed):
    own = loader(packed)
    first = next(iter(own))
    state = json.loads(own.state_dict()["shardd"])
    assert state["position"] == GLOBAL and state["plan"] == shardd.StreamingDataset(packed, **PLAN).plan
    second = next(iter(own))
    both = itertools.islice(loader(packed), 2)
    assert [rows(first), rows(second)] == [rows(batch) for batch in both]
    own.load_state_dict({})
    assert json.loads(own.state_dict()["shardd"])["position"] == 2 * GLOBAL


# --- the reference --------------------------------------------------------------------------------------------------------


def test_the_loader_of_torchtitan_refuses_another_degree(tmp_path):
    """What this one is for."""
    from datasets import Dataset
    from torchtitan.hf_datasets import DatasetConfig, text_datasets

    few = Dataset.from_list([{"text": text} for text in documents()])
    text_datasets.DATASETS["few"] = DatasetConfig(path="few", loader=lambda _: few, sample_processor=lambda row: row["text"])

    class Bytes:
        def encode(self, text, **_):
            return list(text.encode())

    def reference(rank, world, **how):
        config = text_datasets.HuggingFaceTextDataLoader.Config(dataset="few", **how)
        return config.build(dp_rank=rank, dp_world_size=world, tokenizer=Bytes(), seq_len=LENGTH, local_batch_size=1)

    own = reference(0, 4)
    next(iter(own))
    with pytest.raises(AssertionError, match="dataloader resharding is not supported yet"):
        reference(0, 3).load_state_dict(own.state_dict())
    # Without an end its ranks agree; with one, some would wait for the others forever.
    counts = [len(list(reference(rank, 7, infinite=False))) for rank in range(7)]
    assert len(set(counts)) > 1, counts


# --- a training -----------------------------------------------------------------------------------------------------------


def train(world, **how):
    """What torchtitan's Trainer does on this number of processes: losses and validations by step, and the rows of each rank."""
    script = Path(__file__).with_name("torchtitan_train.py")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world), str(script), json.dumps(how)]
    run(command, timeout=280, env={"OMP_NUM_THREADS": "1"})
    done = json.loads(Path(how["out"]).read_text())
    losses, validated = ({int(step): loss for step, loss in done[name].items()} for name in ("losses", "validated"))
    return losses, validated, done["read"]


def test_a_training_of_torchtitan_stopped_on_four_ranks_goes_on_with_three_on_one_loss_curve(packed, tmp_path):
    """Within an epoch of 12.25 steps, and into the next. Validations read a finite dataset."""
    folder, steps, stop = tmp_path / "run", 14, 4
    how = {"store": packed, "global_batch": GLOBAL, "steps": steps, "interval": 4, "folder": str(folder), "out": str(tmp_path / "out")}
    whole, validated, read = train(4, **how)
    assert sorted(whole) == list(range(1, steps + 1)) and whole[steps] < whole[1]
    # Later checkpoints of a training that stopped were never made.
    for step in (8, 12, steps):
        (folder / "checkpoint" / f"step-{step}").rename(tmp_path / f"step-{step}")
    after, validated_after, others = train(3, **how)
    assert sorted(after) == list(range(stop + 1, steps + 1)) and sorted(validated_after) == [8, 12]

    def batch(ranks, step):
        size = GLOBAL // len(ranks)
        return sorted(row for rows in ranks for row in rows[step * size : (step + 1) * size])

    assert [batch(others, step) for step in range(steps - stop)] == [batch(read, step) for step in range(stop, steps)]
    epoch = [row for step in range(12) for row in batch(read, step)]
    assert len(set(epoch)) == len(epoch) == 144 < samples(packed).total() < 144 + GLOBAL
    # Gradients of a step are summed in another order.
    for step, loss in after.items():
        assert abs(loss - whole[step]) <= 1e-5 * whole[step], (step, loss, whole[step])
    for step, loss in validated_after.items():
        assert abs(loss - validated[step]) <= 1e-5 * loss


# --- mistakes -------------------------------------------------------------------------------------------------------------


def test_mistakes_name_the_way_out(store, packed, script):
    with pytest.raises(ValueError, match="rows of text have 64 tokens, and training.seq_len is 128: change that, or ingest"):
        loader(packed, seq_len=128)
    with pytest.raises(ValueError, match=r"rows of text have 64 tokens, and a batch has 100 tokens, with contexts of at most 64"):
        ShardDataLoader.Config(dataset_path=packed).build(dp_rank=0, dp_world_size=1, max_context_length=64, num_tokens_per_batch=100)
    with pytest.raises(ValueError, match="digits has no column 'tokens'.*shardctl ingest --tokenizer"):
        loader(store)
    with pytest.raises(ValueError, match="text has no column 'own'"):
        loader(packed, labels="own")
    with pytest.raises(ValueError, match="pass dataset_path, the directory or URL of a store, or streams"):
        ShardDataLoader.Config().build(dp_rank=0, dp_world_size=1, seq_len=LENGTH, local_batch_size=1)
    with pytest.raises(ValueError, match="pass seq_len and local_batch_size, or max_context_length"):
        ShardDataLoader.Config(dataset_path=packed).build(dp_rank=0, dp_world_size=1)
    own = loader(packed)
    with pytest.raises(shardd.StateMismatch, match=r"another loader \(dp_rank_0, world_size\).*exclude_from_loading dataloader"):
        own.load_state_dict({"dp_rank_0": b"", "world_size": 1})
    with pytest.raises(shardd.StateMismatch, match="another version of the data, seed, q"):
        own.load_state_dict(loader(packed, shuffle_seed=1).state_dict())
    for missing in ("torchtitan", "tyro"):
        refused = script(f"import sys; sys.modules['{missing}'] = None; import shardd.torchtitan", check=False)
        assert "shardd.torchtitan needs torchtitan: pip install torchtitan" in refused.stderr
    with pytest.raises(ValueError, match="row 0 has documents that begin at"):
        packing.next_token({"tokens": torch.zeros(1, 4), "documents": [[4]]})
