"""Models on the hub: a real HTTP server speaks for it, the real client asks it, in a process of its own."""

import json
import os
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import ClassVar

import pytest

SHA = "a" * 40
PROGRAM = """
import sys
from subzero.errors import SubzeroError
from subzero.sources import resolve
try:
    print(resolve(sys.argv[1], sys.argv[2]))
except SubzeroError as error:
    print("refused:", error)
"""


class Hub(BaseHTTPRequestHandler):
    """ORG/tiny has a model, in folder `files`; others have what is wrong in their names."""

    files = None
    asked: ClassVar[list] = []

    def _answer(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def _files(self, name, hash_name, size=None, **more):
        return [
            {name: path.name, "size": size or path.stat().st_size, hash_name: "b" * 40, **more}
            for path in sorted(self.files.iterdir())
        ]

    def _info(self, name, size=None):
        body = {"id": name, "sha": SHA, "siblings": self._files("rfilename", "blobId", size)}
        self._answer(200, json.dumps(body).encode())

    def do_GET(self):
        path = self.path.partition("?")[0]
        self.asked.append(path)
        if path.startswith("/api/models/org/"):
            name, _, revision = path.removeprefix("/api/models/").partition("/revision/")
            if "/tree/" in name:
                return self._answer(200, json.dumps(self._files("path", "oid", type="file")).encode())
            return self._model(name, revision)
        file = self.files / path.rpartition("/")[2]
        if "/resolve/" in path and file.is_file():
            body = file.read_bytes()
            return self._answer(200, body, ETag=f'"{file.name}-{len(body)}"', X_Repo_Commit=SHA)
        return self._answer(404, X_Error_Code="EntryNotFound")

    do_HEAD = do_GET  # noqa: N815

    def _model(self, name, revision):
        kind = name.removeprefix("org/")
        if kind == "missing":
            self._answer(404, X_Error_Code="RepoNotFound")
        elif kind == "gated":
            self._answer(403, X_Error_Code="GatedRepo")
        elif revision not in ("", "main", SHA):
            self._answer(404, X_Error_Code="RevisionNotFound")
        elif kind == "old":
            self._info("org/new")
        else:
            self._info(name, size=10**15 if kind == "huge" else None)

    def log_message(self, *arguments):
        """Quiet."""


@pytest.fixture(scope="module")
def hub(tiny_folders):
    Hub.files = tiny_folders("llama")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def resolved(endpoint, cache, name, revision="main"):
    environment = os.environ | {"HF_ENDPOINT": endpoint, "HF_HOME": str(cache), "HF_HUB_DISABLE_XET": "1"}
    command = [sys.executable, "-c", PROGRAM, f"hub:org/{name}", revision]
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip().splitlines()


NOWHERE = "http://127.0.0.1:9"  # nobody listens


def test_a_model_fetched_by_its_commit_is_then_known_by_name(hub, tmp_path):
    (folder,) = resolved(hub, tmp_path, "tiny", SHA)
    assert resolved(hub, tmp_path, "tiny") == [folder]
    assert resolved(NOWHERE, tmp_path, "tiny")[-1] == folder


def test_a_model_is_fetched_once_and_then_needs_no_network(hub, tmp_path, tiny_folders):
    (folder,) = resolved(hub, tmp_path, "tiny")
    assert folder.endswith(f"/snapshots/{SHA}")
    weights = "model.safetensors"
    assert (Path(folder) / weights).read_bytes() == (tiny_folders("llama") / weights).read_bytes()
    Hub.asked.clear()
    assert resolved(hub, tmp_path, "tiny") == [folder]
    assert not [path for path in Hub.asked if "/resolve/" in path]
    assert resolved(NOWHERE, tmp_path, "tiny", SHA) == [folder]
    said = resolved(NOWHERE, tmp_path, "tiny")
    assert said == [f"hub:org/tiny: the hub is out of reach; the copy in the cache is taken, {SHA}", folder]


@pytest.mark.parametrize(
    ("name", "revision", "said"),
    [
        ("missing", "main", "no such model, or a private one"),
        ("gated", "main", "gated; ask for access at"),
        ("old", "main", "it is now called org/new; write hub:org/new"),
        ("tiny", "step99", "revision step99: none such; allowed: a branch, tag or commit"),
        ("huge", "main", "GB are free there"),
    ],
)
def test_what_cannot_be_had_is_one_line(hub, tmp_path, name, revision, said):
    (line,) = resolved(hub, tmp_path, name, revision)
    assert line.startswith(f"refused: model source hub:org/{name}, revision {revision}:")
    assert said in line


def test_no_network_is_one_line(tmp_path):
    (line,) = resolved(NOWHERE, tmp_path, "tiny")
    assert line.startswith("refused: model source hub:org/tiny, revision main: not in the cache, and the hub is out of")
    assert "path:DIR" in line
