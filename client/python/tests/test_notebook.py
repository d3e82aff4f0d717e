"""Datasets, loaders and measurements in notebooks: HTML, plots and progress bars."""

import copy
import io
import itertools
import json
import pickle
import sys
import time
import warnings
from html.parser import HTMLParser

import pytest

import shardd
from helpers import PLAN, SAMPLES, ids, loader, own_threads
from shardd import _html, _notebook, audio_transforms
from shardd import transforms as T

HOSTILE = '<script>alert("1")</script>'


class Page(HTMLParser):
    """The elements and the text of HTML whose elements all end, in the order in which they began."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.words: list[str] = []
        self.feed(html)
        self.close()
        assert not self.open, f"not ended: {self.open}"

    def handle_starttag(self, tag, attributes):
        self.open.append(tag)
        self.elements.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open and self.open.pop() == tag, f"</{tag}> ends nothing that is open"
        if tag in ("div", "summary", "td", "th"):
            self.words.append(" ")

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join("".join(self.words).split())

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.elements if name == tag]


def shown(value) -> Page:
    """A value as a notebook shows it, whose HTML keeps the rules for all of them."""
    html = value._repr_html_()
    page = Page(html)
    names = {tag for tag, _ in page.elements}
    assert names <= {"div", "span", "strong", "code", "table", "thead", "tbody", "tr", "th", "td", "details", "summary"}
    for tag, attributes in page.elements:
        known = {"style", "scope", "role", "aria-label", "aria-hidden", "aria-valuemin", "aria-valuemax", "aria-valuenow"}
        assert set(attributes) <= known, "no script, no link, no class of a page"
        assert "url(" not in attributes.get("style", "")
        assert tag != "th" or attributes["scope"] in ("row", "col")
        assert attributes.get("role") not in ("img", "progressbar") or attributes["aria-label"]
        # A theme decides on black and white.
        assert not any(fixed in attributes.get("style", "") for fixed in ("#fff", "#000", "white;", "black"))
    return page


def progress(page: Page) -> tuple[int, int]:
    [bar] = [attributes for _, attributes in page.elements if attributes.get("role") == "progressbar"]
    return int(bar["aria-valuenow"]), int(bar["aria-valuemax"])


# --- HTML
# ------------------------------------------------------------------------------------------------------------------------------


def test_a_dataset_shows_its_version_plan_and_columns(dataset, store):
    text = shown(dataset).text
    for part in ("digits", dataset.version, dataset.plan, "1,003", "Q 0.5, seed 0", "48", store, "uint8", "8 × 8 × 3", "10 classes: a, b, c"):
        assert part in text, part
    assert "size 203.7 KiB without compression, 208 B a sample" in text
    changed = shardd.StreamingDataset(
        store, q=[0.5, 0.2, 0.1], limit=100, columns=["image"], image_layout="chw", image_dtype="float32", grain_rows=4, selection="independent"
    )
    text = shown(changed).text
    assert "100 of 1,003 (limit)" in text and "Q 0.5, 0.2, then 0.1, seed 0, grain_rows 4, independent selection" in text
    assert "float32 3 × 8 × 8" in text and "2 more columns are not read" in text
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert "as stored (shuffle=False)" in shown(shardd.StreamingDataset(store, shuffle=False)).text


def test_a_dataset_of_streams_shows_each(store):
    streams = [shardd.Stream(store, proportion=0.7), shardd.Stream(store, proportion=0.3)]
    dataset = shardd.StreamingDataset(streams=streams, epoch_size=800)
    text = shown(dataset).text
    assert "digits + digits" in text and dataset.plan in text and "samples 800" in text
    assert "proportion=0.7" in text and "proportion=0.3" in text and dataset._mixture.plans[0][:12] in text
    assert "800" in shown(shardd.DataLoader(dataset, 16)).text


def test_hostile_names_are_text(tmp_path):
    table = ({HOSTILE: number, 'a"b<c>': float(number), "words": "x" * number, "label": number % 2} for number in range(50))
    shardd.from_iter(table, tmp_path, name="mean", classes={"label": [HOSTILE, "b"]})
    dataset = shardd.StreamingDataset(tmp_path)
    page = shown(dataset)
    assert HOSTILE in page.text and 'a"b<c>' in page.text and f"2 classes: {HOSTILE}, b" in page.text
    assert "LargeUtf8 any length" in page.text and "size" not in page.text

    def own(sample):
        return sample

    own.__qualname__ = HOSTILE
    dataset.name = HOSTILE
    page = shown(shardd.DataLoader(dataset, 10, transform=own))
    assert page.text.count(HOSTILE) >= 4
    assert HOSTILE in shown(shardd.Headspace(1, 1.0, 2.0, HOSTILE, HOSTILE)).text
    assert _html.element("b", HOSTILE, aria_label='"><i>') == (
        '<b aria-label="&quot;&gt;&lt;i&gt;">&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt;</b>'
    )


def test_secrets_of_an_address_are_not_shown():
    assert _notebook._address("https://me:secret@store.example/data?sig=secret") == "https://store.example/data"
    assert _notebook._address("s3://bucket/folder") == "s3://bucket/folder"
    assert _notebook._address("/data/me@home") == "/data/me@home"


def test_a_loader_shows_where_it_is_before_in_and_after_a_loop(store):
    own = loader(store, batch_size=4, virtual_ranks=12)
    assert repr(own) == "DataLoader(digits, batch_size=4, epoch 0, position 0 of 1003)"
    page = shown(own)
    assert progress(page) == (0, len(own)) and "No batch was read yet" in page.text
    assert "48 samples of 1 rank, 12 virtual ranks" in page.text and "12 micro-batches of at most 4 samples, 252 in an epoch" in page.text
    batches = iter(own)
    for _ in range(29):
        next(batches)
    page = shown(own)
    assert progress(page) == (29, 252) and "Epoch 0: batch 29 of 252 on this rank, position 96 of 1,003 (a loop reads it)" in page.text
    assert "Time of the loop" in page.text and own.stats()["advice"] in page.text
    for _ in range(7):
        next(batches)
    state = own.state_dict()
    batches.close()
    assert "Epoch 0 was left at position 144 of 1,003. The next loop begins epoch 1." in shown(own).text
    own.load_state_dict(state)
    page = shown(own)
    assert progress(page) == (36, 252) and "position 144 of 1,003 (the next loop begins here)" in page.text
    own.set_epoch(3)
    assert progress(shown(own)) == (0, 252) and "Epoch 3" in shown(own).text
    for _ in own:
        last = shown(own)
    assert progress(last) == (252, 252) and "Epoch 3: batch 252 of 252 on this rank, position 1,003 of 1,003" in last.text
    assert "Epoch 4: batch 0 of 252" in shown(own).text


def test_nothing_is_read_and_no_thread_is_started_to_show_a_loader(store):
    own, before = loader(store), own_threads()
    chain = T.Compose([T.RandomCrop(4), T.ToDtype("float32", scale=True)])
    other = shardd.DataLoader(own.dataset, 10, transform=chain)
    for value in (own, own.dataset, other, chain, own.stats(), shardd.Sampler(100)):
        assert repr(value)
        assert not hasattr(value, "_repr_html_") or shown(value)
    assert own_threads() == before and own._native is None and own.stats()["samples"] == 0
    assert ids(own) == ids(loader(store))


def test_a_loader_that_cannot_begin_says_why(store):
    page = shown(loader(store, 0, 7))
    assert "This loader cannot begin: 7 ranks cannot share 48 partitions equally" in page.text and "Dataset digits" in page.text


def test_a_copy_of_a_loader_in_a_loop_is_in_none(store):
    own = loader(store)
    batches = iter(own)
    next(batches)
    twin = pickle.loads(pickle.dumps(own))
    assert own.batches_done == 1 and twin.batches_done == 0 and shown(twin)


def test_transforms_show_their_operations_arguments_and_digest():
    inner = T.RandomApply([T.ColorJitter(brightness=0.4), T.RandomGrayscale()], p=0.8)
    chain = T.Compose([T.RandomResizedCrop(64, ratio=(0.75, 4 / 3)), inner, T.Normalize([0.5] * 3, [0.2] * 3)], seed=7, on_error="zero")
    page = shown(chain)
    assert chain.digest in page.text and "seed=7, on_error='zero'" in page.text
    names = ["RandomResizedCrop", "RandomApply", "ColorJitter", "RandomGrayscale", "Normalize"]
    assert [page.text.index(name) for name in names] == sorted(page.text.index(name) for name in names)
    assert "size=64" in page.text and "ratio=[0.75, 1.33333]" in page.text and "brightness=0.4" in page.text and "mean=[0.5, 0.5, 0.5]" in page.text
    sounds = audio_transforms.Compose([audio_transforms.Vol(0.5)], sample_rate=16_000)
    text = shown(sounds).text
    assert "audio_transforms" in text and sounds.digest in text and "sample_rate=16000" in text and "gain=0.5" in text
    boxes = T.Compose([T.Resize(8)], column="image", companions={HOSTILE: T.BoundingBoxes()})
    assert f"{HOSTILE} (BoundingBoxes)" in shown(boxes).text and "column='image'" in shown(boxes).text


def test_long_tables_and_names_are_cut(tmp_path):
    wide = ({f"column{at}": float(number) for at in range(60)} for number in range(20))
    shardd.from_iter(wide, tmp_path, name="wide")
    text = shown(shardd.StreamingDataset(tmp_path)).text
    assert "column49" in text and "column50" not in text and "and 10 more" in text
    assert _html.few(["x" * 100] * 12) == ", ".join(["x" * 39 + "…"] * 10) + " and 2 more"
    assert _html.size(999) == "999 B" and _html.size(3 << 30) == "3.0 GiB"
    assert [_html.seconds(time) for time in (0.00042, 0.5, 0.9999, 12.345, 3600, 90_000)] == ["0.42 ms", "500 ms", "1 s", "12.3 s", "60 min", "25 h 0 min"]


def test_stats_are_a_dict_that_shows_bars(store):
    own = loader(store, transform=lambda sample: time.sleep(0.0005) or sample)
    before = own.stats()
    for _ in itertools.islice(own, 20):
        pass
    stats = own.stats()
    assert isinstance(stats, dict) and json.loads(json.dumps(stats)) == stats == pickle.loads(pickle.dumps(stats)) == copy.deepcopy(stats)
    assert own.stats(since=before) and {**stats} == stats
    page = shown(stats)
    bars = [attributes["aria-label"] for _, attributes in page.elements if attributes.get("role") == "img"]
    assert len(bars) == 2 and "transform in Python" in bars[0] and "waiting for threads" in bars[0] and "disk" in bars[1] and "decode" in bars[1]
    assert "waits for python" in page.text and stats["advice"] in page.text
    assert "No batch was read yet" in shown(before).text


def test_a_measurement_shows_both_rates():
    measured = shardd.Headspace(100, 41.34, 58.91, "disk", "Use a faster disk.")
    text = shown(measured).text
    assert "41.3 batches/s" in text and "58.9 batches/s" in text and "Data takes 30 % of the time" in text and "Use a faster disk." in text


def test_short_texts_name_the_thing(store):
    sampler = shardd.Sampler(1000, partitions=8)
    assert repr(sampler) == f"Sampler(epoch 0, position 0 of 1000, plan {sampler.plan[:12]} of 8 partitions)"
    whole = shardd.DataLoader(shardd.StreamingDataset(store), global_batch_size=96)
    assert repr(whole) == "DataLoader(digits, global_batch_size=96, epoch 0, position 0 of 1003)"


# --- progress
# ------------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("last_batch", ["short", "drop", "wrap", "carry"])
@pytest.mark.parametrize("virtual_ranks", [1, 4])
def test_lengths_and_batches_done_are_right_at_every_batch_and_after_every_resume(store, last_batch, virtual_ranks):
    def fresh():
        return loader(store, batch_size=None, global_batch_size=64, virtual_ranks=virtual_ranks, last_batch=last_batch)

    own, states = fresh(), []
    for epoch in range(5):
        whole = len(own)
        assert own.batches_done == 0
        for count, _ in enumerate(own, 1):
            assert (len(own), own.batches_done) == (whole, count)
            if own.is_last_micro and count < whole and count // virtual_ranks % 4 == 1:
                states.append((own.state_dict(), count, whole))
        assert count == whole, f"epoch {epoch}"
    assert last_batch != "carry" or len({whole for *_, whole in states}) == 2, "an epoch has a step less now and then"
    for state, done, whole in states:
        resumed = fresh()
        resumed.load_state_dict(state)
        assert (len(resumed), resumed.batches_done) == (whole, done)
        assert sum(1 for _ in resumed) == whole - done
        assert resumed.batches_done == 0


@pytest.mark.parametrize("last_batch", ["short", "drop", "wrap", "carry"])
def test_a_state_of_steps_of_another_size_leaves_the_batches_that_are_due(store, last_batch):
    first = loader(store, batch_size=16)
    for _ in itertools.islice(first, 7):
        pass
    for batch_size in (5, 16, 40, 700):
        own = loader(store, batch_size=batch_size, last_batch=last_batch)
        own.load_state_dict(first.state_dict())
        left = len(own) - own.batches_done
        assert 0 <= own.batches_done <= len(own) and sum(1 for _ in own) == left


def test_ranks_with_different_numbers_of_micro_batches_count_their_own(store):
    for rank in range(2):
        dataset = shardd.StreamingDataset(store, rank=rank, world_size=2, **PLAN)
        own = shardd.DataLoader(dataset, global_batch_size=60, virtual_ranks=3)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert [own.batches_done for _ in own] == list(range(1, len(own) + 1))
    assert len(own) == 2 * -(-SAMPLES // 60)


def test_a_loop_that_is_left_early_is_followed_by_a_whole_epoch(store):
    own = loader(store, last_batch="carry", batch_size=64)
    list(own)
    for _ in itertools.islice(own, 3):
        pass
    assert own.batches_done == 0 and len(own) == -(-SAMPLES // 64)
    assert sum(1 for _ in own) == -(-SAMPLES // 64)


def test_tqdm_starts_where_a_resumed_loader_does_and_ends_at_the_end(store):
    tqdm = pytest.importorskip("tqdm", reason="skipped: tqdm is not installed").tqdm
    quiet = dict(file=io.StringIO(), mininterval=0)
    own = loader(store, batch_size=16)
    with tqdm(own, **quiet) as bar:
        for _ in bar:
            if bar.n == 9:
                break
    state = own.state_dict()
    with tqdm(own, initial=own.batches_done, **quiet) as bar:
        assert (bar.n, bar.total) == (0, 63), "the next loop begins an epoch"
    own.load_state_dict(state)
    with tqdm(own, initial=own.batches_done, **quiet) as bar:
        assert (bar.n, bar.total) == (10, 63)
        for _ in bar:
            pass
        assert bar.n == bar.total


def test_a_loader_on_a_device_counts_the_batches_that_it_gave(store):
    torch = pytest.importorskip("torch")
    from shardd._device import ToDevice

    own = ToDevice(loader(store, batch_size=64), torch.device("cpu"))
    assert [own.batches_done for _ in own] == list(range(1, len(own) + 1)) and own.batches_done == 0
    for _ in itertools.islice(own, 3):
        pass
    state = own.state_dict()
    assert own.batches_done == 0, "the next loop begins an epoch"
    own.load_state_dict(state)
    assert own.batches_done == 3 and progress(shown(own)) == (3, 16)
    assert repr(own) == "to_device(DataLoader(digits, batch_size=64, epoch 1, position 192 of 1003), 'cpu')"


# --- plots
# ------------------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def pyplot():
    matplotlib = pytest.importorskip("matplotlib", reason="skipped: matplotlib is not installed")
    matplotlib.use("agg")
    import matplotlib.pyplot as pyplot

    yield pyplot
    pyplot.close("all")


def test_plots_draw_the_numbers_and_return_their_axes(store, pyplot):
    own = loader(store)
    for _ in itertools.islice(own, 20):
        pass
    own.close()
    axes, stats = own.plot(), own.stats()
    assert [bar.get_width() for bar in axes.patches] == [stats[name] for name, *_ in (*_notebook.LOOP, *_notebook.THREADS)]
    assert stats["waits_for"] in axes.get_title() and axes.get_xlabel() == "seconds"
    _, given = pyplot.subplots()
    measured = shardd.Headspace(100, 41.34, 58.91, "disk", "Use a faster disk.")
    assert measured.plot(ax=given) is given and [bar.get_width() for bar in given.patches] == [41.34, 58.91]
    assert own.plot(given) is given and "30 %" not in given.get_title()


def test_labels_are_those_that_ranks_read(store, pyplot):
    dataset = shardd.StreamingDataset(store, **PLAN)
    axes = dataset.plot_labels(ranks=4, epoch=2, samples=500)
    counts = axes.images[0].get_array()
    assert counts.shape == (4, 10) and counts.sum() == 500 and (counts.sum(axis=1) == 125).all()
    assert [text.get_text() for text in axes.get_xticklabels()] == list("abcdefghij") and "first 500 samples of epoch 2" in axes.get_title()
    whole = dataset.plot_labels(ranks=4).images[0].get_array()
    for rank in range(4):
        labels = [label for batch in loader(store, rank, 4, batch_size=64) for label in batch["label"].tolist()]
        assert whole[rank].tolist() == [labels.count(label) for label in range(10)]
    assert dataset.plot_labels().images[0].get_array().shape == (1, 10)
    text = shardd.StreamingDataset(store, columns=["image"], batch_size=3, virtual_ranks=12, image_layout="chw", **PLAN)
    assert text.plot_labels("label", ranks=2).images[0].get_array().sum() == SAMPLES, "other settings of the dataset do not matter"


def test_labels_that_are_no_histogram_are_refused(store, bucket, pyplot):
    dataset = shardd.StreamingDataset(store, **PLAN)
    for wanted, how in [
        ("no column 'labels'; there are id, image, label", {"column": "labels"}),
        ("values of column 'image' have the shape", {"column": "image"}),
        ("column 'id' has 1003 different values", {"column": "id"}),
        ("ranks=5 does not divide the 48 partitions", {"ranks": 5}),
        ("epoch counts from 0", {"epoch": -1}),
    ]:
        with pytest.raises(ValueError, match=wanted):
            dataset.plot_labels(**how)
    with pytest.raises(ValueError, match="samples of a directory"):
        shardd.StreamingDataset(bucket.url).plot_labels()


def test_without_matplotlib_plots_name_the_remedy(store, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    measured = shardd.Headspace(100, 41.34, 58.91, "disk", "Use a faster disk.")
    for plot in (loader(store).plot, measured.plot, shardd.StreamingDataset(store, **PLAN).plot_labels):
        with pytest.raises(ImportError, match="pip install matplotlib"):
            plot()
