"""`gaoler serve` over a warden and a web process that are doubles, in a process of its own.

Everything of ours that needs no sandbox is real; the doubles are programs of the same
arguments and descriptors.
"""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
from pathlib import Path

from tests.hosting import LIMIT_S, free_port, process_tree

USER = "daemon"  # every Debian has it, and nothing runs as it

# Says which descriptors it has, is ready, and ends with its lifeline.
WARDEN = """
import json, os, sys
spec, alive, ready = map(int, sys.argv[1:])
with open(os.environ["FOLDER"] + "/warden.json", "w") as file:
    json.dump(sorted(os.readlink(f"/proc/self/fd/{n}") for n in os.listdir("/proc/self/fd")
                     if int(n) != file.fileno() and os.path.lexists(f"/proc/self/fd/{n}")), file)
os.write(ready, b"1")
os.close(ready)
os.read(alive, 1)
"""
# Answers each connection with its pid, over the first of the sockets that it was given.
WEB = """
import os, select, socket, sys
handed, line, public, internal = map(int, sys.argv[1:])
server = socket.socket(fileno=public)
body = str(os.getpid()).encode()
while True:
    select.select([server], [], [])
    connection, _ = server.accept()
    connection.setblocking(True)
    connection.recv(65536)
    connection.sendall(b"HTTP/1.1 200 OK\\r\\nConnection: close\\r\\n\\r\\n" + body)
    connection.close()
"""
# `gaoler serve` on a host that has every layer, with the doubles for its children.
SERVE = """
import json, os, sys
from gaoler.cli import children, drain_line, serve
from gaoler.cli.main import main
from gaoler.sandbox import layers

layers.survey = lambda: []
doubles = json.loads(sys.argv[1])
spawn = children.spawn

def spawn_double(arguments, environment, keep, prepare):
    environment = {**environment, "FOLDER": os.environ["FOLDER"]}
    return spawn(["-c", doubles[arguments[1]], *arguments[2:]], environment, keep, prepare)

children.spawn = spawn_double
exec(sys.argv[2])
sys.exit(main(["serve"]))
"""


class Served:
    """`gaoler serve` with doubles, in a process of its own."""

    def __init__(
        self, folder: Path, warden: str = WARDEN, web: str = WEB, patch: str = "", **settings: str
    ) -> None:
        self.port = free_port()
        self.folder = folder
        self.environment = {
            "PATH": os.environ["PATH"],
            "FOLDER": str(folder),
            "BIND": f"127.0.0.1:{self.port}",
            "INTERNAL_BIND": f"127.0.0.1:{free_port()}",
            "STATE_DIR": str(folder / "state"),
            "RUNTIME_DIR": str(folder / "run"),
            "SERVICE_USER": USER,
            "UID_RANGE": "1500000-1500999",
            "MAX_CONCURRENCY": "2",
            **settings,
        }
        doubles = json.dumps({"gaoler.sandbox.warden": warden, "gaoler.cli.web": web})
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVE, doubles, patch],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ready(self) -> Served:
        assert self.process.stdout is not None
        assert self.process.stdout.readline().startswith("gaoler is ready"), self.ended()
        return self

    def answer(self) -> str:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S)
        try:
            connection.request("GET", "/")
            return connection.getresponse().read().decode()
        finally:
            connection.close()

    def ended(self) -> tuple[int, list[str]]:
        """The exit code, and the lines on stderr."""
        _, said = self.process.communicate(timeout=LIMIT_S)
        return self.process.returncode, said.splitlines()

    def stop(self) -> tuple[int, list[str]]:
        self.process.terminate()
        return self.ended()

    def children(self) -> list[int]:
        parts = process_tree(self.process.pid)
        return [pid for name, pids in parts.items() if name != "serve" for pid in pids]
