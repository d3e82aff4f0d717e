"""Batches for JAX, in a process of its own: JAX warns of each fork after it was imported, and other tests fork."""

import json

from helpers import EVERY, PLAN, ids, loader

SCRIPT = """
import json, sys
import jax
import numpy as np
import shardd

dataset = shardd.StreamingDataset(sys.argv[1], format="jax", **json.loads(sys.argv[2]))
numbers, sums = [], []
for batch in shardd.DataLoader(dataset, 64):
    assert all(isinstance(values, jax.Array) for values in batch.values())
    assert batch["image"].shape == (len(batch["id"]), 8, 8, 3) and batch["image"].dtype == np.uint8
    numbers += np.asarray(batch["id"]).tolist()
    sums += jax.jit(lambda images: images.astype("int32").sum(axis=(1, 2, 3)))(batch["image"]).tolist()
print(json.dumps([numbers, sums]))
"""


def test_jax_looks_at_the_memory_of_a_batch(store, script):
    numbers, sums = json.loads(script(SCRIPT, store, json.dumps(PLAN), env={"JAX_PLATFORMS": "cpu"}).stdout)
    assert sorted(numbers) == EVERY and numbers == ids(loader(store, batch_size=64))
    expected = [total for batch in loader(store, batch_size=64) for total in batch["image"].int().sum((1, 2, 3)).tolist()]
    assert sums == expected
