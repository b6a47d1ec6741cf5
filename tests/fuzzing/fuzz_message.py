"""Fuzzed: what a worker says to the warden, the one thing of a worker's that root parses first.

Input: one datagram.  The descriptors that come with it are those that a run needs.
"""

from __future__ import annotations

import os
import socket
from typing import Any

from gaoler.sandbox import wire
from gaoler.sandbox.jails import Wanted
from gaoler.sandbox.spec import OVERHEAD_PIDS
from gaoler.sandbox.warden import Refused, Warden
from tests.fuzzing.fuzz_job import sealed, spec

LONGEST_BYTES = 1_000
WORDS = (
    *(b'"%s":' % name.encode() for name in ("op", "id", "memory_bytes", "pids", "hard_ns", "n")),
    *(b'"run"', b'"ping"', b'"pong"', b"null", b"true", b"-1", b"1.0", b"1e400", b"NaN"),
    *(rb'"\ud800"', b"9223372036854775808", b"[]", b"{}"),
)


class Jails:
    """Takes every jail that is asked for, and makes none."""

    def __init__(self) -> None:
        self.wanted: list[Wanted] = []

    def counts(self) -> dict[str, int]:
        return {"jails": 0, "uids_free": 1, "quarantined": 0}

    def run(self, wanted: Wanted, owner: object, request: socket.socket, job: int) -> None:
        del owner, job
        request.close()
        self.wanted.append(wanted)


class Connection:
    """A worker of ours; keeps what the warden says."""

    def __init__(self) -> None:
        self.uid = os.geteuid()  # who made the request's socket
        self.said: list[bytes] = []

    def say(self, **message: object) -> None:
        self.said.append(wire._dump(message))


def fuzz(data: bytes) -> None:
    check(data)


def check(data: bytes) -> bool:
    """A datagram is refused or obeyed, and never more than the maxima; True for obeyed."""
    warden: Any = Warden.__new__(Warden)
    jails, connection = Jails(), Connection()
    warden.spec, warden.stopping, warden.jails = spec(), False, jails
    why = ""
    ours, theirs = socket.socketpair()
    with ours, sealed(b"") as job:
        came = [theirs.detach(), job]
        try:
            warden._obey(connection, data, came)
        except Refused as refusal:
            why = str(refusal)
        finally:
            for descriptor in came:  # the request's socket is not among them if it was taken
                if descriptor != job:
                    os.close(descriptor)
    if why:
        assert why.isprintable()
        assert (jails.wanted, connection.said) == ([], [])
        return False
    assert len(jails.wanted) + len(connection.said) == 1
    for wanted in jails.wanted:
        check_wanted(wanted)
    return True


def check_wanted(wanted: Wanted) -> None:
    numbers = (wanted.memory_bytes, wanted.pids, wanted.hard_ns)
    assert all(type(number) is int and number > 0 for number in numbers)
    assert wanted.memory_bytes <= spec().memory_bytes_max
    assert wanted.pids <= spec().limits_max.pids * spec().width_max + OVERHEAD_PIDS
    assert type(wanted.request_id) is str
    assert len(wanted.request_id) <= 200
