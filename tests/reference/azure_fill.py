#!/usr/bin/env python3
"""Puts files into a container of Azurite, Microsoft's emulator of Azure Blob Storage, with the standard library alone.

    azure_fill.py ENDPOINT FOLDER      fills container `data` with the files in FOLDER

The account and its key are the emulator's well-known ones.
"""

import base64
import hashlib
import hmac
import sys
import urllib.request
from datetime import datetime, timezone
from pathlib import Path
from urllib.parse import quote, urlsplit

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


def put(endpoint, path, query, body, **headers):
    headers |= {
        "x-ms-date": datetime.now(timezone.utc).strftime("%a, %d %b %Y %H:%M:%S GMT"),
        "x-ms-version": "2021-08-06",
    }
    resource = f"/{ACCOUNT}{urlsplit(endpoint).path}{path}" + "".join(f"\n{k}:{v}" for k, v in sorted(query.items()))
    canonical = "".join(f"{name}:{value}\n" for name, value in sorted(headers.items()))
    length = str(len(body)) if body else ""
    signed = f"PUT\n\n\n{length}\n\napplication/octet-stream\n\n\n\n\n\n\n{canonical}{resource}"
    digest = hmac.new(base64.b64decode(KEY), signed.encode(), hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
    headers["Content-Type"] = "application/octet-stream"
    text = "?" + "&".join(f"{k}={v}" for k, v in query.items()) if query else ""
    request = urllib.request.Request(f"{endpoint}{path}{text}", data=body, method="PUT", headers=headers)
    urllib.request.urlopen(request).close()


def main(endpoint, folder):
    put(endpoint, "/data", {"restype": "container"}, b"")
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = quote(path.relative_to(folder).as_posix())
        put(endpoint, f"/data/{name}", {}, path.read_bytes(), **{"x-ms-blob-type": "BlockBlob"})


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
