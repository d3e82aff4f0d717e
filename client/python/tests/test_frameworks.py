"""Accelerate, the Trainer of transformers, Lightning and DeepSpeed: the cases they leave alone, and those
that are refused."""

import json
import types

import pytest
import torch
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

import shardd
from helpers import EVERY, PLAN, SAMPLES, ids, in_ranks, loader

FIX = r"Use shardd.DataLoader\(dataset, batch_size=\.\.\.\)"

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning", "ignore::FutureWarning")


class Model(torch.nn.Module):
    """A classifier that notes which samples it was trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(192, 10)
        self.seen: list[int] = []

    def forward(self, id, image, label):
        self.seen += id.tolist()
        scores = self.layer(image.flatten(1).float() / 255)
        return {"loss": torch.nn.functional.cross_entropy(scores, label), "logits": scores}


# --- Accelerate -----------------------------------------------------------------------------------------------------------


def accelerated(rank: int, world: int, store: str):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    own = shardd.DataLoader(shardd.StreamingDataset(store, **PLAN), batch_size=10)
    model = torch.nn.Linear(192, 10)
    model, optimizer, prepared = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.01), own)
    read, steps = [], 0
    for batch in prepared:
        loss = torch.nn.functional.cross_entropy(model(batch["image"].flatten(1) / 255), batch["label"], reduction="sum")
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        read += batch["id"].tolist()
        steps += 1
    # What Accelerate would shard is refused, on every rank.
    refusals = []
    for how in ({}, {"num_workers": 1}):
        dataset = shardd.StreamingDataset(store, batch_size=10, **PLAN)
        try:
            list(accelerator.prepare(DataLoader(dataset, batch_size=None, **how)))
            refusals.append("not refused")
        except Exception as refused:
            refusals.append(f"{type(refused).__name__}: {refused}")
    return prepared is own, accelerator.num_processes, read, steps, refusals


def test_accelerate_leaves_the_loader_alone_and_may_not_shard_the_dataset(store):
    answers = in_ranks(accelerated, 2, store)
    assert all(isinstance(answer, tuple) for answer in answers), answers
    (same, world, one, steps, refusals), (_, _, other, other_steps, other_refusals) = answers
    assert same and world == 2 and steps == other_steps
    assert not set(one) & set(other) and sorted(one + other) == EVERY
    for refused in refusals + other_refusals:
        assert "RuntimeError" in refused and "Accelerate would shard" in refused and "shardd.DataLoader(dataset" in refused


def test_a_sharded_dataset_of_accelerate_is_refused_without_its_loader(dataset):
    from accelerate.data_loader import IterableDatasetShard

    with pytest.raises(RuntimeError, match=f"Accelerate would shard the shares once more.*{FIX}"):
        list(IterableDatasetShard(dataset, num_processes=2, process_index=0))


def test_a_distributed_sampler_over_a_dataset_is_refused(dataset):
    with pytest.raises(RuntimeError, match=f"a DistributedSampler would shard the shares once more.*{FIX}"):
        list(DistributedSampler(dataset, num_replicas=2, rank=0))


def test_the_loader_of_deepspeed_is_refused(dataset):
    """DeepSpeed is known by the name of its module; this one has it, and does as that one does first."""
    deepspeed = types.ModuleType("deepspeed.runtime.dataloader")
    exec("def deepspeed_io(dataset): return len(dataset)\ndef iterate(dataset): return iter(dataset)", deepspeed.__dict__)
    for function in (deepspeed.deepspeed_io, deepspeed.iterate):
        with pytest.raises(RuntimeError, match=f"DeepSpeed would shard the shares once more.*{FIX}"):
            function(dataset)


# --- transformers ---------------------------------------------------------------------------------------------------------


def trainer(store: str, directory, model: Model, **how):
    import transformers
    from shardd.hf import ShardTrainerMixin

    class Trainer(ShardTrainerMixin, transformers.Trainer):
        pass

    arguments = transformers.TrainingArguments(
        output_dir=str(directory),
        per_device_train_batch_size=32,
        num_train_epochs=2,
        save_strategy="steps",
        save_steps=10,
        logging_steps=1000,
        report_to=[],
        use_cpu=True,
        remove_unused_columns=False,
        disable_tqdm=True,
        **how,
    )
    return Trainer(model=model, args=arguments, train_dataset=shardd.StreamingDataset(store, **PLAN))


@pytest.mark.parametrize("checkpoint, accumulation", [(10, 1), (40, 1), (10, 2)])
def test_a_trainer_goes_on_from_a_checkpoint_with_exactly_what_is_left(store, tmp_path, checkpoint, accumulation):
    whole = Model()
    trainer(store, tmp_path, whole, gradient_accumulation_steps=accumulation).train()
    assert sorted(whole.seen) == sorted(EVERY + EVERY)
    assert sorted(whole.seen[:SAMPLES]) == sorted(whole.seen[SAMPLES:]) == EVERY
    resumed = Model()
    how = {"restore_callback_states_from_checkpoint": checkpoint == 40}
    trainer(store, tmp_path, resumed, gradient_accumulation_steps=accumulation, **how).train(
        resume_from_checkpoint=str(tmp_path / f"checkpoint-{checkpoint}")
    )
    before = len(whole.seen) - len(resumed.seen)
    assert resumed.seen == whole.seen[before:]
    assert before == (checkpoint * 32 * accumulation if checkpoint < 32 else SAMPLES + (checkpoint - 32) * 32)


def test_a_checkpoint_without_a_loaders_state_is_refused(store, tmp_path):
    trainer(store, tmp_path, Model(), max_steps=10).train()
    path = tmp_path / "checkpoint-10" / "trainer_state.json"
    state = json.loads(path.read_text())
    del state["stateful_callbacks"]["LoaderState"]
    path.write_text(json.dumps(state))
    with pytest.raises(shardd.StateMismatch, match="step 10 has no state of a shardd loader"):
        trainer(store, tmp_path, Model(), max_steps=20).train(resume_from_checkpoint=str(path.parent))


def trained(rank: int, world: int, store: str, directory: str, resume: bool):
    model = Model()
    made = trainer(store, directory, model)
    made.train(resume_from_checkpoint=f"{directory}/checkpoint-10" if resume else None)
    return model.seen, made.state.global_step


def test_trainers_of_two_processes_share_an_epoch_and_one_goes_on_for_both(store, tmp_path):
    one, other = in_ranks(trained, 2, store, str(tmp_path), False)
    assert isinstance(one, tuple), one
    assert one[1] == other[1] == 2 * -(-SAMPLES // 64)
    first, second = one[0][: len(one[0]) // 2], other[0][: len(other[0]) // 2]
    assert sorted(one[0] + other[0]) == sorted(EVERY + EVERY) and len(set(first) & set(second)) == 0
    # Ten steps of 64 samples were made; one process alone reads the rest of the epoch, in smaller steps.
    alone = Model()
    made = trainer(store, tmp_path, alone)
    made.train(resume_from_checkpoint=str(tmp_path / "checkpoint-10"))
    used = set(one[0][:320] + other[0][:320])
    assert len(used) == 640 and not used & set(alone.seen[: SAMPLES - 640])
    assert sorted(list(used) + alone.seen[: SAMPLES - 640]) == EVERY


# --- Lightning ------------------------------------------------------------------------------------------------------------


def lightning_model():
    import lightning

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Model()

        def training_step(self, batch, _):
            return self.model(**batch)["loss"]

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    return lightning, Module()


def fit(store: str, directory, checkpoint=None, every: int | None = None, keeps_state: bool = False, **how):
    lightning, module = lightning_model()
    own = shardd.DataLoader(shardd.StreamingDataset(store, **PLAN), batch_size=32)
    callbacks: list = []
    if every is not None:
        callbacks.append(lightning.pytorch.callbacks.ModelCheckpoint(directory, "{step}", every_n_train_steps=every, save_top_k=-1))
    if keeps_state:
        from shardd.lightning import LoaderState

        callbacks.append(LoaderState(own))
    trainer = lightning.Trainer(
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=every is not None,
        default_root_dir=directory,
        callbacks=callbacks,
        **{"devices": 1, "max_epochs": 2, **how},
    )
    trainer.fit(module, train_dataloaders=own, ckpt_path=checkpoint)
    return module.model.seen, own, trainer


def test_lightning_reads_epoch_after_epoch(store, tmp_path):
    seen, own, trainer = fit(store, tmp_path)
    assert sorted(seen[:SAMPLES]) == sorted(seen[SAMPLES:]) == EVERY and seen[:SAMPLES] != seen[SAMPLES:]
    assert trainer.train_dataloader is own


@pytest.mark.parametrize("keeps_state", [False, True])
def test_lightning_goes_on_from_a_checkpoint_with_exactly_what_is_left(store, tmp_path, keeps_state):
    whole, _, _ = fit(store, tmp_path, every=8, keeps_state=keeps_state)
    for step, left in ((8, 2 * SAMPLES - 256), (32, SAMPLES), (40, SAMPLES - 256)):
        after, _, _ = fit(store, tmp_path, tmp_path / f"step={step}.ckpt", keeps_state=keeps_state)
        assert after == whole[-left:], step


def test_lightning_goes_on_after_max_steps_if_the_callback_keeps_the_state(store, tmp_path):
    """Lightning takes the epoch that was cut short for a complete one: the rest of it is all of its next
    one."""
    before, _, trainer = fit(store, tmp_path, keeps_state=True, max_steps=10, max_epochs=-1)
    trainer.save_checkpoint(tmp_path / "cut.ckpt")
    after, _, _ = fit(store, tmp_path, tmp_path / "cut.ckpt", keeps_state=True)
    assert not set(before) & set(after) and sorted(before + after) == EVERY


def fitted(rank: int, world: int, store: str, directory: str):
    seen, own, _ = fit(store, directory, devices=world, strategy="ddp", max_epochs=1)
    return seen, own.ranks.world


def test_lightning_of_two_processes_shares_an_epoch(store, tmp_path):
    one, other = in_ranks(fitted, 2, store, str(tmp_path))
    assert isinstance(one, tuple), one
    assert one[1] == 2 and not set(one[0]) & set(other[0]) and sorted(one[0] + other[0]) == EVERY
