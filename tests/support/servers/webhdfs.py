"""A small server that speaks as much of WebHDFS as cold storage uses, for tests where no Hadoop is at hand.

It follows the documented answers of a name node: a `CREATE` or `OPEN` is redirected to another address, `RENAME` and
`DELETE` answer with a boolean, and errors are a `RemoteException`.
"""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

PREFIX = "/webhdfs/v1"
_DATA = "/data-node"


class WebHdfsServer:
    """Files in a dictionary, by path."""

    def __init__(self, port: int = 0, files: dict[str, bytes] | None = None) -> None:
        """Those of another one to go on in its place."""
        self.files: dict[str, bytes] = {} if files is None else files
        self.users: set[str] = set()
        server = self

        class Handler(_Handler):
            hdfs = server

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def root(self, folder: str) -> str:
        return f"hdfs://127.0.0.1:8020/{folder}?http={self.port}&user=quire"

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    hdfs: WebHdfsServer

    def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def _json(self, value: dict[str, Any], status: int = 200) -> None:
        self._answer(status, json.dumps(value).encode(), **{"Content-Type": "application/json"})

    def _refuse(self, status: int, kind: str, message: str) -> None:
        self._json({"RemoteException": {"exception": kind, "message": message}}, status)

    def _handle(self) -> None:
        parts = urlsplit(self.path)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        self.hdfs.users.add(query.get("user.name", ""))
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        files = self.hdfs.files
        if parts.path.startswith(_DATA):
            path = parts.path.removeprefix(_DATA)
            if self.command == "PUT":
                files[path] = body
                self._answer(201)
            else:
                start = int(query.get("offset", 0))
                self._answer(200, files[path][start : start + int(query.get("length", len(files[path])))])
            return
        path = parts.path.removeprefix(PREFIX)
        there = f"http://127.0.0.1:{self.hdfs.port}{_DATA}{path}?{parts.query}"
        missing = path not in files
        match query["op"]:
            case "CREATE" if not missing and query.get("overwrite") == "false":
                self._refuse(403, "FileAlreadyExistsException", f"{path} already exists")
            case "CREATE":
                self._answer(307, Location=there)
            case "OPEN" | "GETFILESTATUS" if missing:
                self._refuse(404, "FileNotFoundException", f"File does not exist: {path}")
            case "OPEN":
                self._answer(307, Location=there)
            case "GETFILESTATUS":
                self._json({"FileStatus": {"type": "FILE", "length": len(files[path]), "pathSuffix": ""}})
            case "RENAME":
                taken = query["destination"] in files
                if not taken:
                    files[query["destination"]] = files.pop(path)
                self._json({"boolean": not taken})
            case "DELETE":
                self._json({"boolean": files.pop(path, None) is not None})
            case "LISTSTATUS":
                self._list(path.rstrip("/"))
            case other:
                self._refuse(400, "IllegalArgumentException", f"no operation {other}")

    def _list(self, folder: str) -> None:
        inside = f"{folder}/"
        below = {name.removeprefix(inside): data for name, data in self.hdfs.files.items() if name.startswith(inside)}
        if not below:
            self._refuse(404, "FileNotFoundException", f"File {folder} does not exist.")
            return
        found = {}
        for name, data in below.items():
            first, slash, _ = name.partition("/")
            kind, length = ("DIRECTORY", 0) if slash else ("FILE", len(data))
            found[first] = {"type": kind, "length": length, "pathSuffix": first}
        self._json({"FileStatuses": {"FileStatus": list(found.values())}})

    do_GET = do_PUT = do_POST = do_DELETE = _handle  # noqa: N815 (the names are the library's)

    def log_message(self, format: str, *args: object) -> None:
        pass
