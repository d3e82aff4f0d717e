from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any

class Column:
    """A column of a batch. Its memory is used again when nothing that was made of it is left."""

    @property
    def name(self) -> str: ...
    @property
    def is_tensor(self) -> bool:
        """Whether its values are numbers of one shape, none of them null."""
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str:
        """The type of its numbers, as PyTorch and NumPy name it."""
    @property
    def block(self) -> Any:
        """The tensor of PyTorch's in whose memory the values lie, from its first byte on; `None` if it has allocated none."""
    @property
    def features(self) -> int | None:
        """The number of features of sparse rows, if the dataset has it."""
    @property
    def __array_interface__(self) -> dict[str, Any]: ...
    def __len__(self) -> int: ...
    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...
    @staticmethod
    def __dlpack_device__() -> tuple[int, int]: ...
    def __arrow_c_array__(self, requested_schema: Any = None) -> tuple[Any, Any]: ...
    def to_list(self) -> list[Any]: ...
    def ragged(self) -> tuple[Column, Column, list[int], bool] | None:
        """Of binaries, or lists of numbers, that differ in length: all values, offsets (one more than rows), which rows are null, and
        whether they are binaries."""
    def csr(self) -> tuple[Column, Column, Column, list[int]] | None:
        """Of lists of pairs ``index`` and ``value``: where each row begins (one more than rows), indices, values, and which rows are
        null. The first two are int32 or int64, both of one type."""

class Step:
    @property
    def epoch(self) -> int: ...
    @property
    def number(self) -> int: ...
    @property
    def parts(self) -> list[tuple[int, int, int, bool]]:
        """Epoch, first position, end, and whether these were read before."""
    @property
    def samples(self) -> int: ...
    @property
    def next(self) -> tuple[int, int]: ...
    def __len__(self) -> int: ...
    def micro_batch(self, index: int) -> tuple[int, int]: ...
    @property
    def seed(self) -> int: ...
    def positions_of(self, index: int) -> list[int]: ...
    def places_of(self, index: int) -> list[tuple[int, int]]:
        """The epoch and the position of each of its samples."""
    def sources_of(self, index: int) -> list[int]: ...
    def failed(self, index: int) -> list[tuple[int, int, str, bool]]:
        """The samples whose pictures could not be decoded or changed: epoch, position, reason, and whether they are left out."""
    def columns(self, index: int) -> list[Column]: ...

class Loader:
    def __init__(
        self,
        order: tuple[Store, str] | Mixture,
        *,
        batch_size: int | None = None,
        global_batch_size: int | None = None,
        rank: int = 0,
        world: int = 1,
        virtual_ranks: int | None = None,
        last_batch: str = "short",
        shuffle: bool = True,
        limit: int | None = None,
        epoch: int = 0,
        position: int = 0,
        stride: int = 1,
        read_ahead: int = 8,
        threads: int = 2,
        audit: bool = False,
        cache_dir: str | PathLike[str] | None = None,
        cache_limit: str | None = None,
        run: str | None = None,
        transforms: Chain | None = None,
        allocate: Callable[[int], Any] | None = None,
        shared: SharedBlocks | None = None,
    ) -> None: ...
    def next(self) -> Step | None: ...
    def close(self) -> None: ...
    def is_own(self) -> bool: ...
    @property
    def virtual_ranks(self) -> int: ...
    @property
    def samples(self) -> int: ...
    @property
    def steps_per_epoch(self) -> int: ...
    def stats(self) -> dict[str, float]: ...
    def note_batch_code(self, seconds: float) -> None: ...
    def note_loss(self, loss: float) -> None: ...
    def note_rank_waits(self, seconds: float) -> None: ...

_Given = tuple[str, list[float], list[int], bytes, int]
_Moved = tuple[list[float], list[int], bytes, list[int]]

class Chain:
    """A chain of transforms."""

    def __init__(self, json: str) -> None: ...
    @property
    def json(self) -> str: ...
    @property
    def digest(self) -> str: ...
    @property
    def count(self) -> int: ...
    @staticmethod
    def names(audio: bool = False) -> list[str]: ...
    @staticmethod
    def nearest(name: str, audio: bool = False) -> str: ...
    @staticmethod
    def nearest_of_columns(name: str) -> str: ...
    def apply_to_columns(self, batch: Batch) -> list[Column]: ...
    def apply(
        self,
        sample: bytes,
        shape: list[int] | None,
        seed: int,
        epoch: int,
        position: int,
        first: int,
        given: list[_Given],
    ) -> tuple[str, list[int], bytearray, list[_Moved]]: ...
    def stages(
        self,
        sample: bytes,
        shape: list[int] | None,
        seed: int,
        epoch: int,
        position: int,
        given: list[_Given],
    ) -> list[tuple[str | None, tuple[str, list[int], bytearray, list[_Moved]]]]: ...

class ArrowSchema:
    """Columns with their Arrow types, for whatever takes ``__arrow_c_schema__``."""

    def __arrow_c_schema__(self) -> Any: ...

class Store:
    def __init__(
        self,
        place: str | None = None,
        *,
        servers: Sequence[str] | None = None,
        token: str | None = None,
        ca: str | PathLike[str] | None = None,
        region: str | None = None,
        endpoint: str | None = None,
        anonymous: bool | None = None,
    ) -> None: ...
    def datasets(self) -> list[tuple[str, str, int]]: ...
    def resolve(self, reference: str) -> tuple[str, str, int]: ...
    def columns(self, version: str) -> list[dict[str, Any]]: ...
    def schema(self, version: str) -> ArrowSchema: ...
    def mix(self, version: str) -> str | None:
        """The order in which ingest has put the samples: ``random``, ``sequential``, or the column by which it is stratified;
        `None` if the version does not say it."""
    def shards(self, version: str) -> list[tuple[int, int, int]]:
        """The shards of a version: samples, bytes of the file, bytes of the rows."""
    def shard_file(self, version: str, index: int) -> bytes:
        """The Arrow IPC file of a shard, verified."""
    def verify(self, version: str, first: int, end: int) -> list[str]:
        """The faults of some shards, in order, each an object of JSON."""
    def ranges(self, version: str, column: str) -> list[tuple[int, tuple[float, float] | None] | None]:
        """Of each shard how many values of a column are not null and finite, and the smallest and the largest, rounded."""
    def make_plan(
        self,
        version: str,
        *,
        q: Sequence[float],
        seed: int,
        partitions: int | None = None,
        grain_rows: int | None = None,
        block_slots: int | None = None,
        independent: bool = False,
    ) -> tuple[str, int]: ...
    def describe_plan(self, id: str, world: int, global_batch: int | None = None) -> tuple[str, int, int, int]: ...
    def full_grains(self, plan: str) -> int:
        """The grains of a plan that have all their rows: the most partitions for grains of that size."""

class SharedBlocks:
    """Blocks of memory that several processes have mapped."""

    def __init__(self, map: Any) -> None: ...
    def send(self, address: int, len: int) -> tuple[int, int, int] | None:
        """Of bytes of a tensor, for a message: the number of their block, which use of it this is, and where in it they begin."""
    def claim(self, len: int) -> Column | None:
        """A block for these bytes; ``None`` if there is no room."""
    def receive(self, number: int, uses: int) -> Column:
        """The bytes of the block of a message, once."""
    def surplus(self, keep: int) -> list[tuple[int, int, int]]:
        """Claims the free blocks beyond ``keep`` that have pages to give back: number, offset in the memory, and bytes."""
    def release(self, number: int, is_empty: bool) -> None:
        """Makes a claimed block free; ``is_empty`` if its pages were given back."""
    def counts(self) -> tuple[int, int]:
        """All blocks, and those in use."""

class Mixture:
    def __init__(
        self,
        sources: Sequence[tuple[Store, str, str, str, str, str]],
        *,
        epoch_size: int | None = None,
        phases: Sequence[tuple[int, Sequence[str]]] = (),
    ) -> None:
        """Of each source the store, version, plan, name, which of proportion, repeat and choose, and how much; of each change of
        proportions the first position, and the proportion of each source."""
    def with_phases(self, phases: Sequence[tuple[int, Sequence[str]]]) -> Mixture: ...
    @property
    def id(self) -> str: ...
    @property
    def samples(self) -> int: ...
    def epochs_of_sources(self, epoch: int) -> list[int]: ...
    def columns(self) -> list[dict[str, Any]]: ...

class Samples:
    def __init__(
        self,
        versions: Sequence[tuple[Store, str]],
        *,
        cache_dir: str | PathLike[str] | None = None,
        cache_limit: str | None = None,
    ) -> None: ...
    def take(self, numbers: Sequence[int], transforms: Chain | None = None) -> list[Column]: ...
    def is_own(self) -> bool: ...

class Order:
    def __init__(
        self, samples: int, *, q: Sequence[float], seed: int, partitions: int | None = None, grain_rows: int = 1
    ) -> None: ...
    @property
    def id(self) -> str: ...
    @property
    def partitions(self) -> int: ...
    def default_virtual_ranks(self, world: int) -> int: ...
    def check_ranks(self, world: int, virtual_ranks: int) -> None: ...
    def reads(
        self, epoch: int, start: int, end: int, rank: int, world: int, virtual_ranks: int
    ) -> list[list[int]]: ...

class Rows:
    def __init__(
        self,
        store: Store,
        name: str,
        columns: Sequence[tuple[str, str, Sequence[int] | None, Sequence[str] | None]],
        *,
        mix: str = "random",
        seed: int = 0,
        shard_size: str | None = None,
        message: str = "",
    ) -> None: ...
    def write(self, rows: int, values: Sequence[Any]) -> None: ...
    def finish(self) -> str: ...
    def abandon(self) -> None: ...

class Batch:
    """A record batch in the memory of the library that made it."""

    def __init__(self, data: Any) -> None:
        """Of data with ``__arrow_c_array__``."""
    def __len__(self) -> int: ...
    @property
    def columns(self) -> list[str]: ...

class BatchStream:
    def __init__(self, data: Any) -> None:
        """Of data with ``__arrow_c_stream__``."""
    def __iter__(self) -> BatchStream: ...
    def __next__(self) -> Batch: ...

class Batches:
    def __init__(
        self,
        store: Store,
        name: str,
        first: Batch,
        classes: Mapping[str, Sequence[str]],
        *,
        mix: str = "random",
        seed: int = 0,
        shard_size: str | None = None,
        message: str = "",
    ) -> None:
        """Begins an ingest of batches with the columns of the first, which is not written by this."""
    def write(self, batch: Batch, number: int) -> None: ...
    def finish(self) -> str: ...
    def abandon(self) -> None: ...

class Resharding:
    """A version to be cut into shards of another size, in units that any process can do."""

    def __init__(self, store: Store, version: str, *, shard_size: str, compression: str | None = None) -> None: ...
    def units(self) -> int: ...
    def write(self, first: int, end: int) -> list[str]:
        """Writes the shards of some units; the entries of all of them."""
    def commit(self, name: str, entries: Sequence[str], message: str) -> str:
        """Makes the version of all shards, in order, the present one; its id."""

class Table:
    """A table that a distributed engine holds in parts."""

    def __init__(
        self, columns: Batch, *, seed: int = 0, shard_size: str | None = None, compression: str | None = None
    ) -> None:
        """Of a table with the columns of this batch."""
    @staticmethod
    def appending(columns: Batch, store: Store, version: str, *, shard_size: str | None = None) -> Table:
        """Of a table with the columns of this batch, whose rows are appended to a version."""
    def measure(self, part: Batch) -> tuple[int, int, int]:
        """The rows of a part, their canonical bytes, and the sum of their digests."""
    def shards(self, rows: int, bytes: int) -> int:
        """How many shards such rows make."""
    def deal(self, part: Batch, shards: int) -> bytes:
        """The shard of each row, uint32."""
    def write(self, store: Store, parts: Sequence[Batch], shards: int) -> tuple[int, str] | None:
        """Stores the shard of the rows that were dealt to it; its number and its entry."""
    def commit(
        self, store: Store, name: str, amount: tuple[int, int, int], shards: Sequence[tuple[int, str]], message: str
    ) -> str:
        """Makes their version the present one of a dataset; its id."""
    def append(
        self, store: Store, name: str, base: str, amount: tuple[int, int, int], shards: Sequence[tuple[int, str]], message: str
    ) -> str:
        """Makes the version with them after those of `base` the present one, in its place; its id."""

class Tokenizer:
    def __init__(self, file: bytes, encoding: str | None = None) -> None: ...
    @property
    def vocab_size(self) -> int: ...
    def encode(self, text: str, template: bool, parse: bool) -> list[int]: ...
    def encode_batch(self, texts: Sequence[str], template: bool, parse: bool, threads: int | None) -> tuple[Column, Column]: ...
    def decode(self, ids: Sequence[int]) -> bytes: ...

def mixture_virtual_ranks(global_batch: int) -> int: ...
def data_rank(
    variable: Callable[[str], str | None],
    *,
    rank: int | None = None,
    world: int | None = None,
    replication: int | None = None,
    mesh: tuple[int, int] | None = None,
) -> tuple[int, int]: ...
def moves(store: Store, plan: str, first: int, end: int) -> list[tuple[int, int, int, int]]: ...
def exchanged(store: Store, run: str) -> str: ...
