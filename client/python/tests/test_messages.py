"""What a script of PyTorch's that is moved here meets first: each error names the way out."""

from decimal import Decimal

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import shardd
from helpers import loader, rows
from shardd import _native


@pytest.fixture(scope="module")
def two(tmp_path_factory) -> str:
    """A store with a training and a test set."""
    directory = str(tmp_path_factory.mktemp("two") / "pictures")
    for name in ("pictures-train", "pictures-test"):
        shardd.from_iter(rows(50), directory, name=name)
    return directory


@pytest.mark.parametrize(
    "how, error, message",
    [
        ({"split": "val"}, ValueError, "no dataset ends in -val; there are pictures-test, pictures-train"),
        ({"split": "tain"}, ValueError, 'no dataset ends in -tain; there are .*: did you mean split="train"\\?$'),
        (
            {"dataset": "pictures"},
            FileNotFoundError,
            'there is no dataset pictures; there are pictures-test, pictures-train: pass split="test" or split="train" as well$',
        ),
        (
            {"dataset": "pictures", "split": "val"},
            FileNotFoundError,
            'there is no dataset pictures-val; there are pictures-test, pictures-train: pass split="test" or split="train"$',
        ),
        (
            {"dataset": "pictures-train", "split": "train"},
            FileNotFoundError,
            "there are pictures-test, pictures-train; pictures-train has no split train: .* Leave split out",
        ),
        ({"dataset": "pictures-tain"}, FileNotFoundError, 'there are pictures-test, pictures-train: did you mean dataset="pictures-train"\\?$'),
        ({"dataset": "pictues", "split": "train"}, FileNotFoundError, 'there are .*: did you mean dataset="pictures"\\?$'),
        ({"dataset": "pictures-test@best"}, FileNotFoundError, "there is no tag best of pictures-test"),
        ({}, ValueError, 'there are several datasets: pass dataset="pictures-test" or dataset="pictures-train"$'),
    ],
)
def test_a_dataset_that_is_missing_is_named_with_those_there_are(two, how, error, message):
    with pytest.raises(error, match=message):
        shardd.StreamingDataset(two, **how)


def test_a_split_of_several_datasets_needs_the_name_of_one(tmp_path):
    for name in ("pictures-train", "sorted-train"):
        shardd.from_iter(rows(50), tmp_path, name=name)
    with pytest.raises(ValueError, match='split="train" is there of several datasets: pass dataset="pictures" or dataset="sorted" as well$'):
        shardd.StreamingDataset(tmp_path, split="train")
    assert shardd.StreamingDataset(tmp_path, dataset="pictures", split="train").name == "pictures-train"


@pytest.mark.parametrize("how", [{}, {"dataset": "digits"}])
def test_a_split_of_a_dataset_without_splits_is_explained(store, how):
    with pytest.raises((FileNotFoundError, ValueError), match="-val; there is digits; digits has no split val: a split is a dataset of its own, named NAME-SPLIT. .* under the name digits-val"):
        shardd.StreamingDataset(store, split="val", **how)


def test_streams_name_datasets_in_the_same_way(two):
    with pytest.raises(FileNotFoundError, match="there is no dataset cats; there are pictures-test, pictures-train"):
        shardd.StreamingDataset(streams=[shardd.Stream(two, dataset="cats")])


def test_a_file_is_no_store(tmp_path, monkeypatch):
    picture = tmp_path / "0000.jpg"
    picture.write_bytes(b"\xff\xd8")
    message = "0000.jpg is a file, and a store is a directory, made by shardctl ingest or .*, or an address such as s3://bucket/folder"
    for remote in (picture, str(picture), picture / "store", f"file://{picture}"):
        with pytest.raises(NotADirectoryError, match=message):
            shardd.StreamingDataset(remote)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NotADirectoryError, match=f"^{message}"):
        shardd.StreamingDataset("0000.jpg")
    with pytest.raises(NotADirectoryError, match=message):
        shardd.StreamingDataset(streams=[shardd.Stream(picture)])
    with pytest.raises(NotADirectoryError, match=message):
        shardd.from_iter(rows(5), picture, name="digits")


@pytest.mark.parametrize(
    "q, wrong",
    [
        ("auto", "q='auto' is"),
        ("0.1", "q='0.1' is"),
        (b"1", "q=b'1' is"),
        (None, "q=None is"),
        (True, "q=True is"),
        ([0.1, None], r"q=\[0.1, None\] has None, which is"),
        (["0.1"], r"q=\['0.1'\] has '0.1', which is"),
        ((0.5, False), r"q=\(0.5, False\) has False, which is"),
    ],
)
def test_a_share_that_is_no_number_is_refused_as_it_was_given(store, q, wrong):
    message = f"^{wrong} not a number: pass a number from 0 to 1, such as q=0.1, or a list of them$"
    with pytest.raises(TypeError, match=message):
        shardd.StreamingDataset(store, q=q)
    with pytest.raises(TypeError, match=message):
        shardd.StreamingDataset(streams=[shardd.Stream(store)], q=q)
    with pytest.raises(TypeError, match=message):
        shardd.Sampler(1000, 1, 0, q=q)


def test_shares_are_numbers_of_any_type_and_lists_of_them(store):
    plan = shardd.StreamingDataset(store, q=0.5).plan
    for q in (np.float64(0.5), Decimal("0.5"), torch.tensor(0.5), [0.5], (0.5,)):
        assert shardd.StreamingDataset(store, q=q).plan == plan
    assert shardd.StreamingDataset(store, q=[1, 0.5]).plan != plan


@pytest.mark.parametrize(
    "index, wrong, hint",
    [
        ("a", "'a'", ""),
        ("label", "'label'", r"; for a column, write dataset\[0:10\]\['label'\]"),
        (b"a", "b'a'", ""),
        (None, "None", ""),
        (1.5, "1.5", ""),
        (True, "True", ""),
        ([1, "a"], "'a'", ""),
        ([1.5], "1.5", ""),
        ([True, False], "True", ""),
    ],
)
def test_an_index_is_an_int_a_slice_or_a_list_of_ints(dataset, index, wrong, hint):
    with pytest.raises(TypeError, match=f"^{wrong} is no index: pass an int for a sample, or a slice or a list of ints for a batch{hint}$"):
        dataset[index]


def test_ints_of_numpy_and_torch_are_indices(dataset):
    for index in (7, np.int64(7), np.array(7), torch.tensor(7)):
        assert dataset[index]["id"] == dataset[7:8]["id"][0]
    for index in ([3, 1, 4], (3, 1, 4), np.array([3, 1, 4]), torch.tensor([3, 1, 4])):
        assert dataset[index]["id"].tolist() == [int(dataset[number]["id"]) for number in (3, 1, 4)]


@pytest.mark.parametrize(
    "name, value, remedy",
    [
        ("shuffle", True, "shuffle belongs to StreamingDataset"),
        ("sampler", None, "leave sampler out"),
        ("batch_sampler", None, "pass batch_size"),
        ("worker_init_fn", print, "leave worker_init_fn out"),
        ("persistent_workers", True, "leave persistent_workers out"),
        ("generator", None, "pass shuffle_seed to StreamingDataset"),
        ("timeout", 3, "leave timeout out"),
        ("batchsize", 3, r"see help\(shardd.DataLoader\)"),
    ],
)
def test_an_argument_of_another_loader_is_refused_with_the_remedy(dataset, name, value, remedy):
    with pytest.raises(TypeError, match=f"shardd.DataLoader has no argument '{name}': {remedy}"):
        shardd.DataLoader(dataset, batch_size=4, **{name: value})


def test_a_dataset_of_pytorch_is_to_be_put_into_a_store_first(dataset):
    with pytest.raises(TypeError, match="this is a TensorDataset: fill a store with shardd.from_torch first"):
        shardd.DataLoader(TensorDataset(torch.zeros(3)), batch_size=4)


@pytest.mark.skipif(torch.cuda.is_available(), reason="skipped: there is a GPU")
def test_a_device_that_is_missing_is_named(store):
    with pytest.raises(RuntimeError, match="no CUDA device is available; leave shardd.to_device out"):
        shardd.to_device(loader(store), "cuda")


def test_a_dataset_that_is_missing_in_a_store_on_the_web_does_not_make_it_a_node(store, monkeypatch):
    own = _native.Store(store)

    class OnTheWeb:
        def __new__(cls, **where):
            return own

    monkeypatch.setattr(_native, "Store", OnTheWeb)
    for name, message in (("cats", "there is no dataset cats; there is digits$"), ("digits@best", "there is no tag best of digits[^.]*$")):
        with pytest.raises(FileNotFoundError, match=message):
            shardd.StreamingDataset("https://store.example.org/digits", dataset=name)


def test_addresses_of_nodes_are_servers():
    with pytest.raises(OSError, match=r"If http://127.0.0.1:9 is a node, pass it as servers=\['http://127.0.0.1:9'\]"):
        shardd.StreamingDataset("http://127.0.0.1:9")
    with pytest.raises(ValueError, match="'127.0.0.1:9', which is not the address of a node: write it as 'http://"):
        shardd.StreamingDataset(servers=["127.0.0.1:9"])
    with pytest.raises(ValueError, match=r"pass either the directory or URL of a store, or the addresses of nodes as servers=\[...\]"):
        shardd.StreamingDataset()


def test_errors_name_arguments_and_no_flags(store):
    with pytest.raises(OSError, match=r"no shardd answers at http://127.0.0.1:9/.* name another with servers=\[...\]"):
        shardd.StreamingDataset(servers="http://127.0.0.1:9")
    with pytest.raises(ValueError, match="use partitions=1003"):
        shardd.StreamingDataset(store, partitions=5000)
    with pytest.raises((OSError, ValueError), match=r'storage_options=\{"endpoint": ...\} or AWS_ENDPOINT_URL: ') as error:
        shardd.StreamingDataset("s3://bucket/folder", storage_options={"endpoint": "10.77.0.9:9000"})
    assert "--" not in str(error.value)


def test_what_is_spelled_like_a_flag_in_a_path_or_in_quotes_stays(store):
    with pytest.raises(OSError, match=r"at http://127.0.0.1:9/--server/v1.* `shardd serve`, or name another with servers=\[...\]"):
        shardd.StreamingDataset(servers="http://127.0.0.1:9/--server")
    with pytest.raises(ValueError, match='"my --server" cannot name a dataset'):
        shardd.StreamingDataset(store, dataset="my --server")


def test_types_of_rows_have_the_names_that_numpy_gives_them(tmp_path):
    with pytest.raises(ValueError, match="row 1, column 'a': float64, and the rows before have int64"):
        shardd.from_iter([{"a": 1}, {"a": 1.5}], str(tmp_path / "store"), name="mixed")
