"""The server of the socket tests: gunicorn's asgi worker over fake actors.

    served.py SETTINGS_JSON PUBLIC_FD PUBLIC_PORT INTERNAL_FD INTERNAL_PORT

Log lines go to stdout.  A task whose cmd is "wait" is answered only when it is cancelled.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import TYPE_CHECKING, Any

from gunicorn.app.base import BaseApplication  # type: ignore[import-untyped]

from gaoler.actors.messages import Reply, Submit
from gaoler.config.settings import Settings
from gaoler.http.app import Front
from gaoler.http.routes import Services

if TYPE_CHECKING:
    from gaoler.tests.http.conftest import FakeActors, completed, fake_services
else:
    from conftest import FakeActors, completed, fake_services


def answer(submit: Submit) -> Reply | None:
    if submit.job.steps[0].tasks[0].cmd == "wait":
        print(json.dumps({"event": "submitted", "request_id": submit.request_id}))
        return None
    return completed(submit)


ACTORS = FakeActors(
    answer=answer,
    picture={
        "queue": {"free": 2, "counters": {}},
        "caps": {},
        "requests": {"in_flight": {}, "replies": {}},
    },
)


async def start() -> Services:
    print(json.dumps({"event": "serving"}))
    return fake_services(ACTORS)


async def stop() -> None:
    print(json.dumps({"event": "stopped"}))


class Lines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return json.dumps({"event": record.getMessage(), **getattr(record, "fields", {})})


def begin_stop() -> None:
    print(json.dumps({"event": "stopping"}))
    for submit in ACTORS.submitted:
        ACTORS.cancel(submit.ticket, "shutting_down")


class Application(BaseApplication):  # type: ignore[misc]
    def __init__(self, front: Front, descriptors: list[str]) -> None:
        self._front = front
        self._descriptors = descriptors
        super().__init__()

    def load_config(self) -> None:
        values: dict[str, Any] = {
            "bind": [f"fd://{descriptor}" for descriptor in self._descriptors],
            "worker_class": "gaoler.http.worker.Worker",
            "workers": 1,
            "timeout": 60,
            "keepalive": 5,
            "graceful_timeout": 5,
            "control_socket_disable": True,
            "loglevel": "error",
        }
        for name, value in values.items():
            self.cfg.set(name, value)

    def load(self) -> Front:
        return self._front


def main() -> None:
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(Lines())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    given, public_fd, public_port, internal_fd, internal_port = sys.argv[1:]
    settings = Settings(
        bind=("127.0.0.1", int(public_port)),
        internal_bind=("127.0.0.1", int(internal_port)),
        max_concurrency=8,
        **json.loads(given),
    )
    Application(Front(settings, start, stop, begin_stop), [public_fd, internal_fd]).run()


if __name__ == "__main__":
    main()
