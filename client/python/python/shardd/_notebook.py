"""What datasets, loaders, transforms and measurements look like in a notebook. Reads no data, and starts no thread."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from . import _formats, _html, column_transforms
from ._html import Html, code, element, faint, note
from ._streams import classes_of

if TYPE_CHECKING:
    from ._dataset import StreamingDataset
    from ._headspace import Headspace
    from ._loader import DataLoader
    from .transforms import Compose

# Numbers of an argument beyond which it is cut off.
_MANY = 16

# Where the time of a loop goes, and meanwhile that of its threads: the count, its name, and its colour.
LOOP = (("waited_s", "waiting for threads", _html.ORANGE), ("python_s", "transform in Python", _html.PINK), ("user_s", "own code", _html.GREY))
THREADS = (
    ("network_s", "network", _html.PURPLE),
    ("disk_s", "disk", _html.BLUE),
    ("decode_s", "decode", _html.GREEN),
    ("transform_s", "transform", _html.PINK),
)


def dataset(of: StreamingDataset) -> Html:
    """A dataset: its version, plan and columns, or its streams."""
    return _html.page("StreamingDataset", of.name, *_parts_of(of))


def _parts_of(of: StreamingDataset) -> Iterator[Html]:
    mixture = of._mixture
    limited = "" if of._limit is None else f" of {of._samples:,} (limit)"
    yield _html.pairs(
        [
            ("version", None if mixture is not None else code(of.version)),
            ("samples", f"{of.num_samples:,}{limited}"),
            ("size", _size(of)),
            ("mixture" if mixture is not None else "plan", code(of.plan)),
            ("order", _order(of)),
            ("partitions", None if mixture is not None else f"{of.partitions:,}"),
            ("read from", _place(of)),
        ]
    )
    if mixture is not None:
        rows = [
            (source.name, code(source.version[:12]), f"{source.samples:,}", f"{source.kind}={source.amount}", code(plan[:12]), partitions)
            for source, plan, partitions in zip(mixture.sources, mixture.plans, mixture.partitions, strict=True)
        ]
        yield _html.heading("Streams")
        yield _html.grid(("stream", "version", "samples", "share", "plan", "partitions"), rows, "streams of the dataset")
    yield _html.heading("Columns")
    rows = [_column(of, of._schema[name]) for name in of.columns]
    yield _html.grid(("column", "type", "shape", ""), rows, "columns of the dataset")
    if hidden := len(of._schema) - len(of.columns):
        yield note(faint(f"{hidden} more {'column is' if hidden == 1 else 'columns are'} not read"))


def _order(of: StreamingDataset) -> str:
    if not of.shuffle:
        return "as stored (shuffle=False)"
    settings = of._settings
    *first, last = settings["q"]
    q = f"Q {', '.join(f'{share:g}' for share in first)}, then {last:g}" if first else f"Q {last:g}"
    more = [f"{name} {settings[name]}" for name in ("grain_rows", "block_slots") if settings[name] is not None]
    return ", ".join([q, f"seed {settings['seed']}", *more, *(["independent selection"] if settings["independent"] else [])])


def _place(of: StreamingDataset) -> str | None:
    """The directory, URL or nodes, without anything secret that an address may have."""
    if of._mixture is not None:
        return None
    servers, place = of._where["servers"], of._where["place"]
    return ", ".join(map(_address, servers)) if servers else _address(place)


def _address(place: str) -> str:
    if "://" not in place:
        return place
    parts = urlsplit(place)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _size(of: StreamingDataset) -> str | None:
    """Of a version whose columns all have one shape, in memory."""
    widths = [_bytes_of(column) for column in of._schema.values()]
    if of._mixture is not None or None in widths:
        return None
    row = sum(widths)  # type: ignore[arg-type]
    return f"{_html.size(row * of._samples)} without compression, {_html.size(row)} a sample"


def _bytes_of(column: Mapping[str, Any]) -> int | None:
    if column["number"] is None or column["shape"] is None:
        return None
    bits = re.search(r"\d+$", column["number"])
    return math.prod(column["shape"]) * (int(bits[0]) // 8 if bits else 1)


def _column(of: StreamingDataset, column: Mapping[str, Any]) -> tuple[Any, ...]:
    """The cells of a column: its values as batches have them."""
    notes = ["may be null"] if column["nullable"] else []
    if (classes := classes_of([column])) is not None:
        notes.append(f"{len(classes):,} classes: {_html.few(classes)}")
    if column["number"] is not None and column["shape"] is not None:
        shape, number = _formats.image_spec(column["shape"], column["number"], *of._image)
        return column["name"], number, " × ".join(map(str, shape)) or "scalar", "; ".join(notes)
    kind = column["type"] if column["items"] is None else f"lists of {column['items']}"
    is_flat = column["items"] is not None or any(text in kind for text in ("Utf8", "Binary"))
    return column["name"], kind, "any length" if is_flat else "", "; ".join(notes)


# --- loaders ----------------------------------------------------------------------------------------------------------------


def loader(of: DataLoader) -> Html:
    """A loader: where it is, its sizes, and where the time went."""
    folded = [_html.fold(f"Dataset {of.dataset.name}", *_parts_of(of.dataset))]
    if of._chain is not None:
        folded.append(_html.fold(f"Transforms {of._chain.digest[:12]}", *_parts_of_chain(of._chain)))
    try:
        of._refuse_unequal(of._taken)
        sizes = [*_progress(of), _sizes(of)]
    except (ValueError, OSError) as error:
        # What an iteration would raise, too.
        sizes = [note(element("strong", "This loader cannot begin: "), str(error))]
    return _html.page("DataLoader of", of.dataset.name, *sizes, *_time(of.stats()), *folded)


def _progress(of: DataLoader) -> Iterator[Html]:
    samples, batches, done = of.dataset.num_samples, len(of), of.batches_done
    epoch, position = of._cursor
    if of._loop is not None and done > of._done_before(of._loop.position):
        # With the last batch of an epoch, the cursor is in the next one.
        position = position if epoch == of.epoch else samples
        epoch, state = of.epoch, "a loop reads it"
    elif of._inside:
        yield note(f"Epoch {epoch} was left at position {position:,} of {samples:,}. The next loop begins epoch {epoch + 1}.")
        return
    else:
        state = "the next loop begins here" if of._loop is None else "a loop begins here"
    yield note(f"Epoch {epoch}: batch {done:,} of {batches:,} on this rank, position {position:,} of {samples:,} ", faint(f"({state})"))
    yield _html.progress(done, batches, f"epoch {epoch}, batches of this rank")


def _sizes(of: DataLoader) -> Html:
    ranks, virtual, own = of.ranks, of.virtual_ranks, of._own_virtual_ranks()
    micro = "1 micro-batch" if own == 1 else f"{own:,} micro-batches"
    processes = f" in {of.transform_processes} processes" if of.transform_processes else ""
    changes = of._changes.steps if of._changes is not None else ()
    return _html.pairs(
        [
            ("rank", f"{ranks.rank} of {ranks.world}"),
            ("step", f"{of.global_batch_size:,} samples of {_count(ranks.world, 'rank')}, {_count(virtual, 'virtual rank')}"),
            ("on this rank", f"{micro} of at most {of.batch_size:,} samples, {len(of):,} in an epoch"),
            ("last_batch", of._last_batch),
            ("prefetch", f"{of._ahead:,} steps, by {_count(of._threads, 'thread')}"),
            ("pin_memory", "True" if of.pin_memory else None),
            ("transform", _html.few([_name(step) for step in changes]) + processes if changes else None),
            ("collate_fn", _name(of.collate_fn) + processes if of.collate_fn is not None else None),
        ]
    )


def _count(count: int, name: str) -> str:
    return f"{count:,} {name}{'s' * (count != 1)}"


def _name(function: Any) -> str:
    return str(getattr(function, "__qualname__", None) or type(function).__name__)


def _time(counts: Mapping[str, Any]) -> Iterator[Html]:
    """Where the time went, and the advice."""
    if not any(counts[name] > 0 for name, _, _ in LOOP):
        yield note(faint("No batch was read yet, so there is no time to show."))
        return
    for title, kinds in (("Time of the loop", LOOP), ("Threads meanwhile", THREADS)):
        if parts := [(name, counts[count], colour) for count, name, colour in kinds if counts[count] > 0]:
            yield _html.heading(title)
            yield _html.stacked(parts)
    yield note(element("strong", "waits for "), code(counts["waits_for"]), " · ", counts["advice"])


def stats(of: Mapping[str, Any]) -> Html:
    """The result of ``stats()``."""
    names = ("steps", "samples", "surplus", "replaced", "skipped")
    counted = [(name, f"{of[name]:,.0f}") for name in names if of[name] or name in names[:2]]
    return _html.page("DataLoader", "stats", _html.pairs(counted), *_time(of))


# --- transforms and measurements --------------------------------------------------------------------------------------------


def chain(of: Compose) -> Html:
    """A ``Compose``: its operations with their arguments, and its digest."""
    return _html.page(type(of).__module__.rpartition(".")[2], "Compose", *_parts_of_chain(of))


def _parts_of_chain(of: Compose) -> Iterator[Html]:
    if isinstance(of, column_transforms.Compose):
        yield _html.pairs([("digest", code(of.digest))])
        rows = [(name, *cells) for name, ops in of.columns.items() for cells in _operations(ops, 0)]
        yield _html.grid(("column", "operation", "arguments"), rows, "operations, in order")
        if of.samples is None:
            return
        of = of.samples
    defaults = _options(type(of)([]))
    given = [f"{name}={_value(value)}" for name, value in _options(of).items() if value != defaults[name]]
    companions = [f"{name} ({type(companion).__name__})" for name, companion in of.companions.items()]
    yield _html.pairs(
        [("digest", code(of.digest)), ("options", ", ".join(given) or None), ("companions", ", ".join(companions) or None)]
    )
    yield _html.grid(("operation", "arguments"), list(_operations(of.transforms, 0)), "operations, in order")


def _options(of: Compose) -> dict[str, Any]:
    """The arguments of a ``Compose``, except operations and companions."""
    options = dict(of._options)
    options.pop("companions", None)
    inner = options.pop("decode", None) or options.pop("audio")
    return {**options, **inner}


def _operations(of: Sequence[Any], depth: int) -> Iterator[tuple[Any, Any]]:
    """Operations and their arguments; those inside of others follow, moved to the right. Defaults are faint."""
    for operation in of:
        inside: Sequence[Any] = ()
        arguments = []
        declared = fields(operation) if hasattr(operation, "__dataclass_fields__") else ()  # type: ignore[arg-type]
        for field in declared:
            value = getattr(operation, field.name)
            if field.name == "transforms":
                inside = value
                continue
            shown = f"{field.name}={_value(value)}"
            arguments.append(faint(shown) if field.default is not MISSING and _is(value, field.default) else shown)
        if not declared:
            inside = getattr(operation, "transforms", ())
        separated = [part for argument in arguments for part in (", ", argument)][1:]
        name = element("span", type(operation).__name__, style=f"padding-left:{1.5 * depth}em")
        yield name, _html.joined(separated)
        yield from _operations(inside, depth + 1)


def _is(value: Any, default: Any) -> bool:
    """Whether an argument has its default; arrays compare number by number."""
    return bool(type(value) is type(default) and value == default)


def _value(value: Any) -> str:
    """An argument, in few words."""
    if isinstance(value, str):
        return repr(str(getattr(value, "value", value)))
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, list | tuple) and len(value) <= _MANY:
        return f"[{', '.join(map(_value, value))}]"
    return _html.cut(repr(value), 80)


def headspace(of: Headspace) -> Html:
    """The two rates of a measurement, as bars, and the advice."""
    rows = [("with the loader", of.loader_rate, _html.BLUE), ("with batches from memory", of.cached_rate, _html.GREY)]
    share = f"Data takes {100 * of.share:.0f} % of the time, by {of.steps:,} batches with each."
    waits = (element("strong", "waits for "), code(of.waits_for), " · ", of.advice)
    return _html.page("training loop", "Headspace", _html.bars(rows, "batches/s", "batches per second"), note(share), note(*waits))
