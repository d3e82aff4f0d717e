"""TensorFlow, where it is installed. With 1.3 GB it is too large for requirements.txt."""

import numpy as np
import pyarrow.parquet
import pytest

import shardd
from helpers import PLAN, ingest, loader, picture


@pytest.fixture(scope="module")
def tf():
    return pytest.importorskip("tensorflow", reason="skipped: TensorFlow is not installed")


def test_tensorflow_gets_the_same_batches_epoch_by_epoch(store, tf):
    own, reference = loader(store, batch_size=64), loader(store, batch_size=64)
    dataset = shardd.as_tf_dataset(own)
    assert dataset.element_spec["image"] == tf.TensorSpec((None, 8, 8, 3), tf.uint8)
    assert dataset.element_spec["id"] == tf.TensorSpec((None,), tf.int64)
    for _ in range(2):
        for batch, other in zip(dataset, reference, strict=True):
            assert all((batch[name].numpy() == other[name].numpy()).all() for name in other)
    assert own.state_dict() == reference.state_dict()


def test_tensorflow_gets_images_as_they_were_asked_for(store, tf):
    for format in ("torch", "numpy"):
        dataset = shardd.StreamingDataset(store, image_layout="chw", image_dtype="float32", columns=["image", "id"], format=format, **PLAN)
        own = shardd.as_tf_dataset(shardd.DataLoader(dataset, 16))
        assert own.element_spec["image"] == tf.TensorSpec((None, 3, 8, 8), tf.float32)
        batch = next(iter(own.prefetch(1)))
        first = picture(int(batch["id"][0])).transpose(2, 0, 1).astype(np.float32) / 255
        assert np.allclose(batch["image"][0].numpy(), first)


def test_tensorflow_gets_text_bytes_and_lists(tmp_path, tf):
    rows = [{"text": f"row {number}", "bytes": bytes([number]), "list": list(range(number % 5))} for number in range(40)]
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "rows.parquet")
    ingest(tmp_path / "store", "mixed", tmp_path / "rows.parquet")
    own = shardd.DataLoader(shardd.StreamingDataset(str(tmp_path / "store")), 8)
    seen = []
    for batch in shardd.as_tf_dataset(own):
        for text, value, items in zip(batch["text"].numpy(), batch["bytes"].numpy(), batch["list"].to_list()):
            number = int(text.decode().removeprefix("row "))
            assert value == bytes([number]) and items == list(range(number % 5))
            seen.append(number)
    assert sorted(seen) == list(range(40))


def test_a_loader_whose_batches_tensorflow_cannot_know_is_refused(store, tf):
    with pytest.raises(ValueError, match="map the tf.data.Dataset"):
        shardd.as_tf_dataset(loader(store, transform=dict))
