"""Starts Ray on this machine and ingests Parquet files with it in several ways; see `test_ray_ingest.py`."""

import json
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import ray

import shardd.ray
from killing import killing
from shardd._tables import Job


def main(how: dict) -> None:
    folder, made = Path(how["folder"]), {}
    read = lambda: ray.data.read_parquet(how["files"])  # noqa: E731

    def ingest(case: str, dataset: ray.data.Dataset, job: type[Job] = Job) -> None:
        shardd.ray.Job = job
        made[case] = shardd.ray.ingest(dataset, folder / case, name="rows", **how["layout"])

    ingest("files", read())
    for kill in how["kills"]:
        ingest(f"killed-{kill}", read(), killing(folder, kill))
        assert (folder / kill).exists(), "no worker was killed"
    laid_out = {
        "seven": lambda rows: rows.repartition(7),
        "one": lambda rows: rows.repartition(1),
        "shuffled": lambda rows: rows.random_shuffle(seed=3),
    }
    for blocks in how["blocks"]:
        ingest(blocks, laid_out[blocks](read()))
    try:
        ingest("drawn", read().random_sample(0.5))
    except ValueError as error:
        made["drawn"] = str(error)
    back = shardd.ray.read(folder / "files", "rows")
    parts = ray.get(back.to_arrow_refs())
    pyarrow.parquet.write_table(pa.concat_tables(part.combine_chunks() for part in parts), folder / "back.parquet")
    made["back"] = {
        "count": back.count(),
        "sum": back.sum("id"),
        "columns": shardd.ray.read(folder / "files", columns=["text", "id"]).columns(),
        "filtered": shardd.ray.read(folder / "files").filter(expr="id < 100").count(),
    }
    (folder / "made.json").write_text(json.dumps(made))


if __name__ == "__main__":
    # Paths of sockets in it are limited to 107 bytes.
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp") as temporary:
        ray.init(num_cpus=int(sys.argv[2]), include_dashboard=False, object_store_memory=100 << 20, _temp_dir=temporary, log_to_driver=False)
        ray.data.DataContext.get_current().enable_progress_bars = False
        main(json.loads(sys.argv[1]))
        ray.shutdown()
