"""What the jailer tells a supervisor to run, and how a supervisor's own failure is told."""

from __future__ import annotations

import json
from dataclasses import dataclass

from gaoler.sandbox import wire
from gaoler.sandbox.job import Limits


class Broken(Exception):
    """Something of ours failed; the request must not get a result for this task."""

    def __init__(self, stage: str, errno: int = 0) -> None:
        super().__init__(stage)
        self.stage = stage
        self.errno = errno


@dataclass(frozen=True, slots=True)
class Order:
    """What the jailer wants run: everything that root's code needs to know of a task."""

    step: int
    task: int
    section: wire.Range
    stdin: wire.Range
    collect: wire.Range
    profile: str
    limits: Limits
    wall_ms: int
    share_bytes: int  # of the request's output that this task may fill
    stdin_piped: bool
    stdout_piped: bool

    def dump(self) -> bytes:
        raw = {name: getattr(self, name) for name in Order.__slots__}
        for name in ("section", "stdin", "collect"):
            raw[name] = [raw[name].offset, raw[name].length]
        raw["limits"] = [getattr(self.limits, name) for name in Limits.__slots__]
        return json.dumps(raw).encode()

    @classmethod
    def load(cls, data: bytes) -> Order:
        raw = json.loads(data)
        for name in ("section", "stdin", "collect"):
            raw[name] = wire.Range(*raw[name])
        raw["limits"] = Limits(*raw["limits"])
        return cls(**raw)
