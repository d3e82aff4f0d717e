"""`shardtrain` trains a small GPT as PyTorch does. Needs the directory of `shardctl` and `shardtrain` in SHARDD_BIN."""

import json
import os
import random
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import shardd
from helpers import run
from torch_gpt import Gpt, adamw, as_shardtrain_has_it, mean_loss, share_of_rate

BINARIES = os.environ.get("SHARDD_BIN", "")

pytestmark = pytest.mark.skipif(not BINARIES, reason="skipped: SHARDD_BIN does not say where shardtrain is")

WORLDS = [1, 2, 4]
ZERO = [0, 1, 2, 3]

SIZE = {"layers": 2, "heads": 4, "width": 64}
VOCABULARY, LENGTH = 256, 32
VIRTUAL_RANKS, BATCH = 4, 4
EPOCHS, STEPS_PER_EPOCH = 2, 10
STEPS = EPOCHS * STEPS_PER_EPOCH
# The last step of each epoch is a short one, in which virtual ranks have unequal shares.
SEQUENCES = (STEPS_PER_EPOCH - 1) * VIRTUAL_RANKS * BATCH + 6
RATE, DECAY, CLIP, WARM_UP = 3e-3, 0.1, 1.0, 5

# Rounding alone makes a tenth of it.
LOSSES_WITHIN = 1e-5
WEIGHTS_WITHIN = 5e-5
# A bias of all keys moves all scores of a row alike, which softmax undoes: its gradient is zero but for rounding, and AdamW makes steps
# of that which depend on its noise.
BIASES_OF_KEYS_WITHIN = 1e-3


@dataclass(frozen=True)
class Given:
    """What both sides begin with."""

    store: str
    plan: str
    first: Path


@dataclass(frozen=True)
class Trained:
    """What came of it: step by step, and at the end."""

    losses: list[float]
    lengths: list[float]
    rates: list[float]
    weights: dict[str, torch.Tensor]


def text(length: int) -> str:
    """Words out of sixty, of letters of which some are more frequent than others."""
    draw = random.Random(2026)
    words = ["".join(draw.choices("etaoinshrdlu", range(12, 0, -1), k=draw.randint(2, 8))) for _ in range(60)]
    made = ""
    while len(made) < length:
        made += draw.choice(words) + draw.choice([" ", " ", " ", ", ", ".\n"])
    return made[:length]


def order(store: str) -> shardd.StreamingDataset:
    return shardd.StreamingDataset(store, dataset="text", q=0.5, partitions=VIRTUAL_RANKS, shuffle_seed=3, rank=0, world_size=1)


def model() -> Gpt:
    """With weights that tell any two of them apart, also where they are usually all zero or one."""
    torch.manual_seed(0)
    made = Gpt(VOCABULARY, LENGTH, **SIZE)
    with torch.no_grad():
        for name, weight in made.named_parameters():
            around = 1.0 if "norm" in name and name.endswith("weight") else 0.0
            weight.normal_(around, 0.05)
    return made


@pytest.fixture(scope="module")
def given(tmp_path_factory) -> Given:
    directory = tmp_path_factory.mktemp("parity")
    (directory / "text.txt").write_text(text(SEQUENCES * (LENGTH + 1)))
    ingest = ["ingest", "--name", "text", "--sequence-length", str(LENGTH + 1), str(directory / "text.txt")]
    run([f"{BINARIES}/shardctl", "--store", str(directory / "store"), *ingest])
    dataset = order(str(directory / "store"))
    assert dataset.num_samples == SEQUENCES
    save_file(as_shardtrain_has_it(model()), directory / "first.safetensors")
    return Given(str(directory / "store"), dataset.plan, directory / "first.safetensors")


def by_shardtrain(given: Given, directory: Path, world: int, zero: int) -> Trained:
    """`zero` is the stage of ZeRO."""
    progress, saved = directory / "progress.jsonl", directory / "last.safetensors"
    settings = {
        "--store": given.store, "--plan": given.plan, "--init": given.first, "--virtual-ranks": VIRTUAL_RANKS, "--batch-size": BATCH,
        "--epochs": EPOCHS, "--model": "gpt", "--layers": SIZE["layers"], "--heads": SIZE["heads"],
        "--hidden-size": SIZE["width"], "--optimizer": "adamw",
        "--lr": RATE, "--weight-decay": DECAY, "--clip-grad-norm": CLIP, "--schedule": "cosine", "--warmup-epochs": WARM_UP / STEPS_PER_EPOCH,
        "--reduce": "exact", "--zero": zero, "--threads": 1, "--progress": progress, "--save": saved,
    }  # fmt: skip
    ranks = ["run", "--nproc", str(world), "--max-restarts", "0", "--"] if world > 1 else []
    run([f"{BINARIES}/shardtrain", *ranks, *(str(word) for setting in settings.items() for word in setting)])
    lines = [json.loads(line) for line in progress.read_text().splitlines()]
    told = [[line[name] for line in lines] for name in ("loss", "gradient_norm", "rate")]
    return Trained(*told, load_file(saved))


@cache
def by_pytorch(
    given: Given,
    *,
    clip: float = CLIP,
    decay: float = DECAY,
    decays_all: bool = False,
    gelu: str = "none",
    virtual_ranks: int = VIRTUAL_RANKS,
    first_epoch: int = 0,
) -> Trained:
    """The samples of all virtual ranks of a step in one pass."""
    ours = model()
    for layer in ours.layers:
        layer.gelu = torch.nn.GELU(approximate=gelu)
    optimizer = adamw(ours, RATE, decay)
    if decays_all:
        optimizer.param_groups[1]["weight_decay"] = decay
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: share_of_rate(step, warm_up=WARM_UP, steps=STEPS))
    batches = shardd.DataLoader(order(given.store), global_batch_size=virtual_ranks * BATCH, virtual_ranks=1)
    batches.set_epoch(first_epoch)
    losses, lengths, rates = [], [], []
    for _ in range(EPOCHS):
        for batch in batches:
            optimizer.zero_grad()
            loss = mean_loss(ours, batch["tokens"].long())
            loss.backward()
            losses.append(loss.item())
            lengths.append(torch.nn.utils.clip_grad_norm_(ours.parameters(), clip).item())
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()
    return Trained(losses, lengths, rates, as_shardtrain_has_it(ours))


def largest_difference(ours: list[float], theirs: list[float]) -> float:
    """In any of the first twenty steps."""
    return max(abs(one - other) for one, other in zip(ours[:STEPS], theirs[:STEPS], strict=True))


def keys_and_others(weights: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """The biases of the keys, and all other weights."""
    width = SIZE["width"]
    keys, others = [], []
    for name, weight in sorted(weights.items()):
        if name.endswith("attention.mix.bias"):
            queries, own, values = weight.split(width)
            keys.append(own)
            others += [queries, values]
        else:
            others.append(weight.flatten())
    return torch.cat(keys), torch.cat(others)


@pytest.mark.parametrize("zero", ZERO)
@pytest.mark.parametrize("world", WORLDS)
def test_a_gpt_learns_as_it_does_in_pytorch(given, tmp_path, world, zero):
    ours, theirs = by_shardtrain(given, tmp_path, world, zero), by_pytorch(given)
    assert len(ours.losses) == len(theirs.losses) == STEPS
    found = largest_difference(ours.losses, theirs.losses)
    print(f"{world} ranks, ZeRO stage {zero}: losses {ours.losses[0]:.3f} to {ours.losses[-1]:.3f} differ by {found:.1e} at most")
    assert found <= LOSSES_WITHIN
    assert ours.lengths == pytest.approx(theirs.lengths, rel=1e-5)
    assert sum(length > CLIP for length in theirs.lengths) in range(1, STEPS), "some gradients are clipped, and some are not"
    assert ours.rates == pytest.approx(theirs.rates, rel=1e-6)

    assert {name: weight.shape for name, weight in ours.weights.items()} == {name: it.shape for name, it in theirs.weights.items()}
    differences = [
        (one - other).abs().max().item() for one, other in zip(keys_and_others(ours.weights), keys_and_others(theirs.weights))
    ]
    print(f"weights differ by {differences[1]:.1e} at most, biases of keys by {differences[0]:.1e}")
    assert differences[1] <= WEIGHTS_WITHIN
    assert differences[0] <= BIASES_OF_KEYS_WITHIN
    moved = keys_and_others(theirs.weights)[1] - keys_and_others(load_file(given.first))[1]
    assert moved.abs().mean() > 100 * WEIGHTS_WITHIN, "they agree because they have learnt the same, not because they stayed"


@pytest.mark.parametrize(
    "otherwise",
    [
        {"clip": 1.1 * CLIP},
        {"decay": 0.8 * DECAY},
        {"decays_all": True},
        {"gelu": "tanh"},
        {"virtual_ranks": VIRTUAL_RANKS - 1},
        {"first_epoch": 1},
    ],
    ids=str,
)
def test_twenty_losses_tell_any_other_training_apart(given, otherwise):
    """So a run within the tolerance above is the same training."""
    found = largest_difference(by_pytorch(given).losses, by_pytorch(given, **otherwise).losses)
    print(f"{otherwise}: losses differ by {found:.1e}")
    assert found > LOSSES_WITHIN
