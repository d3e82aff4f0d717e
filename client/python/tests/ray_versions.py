"""Starts Ray on this machine and makes, verifies and reads versions with it; see `test_ray_versions.py`."""

import json
import random
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import ray

import shardd.ray
from engine_versions import FILTERS, RESHARD, append_first, refusal
from helpers import WHOLE
from killing import killing
from shardd._reshard import Reshard
from shardd._tables import Job

ID = pc.field("id")
EXPRESSIONS = dict(
    zip(
        FILTERS,
        [
            ID < 100,
            (ID >= 3000) & (ID <= 3100),
            ID.isin([5, 17, 3899, 100000]),
            ~(ID >= 20),
            (ID == 78) & pc.field("half").is_valid(),
            ID != 7,
            pc.field("text") == "row 77",
            pc.field("text").is_null(),
            pc.field("half") > 1900,
        ],
        strict=True,
    )
)


def main(folder: Path) -> None:
    read = lambda part: ray.data.read_parquet(folder / "files" / f"part-{part}.parquet")  # noqa: E731
    if WHOLE:
        shardd.ray.Job, shardd.ray.Reshard = killing(folder, "write-late"), killing(folder, "write-early", of=Reshard)
    made: dict = {"append": shardd.ray.append(read(3), folder / "there", name="rows")}
    made["reshard"] = shardd.ray.reshard(folder / "there", "rows", shard_size=RESHARD)
    if WHOLE:
        assert (folder / "write-late").exists() and (folder / "write-early").exists(), "no worker was killed"
        shardd.ray.Job, shardd.ray.Reshard = Job, Reshard

    def count(place: str, where: str) -> list[int]:
        rows = shardd.ray.read(folder / place, columns=["id"], filter=EXPRESSIONS[where])
        numbers = [number for part in rows.iter_batches(batch_format="pyarrow") for number in part["id"].to_pylist()]
        return [len(numbers), sum(numbers)]

    made["counts"] = {where: count("ordered", where) for where in FILTERS}
    made["gap"] = {where: count("gap", where) for where, is_pruned in FILTERS.items() if is_pruned}
    made["faults"] = shardd.ray.verify(folder / "damaged", "rows").damaged.to_pylist()
    intact = shardd.ray.verify(folder / "ordered")
    made["intact"] = [intact.samples, intact.damaged.num_rows]
    assert intact.is_intact

    with append_first(shardd.ray, folder / "raced", folder / "files" / "part-2.parquet") as first:
        raced = refusal(lambda: shardd.ray.append(read(3), folder / "raced", name="rows"))
    made["faster"] = first.version
    made["refused"] = [
        raced,
        refusal(lambda: shardd.ray.append(read(3), folder / "ordered", name="rows")),
        refusal(lambda: shardd.ray.append(read(3).drop_columns(["boxes"]), folder / "there", name="rows")),
        refusal(lambda: shardd.ray.append(read(3), folder / "there", name="cats")),
        refusal(lambda: shardd.ray.ingest(ray.data.range(50).map_batches(draw, batch_format="pyarrow"), folder / "drawn", name="rows")),
        refusal(lambda: shardd.ray.reshard(folder / "there", "rows@v1", shard_size=RESHARD)),
    ]
    made["unfit"] = refusal(lambda: shardd.ray.read(folder / "ordered", filter=pc.field("colour") == 1))
    (folder / "made.json").write_text(json.dumps(made))


def draw(part: pa.Table) -> pa.Table:
    """Other values each time, of the same length."""
    return pa.table({"number": [random.SystemRandom().getrandbits(62) for _ in range(part.num_rows)]})


if __name__ == "__main__":
    # Paths of sockets in it are limited to 107 bytes.
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as temporary:
        ray.init(num_cpus=2, include_dashboard=False, object_store_memory=100 << 20, _temp_dir=temporary, log_to_driver=False)
        ray.data.DataContext.get_current().enable_progress_bars = False
        main(Path(sys.argv[1]))
        ray.shutdown()
