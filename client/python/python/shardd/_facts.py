"""What leads from a run in an experiment tracker back to its data."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._loader import DataLoader

Fact = str | int | float


def of(loader: DataLoader) -> dict[str, Fact]:
    """The facts of a loader, by the names that ``shardtrain --log-to`` gives them."""
    dataset, settings = loader.dataset, loader.dataset._settings
    facts: dict[str, Fact | None] = {"run": dataset.run, "dataset": dataset.name, "version": dataset.version, "plan": dataset._order}
    if dataset._mixture is not None:
        for number, source in enumerate(dataset._mixture.sources):
            facts[f"stream_{number}"] = f"{source.name}@{source.version}"
    if dataset.shuffle:
        facts["q"] = ",".join(f"{share:.9g}" for share in settings["q"])
        facts["plan_seed"] = settings["seed"]
    facts["samples"] = dataset._stored
    facts["limit"] = dataset._limit
    facts["virtual_ranks"] = loader.virtual_ranks
    facts["global_batch_size"] = loader.global_batch_size
    facts["world_size"] = loader.ranks.world
    facts["transforms"] = loader._transforms_digest()
    return {name: fact for name, fact in facts.items() if fact is not None}
