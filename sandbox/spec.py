"""What `gaoler serve` hands the warden: everything that root's code is configured by.

It travels once, as JSON on a descriptor, and is frozen from then on.  Nothing that the
worker sends can change it.
"""

from __future__ import annotations

import dataclasses
import json
import os
from dataclasses import dataclass
from typing import Any

from gaoler.sandbox.job import Limits

# Processes of a jail beside its tasks' own: the jailer, and for each task a supervisor, an
# init and a collector, for those of the next step as well.
OVERHEAD_PIDS = 64


@dataclass(frozen=True, slots=True)
class WardenSpec:
    """Paths are the host's.  Sizes are bytes, times milliseconds."""

    instance: str  # "gaoler-" and eight hex digits: prefix of every group that we make
    runtime_dir: str  # /run/gaoler/<instance>, root's; holds the socket and the root's mount point
    service_uid: int  # the only one that may talk to the warden
    service_gid: int
    uid_first: int
    uid_last: int
    readonly_paths: tuple[str, ...]
    profiles: tuple[str, ...]
    tmp_bytes: int
    shm_bytes: int
    workspace_inodes: int
    cpus_per_slot: float
    limits_max: Limits
    workspace_bytes_max: int
    memory_bytes_max: int  # of one request
    output_bytes_max: int  # REQUEST_OUTPUT_LIMIT_BYTES
    job_bytes_max: int
    ceiling_ms_max: int
    ttl_slack_ms: int
    jails_max: int
    steps_max: int
    width_max: int

    @property
    def socket_path(self) -> str:
        return os.path.join(self.runtime_dir, "warden.sock")

    @property
    def root_dir(self) -> str:
        """Where the warden mounts what every jail's root is made from, in its own namespace."""
        return os.path.join(self.runtime_dir, "root")

    def dump(self) -> bytes:
        return json.dumps(dataclasses.asdict(self)).encode()

    @classmethod
    def load(cls, data: bytes) -> WardenSpec:
        raw: dict[str, Any] = json.loads(data)
        raw["limits_max"] = Limits(**raw["limits_max"])
        raw["readonly_paths"] = tuple(raw["readonly_paths"])
        raw["profiles"] = tuple(raw["profiles"])
        return cls(**raw)
