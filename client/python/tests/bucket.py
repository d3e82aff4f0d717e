"""A server that speaks as much S3 as datasets need, in threads of this process, and can be made to keep everybody waiting."""

import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape


class Bucket:
    """One bucket, whose objects are in memory."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.lock = threading.Lock()
        self._answers = threading.Event()
        self._answers.set()
        self._kept_back: tuple[str, ...] = ()
        self._gives_parts = False
        # For how many seconds every answer is kept back.
        self.lateness = 0.0
        # A client waits for an answer that is kept back.
        self.is_waited_for = threading.Event()
        self.reads: dict[str, int] = {}
        # Bytes of each object that were given.
        self.given: dict[str, int] = {}
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"bucket": self}))
        self._server.daemon_threads = True
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.environment = {
            "AWS_ACCESS_KEY_ID": "the-key",
            "AWS_SECRET_ACCESS_KEY": "the-secret",
            "AWS_REGION": "us-east-1",
            "AWS_DISABLE_BULK_DELETE": "true",
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._server.server_port}",
        }

    url = "s3://data/digits"

    def pause(self, *parts: str, gives_parts: bool = False) -> None:
        """Takes requests, and does not answer those with all of `parts` in the name; but who asks for some
        bytes of it is given them if `gives_parts`."""
        self._kept_back, self._gives_parts = parts, gives_parts
        self.is_waited_for.clear()
        self._answers.clear()

    def go_on(self) -> None:
        self._answers.set()

    def wait(self, path: str, is_part: bool) -> None:
        """As long as an answer is kept back."""
        is_kept_back = all(part in path for part in self._kept_back) and not (is_part and self._gives_parts)
        if is_kept_back and not self._answers.is_set():
            self.is_waited_for.set()
            self._answers.wait()
        if self.lateness:
            threading.Event().wait(self.lateness)

    def close(self) -> None:
        self.go_on()
        self._server.shutdown()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    bucket: Bucket
    protocol_version = "HTTP/1.1"
    # Small answers are sent without delay.
    disable_nagle_algorithm = True

    def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.bucket.wait(self.path, status == 206)
        self.send_response(status)
        self.send_header("Last-Modified", "Sun, 01 Nov 2026 00:00:00 GMT")
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if self.command != "HEAD":
            self.send_header("Content-Length", str(len(body)))
        try:
            self.end_headers()
        except OSError:
            self.close_connection = True
            return
        if self.command != "HEAD":
            try:
                self.wfile.write(body)
            except OSError:
                self.close_connection = True  # the client is dead

    def _key(self) -> str:
        return unquote(urlsplit(self.path).path).removeprefix("/data").removeprefix("/")

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query)
        if "list-type" in query:
            return self._list(query.get("prefix", [""])[0], query.get("delimiter", [""])[0])
        key = self._key()
        with self.bucket.lock:
            body = self.bucket.objects.get(key)
            self.bucket.reads[key] = self.bucket.reads.get(key, 0) + (self.command == "GET")
        if body is None:
            return self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        whole, status, headers = len(body), 200, {"ETag": _etag(body)}
        if asked := self.headers.get("Range"):
            first, _, last = asked.removeprefix("bytes=").partition("-")
            start = int(first) if first else whole - int(last)
            end = min(int(last) + 1, whole) if first and last else whole
            body, status = body[start:end], 206
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{whole}"
        if self.command == "HEAD":
            headers["Content-Length"] = str(whole)
        else:
            with self.bucket.lock:
                self.bucket.given[key] = self.bucket.given.get(key, 0) + len(body)
        self._answer(status, body, **headers)

    do_HEAD = do_GET

    def do_PUT(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        key = self._key()
        with self.bucket.lock:
            present = self.bucket.objects.get(key)
            match = self.headers.get("If-Match")
            holds = match is None or (present is not None and match == _etag(present))
            holds &= self.headers.get("If-None-Match") != "*" or present is None
            if holds:
                self.bucket.objects[key] = body
        self._answer(200 if holds else 412, b"", ETag=_etag(body))

    def do_DELETE(self) -> None:
        with self.bucket.lock:
            self.bucket.objects.pop(self._key(), None)
        self._answer(204)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self._answer(501)

    def _list(self, prefix: str, delimiter: str) -> None:
        with self.bucket.lock:
            found = {key: (len(body), _etag(body)) for key, body in sorted(self.bucket.objects.items()) if key.startswith(prefix)}
        deeper = {prefix + key[len(prefix) :].split(delimiter)[0] + delimiter for key in found if delimiter and delimiter in key[len(prefix) :]}
        contents = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>2026-11-01T00:00:00.000Z</LastModified>"
            f"<ETag>{escape(etag)}</ETag><Size>{size}</Size></Contents>"
            for key, (size, etag) in found.items()
            if not delimiter or delimiter not in key[len(prefix) :]
        )
        folders = "".join(f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>" for folder in sorted(deeper))
        self._answer(200, f"<ListBucketResult><IsTruncated>false</IsTruncated>{contents}{folders}</ListBucketResult>".encode())

    def log_message(self, *_: object) -> None:
        pass


def _etag(body: bytes) -> str:
    return f'"{hashlib.md5(body).hexdigest()}"'
