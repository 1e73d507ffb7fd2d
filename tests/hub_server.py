"""A server with the part of the Hugging Face hub's API that creates, uploads and downloads model repositories."""

import base64
import hashlib
import http.server
import json
import threading
import urllib.parse
from collections.abc import Iterator
from contextlib import contextmanager


class HubServer(http.server.ThreadingHTTPServer):
    """Holds the files of repositories by name, and the paths of all requests."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.private: set[str] = set()
        self.requests: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: HubServer

    def do_POST(self) -> None:
        body = self._read_body()
        if self.path == "/api/repos/create":
            fields = json.loads(body)
            name = f"{fields.get('organization') or 'user'}/{fields['name']}"
            self.server.repositories.setdefault(name, {})
            if fields.get("private") or fields.get("visibility") == "private":
                self.server.private.add(name)
            self._send_json({"url": f"{self.server.url}/{name}", "name": name})
        elif self.path == "/api/validate-yaml":
            self._send_json({"errors": [], "warnings": []})
        elif "/preupload/" in self.path:
            names = [file["path"] for file in json.loads(body)["files"]]
            uploads = [{"path": name, "uploadMode": "regular", "shouldIgnore": False} for name in names]
            self._send_json({"files": uploads, "commitOid": "0" * 40})
        elif "/commit/" in self.path:
            name = self._repository_name("/api/models/")
            files = self.server.repositories[name]
            for line in body.decode().splitlines():
                entry = json.loads(line)
                if entry["key"] == "file":
                    files[entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
            url = f"{self.server.url}/{name}/commit/{'1' * 40}"
            self._send_json({"success": True, "commitOid": "1" * 40, "commitUrl": url})
        else:
            self._send_not_found()

    def do_GET(self) -> None:
        self._read_body()
        if self.path.startswith("/api/models/"):
            name = self._repository_name("/api/models/")
            if name not in self.server.repositories:
                self._send_not_found("RepoNotFound")
                return
            files = self.server.repositories[name]
            if "/tree/" in self.path:
                listed = [{"type": "file", "path": path, "size": len(content)} for path, content in files.items()]
                self._send_json([{**file, "oid": hashlib.sha1(file["path"].encode()).hexdigest()} for file in listed])
                return
            siblings = [{"rfilename": file} for file in files]
            model = {"id": name, "modelId": name, "sha": "1" * 40, "siblings": siblings}
            self._send_json({**model, "private": False, "tags": []})
            return
        content = self._find_file()
        if content is None:
            self._send_not_found("EntryNotFound")
            return
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
        self.send_header("X-Repo-Commit", "1" * 40)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_HEAD = do_GET  # noqa: N815

    def _find_file(self) -> bytes | None:
        name, _, rest = urllib.parse.unquote(self.path.split("?")[0]).lstrip("/").partition("/resolve/")
        return self.server.repositories.get(name, {}).get(rest.partition("/")[2])

    def _repository_name(self, prefix: str) -> str:
        return "/".join(urllib.parse.unquote(self.path.split("?")[0]).removeprefix(prefix).split("/")[:2])

    def _read_body(self) -> bytes:
        self.server.requests.append(f"{self.command} {self.path}")
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _send_json(self, content: object) -> None:
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _send_not_found(self, code: str = "EntryNotFound") -> None:
        self.send_response(404)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def hub_server() -> Iterator[HubServer]:
    with HubServer() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
