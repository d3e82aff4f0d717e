"""Reads a version and a stream of batches over HTTP with nothing of ours: urllib, pyarrow, DuckDB.

    over_http.py SERVER DATASET PLAN

Prints its findings as one line of JSON.
"""

import json
import sys
from urllib.request import Request, urlopen

import duckdb
import pyarrow as pa
import pyarrow.ipc


def get(url, **headers):
    with urlopen(Request(url, headers=headers)) as answer:
        return answer.read()


def plain(table):
    """Columns by their storage, which DuckDB knows, and without metadata."""
    storage = [
        pa.chunked_array([chunk.storage for chunk in column.chunks], column.type.storage_type)
        if isinstance(column.type, pa.BaseExtensionType)
        else column
        for column in table.columns
    ]
    return pa.table(dict(zip(table.column_names, storage)))


def main(server, dataset, plan):
    version = json.loads(get(f"{server}/v1/datasets/{dataset}"))["version"]
    manifest = pa.ipc.open_file(get(f"{server}/v1/manifests/{version}")).read_all()
    shards = [shard.hex() for shard in manifest.column("shard").to_pylist()]
    tables = [pa.ipc.open_file(get(f"{server}/v1/shards/{id}")).read_all() for id in shards]
    rows = plain(pa.concat_tables(tables))

    # The end of a file is where Arrow keeps its index.
    tail = get(f"{server}/v1/shards/{shards[0]}", range="bytes=-6")

    url = f"{server}/v1/plans/{plan}/batches?epoch=1&global_batch_size=64&world=2&rank={{}}&virtual_ranks=4"
    read, batches = [], 0
    for rank in range(2):
        with urlopen(url.format(rank)) as answer, pa.ipc.open_stream(answer) as stream:
            metadata = {name.decode(): value.decode() for name, value in stream.schema.metadata.items()}
            assert metadata["shardd.plan"] == plan and metadata["shardd.epoch"] == "1", metadata
            for batch in stream:
                batches += 1
                read.append(plain(pa.Table.from_batches([batch])))
    epoch = pa.concat_tables(read)
    same = duckdb.sql(
        "SELECT (SELECT count(*) FROM (FROM rows EXCEPT ALL FROM epoch)) + "
        "(SELECT count(*) FROM (FROM epoch EXCEPT ALL FROM rows)) AS differ"
    ).fetchall()[0][0]
    labels = duckdb.sql("SELECT count(DISTINCT label) FROM epoch").fetchall()[0][0]
    print(json.dumps({
        "rows": rows.num_rows, "epoch": epoch.num_rows, "batches": batches, "differ": same,
        "labels": labels, "tail": tail.decode(),
    }))


if __name__ == "__main__":
    main(*sys.argv[1:])
