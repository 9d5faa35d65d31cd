"""Git's own servers on loopback: `git http-backend` behind a small bridge, `git daemon`."""

from __future__ import annotations

import base64
import os
import re
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.engines import free_ports
from tests.http_server import HTTPServer, QuietHandler

START = 20.0  # seconds


def git(folder: Path, *words: str, text: str = "") -> str:
    """Run Git without the settings of this machine; ``text`` is its input."""
    names = {
        f"GIT_{role}_{part}": "t@x"
        for role in ("AUTHOR", "COMMITTER")
        for part in ("NAME", "EMAIL")
    }
    said = subprocess.run(
        ["git", "-c", "init.defaultBranch=main", "-C", str(folder), *words],
        env={"PATH": os.environ["PATH"], "HOME": str(folder), **names},
        input=text, capture_output=True, text=True, check=True,
    )  # fmt: skip
    return said.stdout.strip()


@dataclass
class GitServer:
    """A bare repository at ``{folder}/repo.git``, and how its server fails."""

    folder: Path
    url: str = ""
    password: str = ""
    torn: float = 1.0
    wait: float = 0.0
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.bare, self.work = self.folder / "repo.git", self.folder / "work"
        self.work.mkdir()
        git(self.folder, "init", "-q", "--bare", str(self.bare))
        git(self.work, "init", "-q")

    def commit(self, files: Mapping[str, bytes | Path], branch: str = "main") -> str:
        """Let a branch hold these files alone, by a forced push; a path is a link."""
        git(self.work, "checkout", "-q", "--orphan", f"new-{time.monotonic_ns()}")
        git(self.work, "rm", "-rqf", "--ignore-unmatch", ".")
        for name, content in files.items():
            place = self.work / name
            place.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, Path):
                place.symlink_to(content)
            else:
                place.write_bytes(content)
        git(self.work, "add", "-A")
        git(self.work, "commit", "-qm", "m")
        git(self.work, "push", "-qf", str(self.bare), f"HEAD:refs/heads/{branch}")
        return git(self.work, "rev-parse", "HEAD")


class _Bridge(QuietHandler):
    """Passes requests to `git http-backend` as CGI has it."""

    served: GitServer

    def answer(self) -> None:
        served = self.served
        served.asked.append(self.path)
        sent = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        time.sleep(served.wait)
        login = base64.b64encode(f"u:{served.password}".encode()).decode()
        if served.password and self.headers.get("Authorization") != f"Basic {login}":
            served.headers["WWW-Authenticate"] = "Basic"
            self.refuse(401)
            return
        if served.status:
            self.refuse(served.status)
            return
        path, _, query = self.path.partition("?")
        environ = {
            "PATH": os.environ["PATH"],
            "GIT_PROJECT_ROOT": str(served.folder),
            "GIT_HTTP_EXPORT_ALL": "1",
            "REQUEST_METHOD": self.command,
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "CONTENT_LENGTH": str(len(sent)),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
        }
        ran = subprocess.run(
            ["git", "http-backend"], input=sent, env=environ,
            capture_output=True, check=True,
        ).stdout  # fmt: skip
        head, _, body = ran.partition(b"\r\n\r\n")
        code = re.search(rb"^Status: (\d+)", head)
        self.send_response(int(code[1]) if code else 200)
        for line in head.decode().splitlines():
            name, _, value = line.partition(": ")
            if name != "Status":
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with suppress(OSError):
            is_pack = "git-upload-pack" in path and b"packfile" in body[:200]
            torn = served.torn if is_pack else 1.0
            self.wfile.write(body[: int(len(body) * torn)])

    do_GET = do_POST = answer  # noqa: N815 - names of the library

    def refuse(self, code: int) -> None:
        self.send_response(code)
        for name, value in self.served.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", "0")
        self.end_headers()


@contextmanager
def serving_http(folder: Path) -> Iterator[GitServer]:
    """Serve an empty repository by `git http-backend`."""
    served = GitServer(folder)
    handler = type("Bridge", (_Bridge,), {"served": served})
    with HTTPServer(handler) as server:
        served.url = f"{server.url}/repo.git"
        yield served


@contextmanager
def serving_daemon(folder: Path) -> Iterator[GitServer]:
    """Serve an empty repository by `git daemon`."""
    served, (port,) = GitServer(folder), free_ports(1)
    served.url = f"git://127.0.0.1:{port}/repo.git"
    words = [
        "--export-all",
        "--listen=127.0.0.1",
        f"--port={port}",
        f"--base-path={folder}",
    ]
    command = [f"{git(folder, '--exec-path')}/git-daemon", "--reuseaddr", *words]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            deadline = time.monotonic() + START
            while True:
                with suppress(OSError):
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                assert time.monotonic() < deadline
                time.sleep(0.01)
            yield served
        finally:
            process.terminate()
