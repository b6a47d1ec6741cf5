"""From settings to what the warden and the sandbox's client are configured by."""

from __future__ import annotations

import hashlib
import os

from gaoler.actors.policy.memory import request_memory_bytes
from gaoler.config.kinds import refusal
from gaoler.config.settings import Settings
from gaoler.sandbox.client import SandboxClient
from gaoler.sandbox.job import Limits
from gaoler.sandbox.spec import OVERHEAD_PIDS, WardenSpec

MIB = 1 << 20
# Beside the inputs themselves: the job's header and the sections of its tasks.
_JOB_OVERHEAD_BYTES = 8 * MIB


def instance_of(settings: Settings) -> str:
    """The name that everything of this service on this host begins with.

    One for each STATE_DIR, so that two services side by side never sweep each other.
    """
    where = os.path.realpath(settings.state_dir).encode()
    return "gaoler-" + hashlib.sha256(where).hexdigest()[:8]


def runtime_dir_of(settings: Settings, instance: str) -> str:
    return os.path.join(settings.runtime_dir, instance)


def check_memory(settings: Settings) -> None:
    """SettingsError where not even one task that names no limit could ever run."""
    least_bytes = request_memory_bytes(
        steps=[[settings.memory_limit_bytes]],
        workspace_bytes=settings.workspace_bytes,
        tmp_bytes=settings.tmp_bytes,
        shm_bytes=settings.shm_bytes,
        output_bytes=settings.request_output_limit_bytes,
    )
    if settings.tasks_memory_bytes < least_bytes:
        allowed = (
            f"at least {least_bytes}, what one task with MEMORY_LIMIT_BYTES "
            f"({settings.memory_limit_bytes}) reserves with its /box, /tmp, /dev/shm and output"
        )
        raise refusal("TASKS_MEMORY_BYTES", settings.tasks_memory_bytes, allowed)


def make_spec(settings: Settings, instance: str, uid: int, gid: int) -> WardenSpec:
    """The warden's spec; `uid` and `gid` are the service user's."""
    ceiling_ms = max(
        settings.runner_timeout_ms,
        settings.overall_timeout_ms,
        settings.runner_project_timeout_ms,
    )
    workspace_bytes = max(settings.workspace_bytes, settings.project_workspace_bytes)
    return WardenSpec(
        instance=instance,
        runtime_dir=runtime_dir_of(settings, instance),
        service_uid=uid,
        service_gid=gid,
        uid_first=settings.uid_range[0],
        uid_last=settings.uid_range[1],
        readonly_paths=tuple(str(path) for path in settings.sandbox_readonly_paths),
        profiles=settings.allowed_sandbox_profiles,
        tmp_bytes=settings.tmp_bytes,
        shm_bytes=settings.shm_bytes,
        workspace_inodes=settings.workspace_inodes,
        cpus_per_slot=settings.cpus_per_slot,
        limits_max=Limits(
            wall_ms=ceiling_ms,
            cpu_ms=ceiling_ms,
            memory_bytes=settings.memory_limit_max_bytes,
            pids=settings.pids_limit_max,
            output_bytes=settings.request_output_limit_bytes,
            file_bytes=workspace_bytes,
            stack_bytes=settings.memory_limit_max_bytes,
        ),
        workspace_bytes_max=workspace_bytes,
        memory_bytes_max=settings.tasks_memory_bytes,
        output_bytes_max=settings.request_output_limit_bytes,
        job_bytes_max=_job_bytes(settings),
        ceiling_ms_max=ceiling_ms,
        ttl_slack_ms=settings.runner_ttl_slack_ms,
        # Each slot's own, one in teardown, and room for quarantine.
        jails_max=4 * settings.max_concurrency + 16,
        steps_max=settings.max_steps_per_request,
        width_max=settings.max_parallel_tasks,
    )


def _job_bytes(settings: Settings) -> int:
    """The largest job: a whole body, and files from the store up to a full workspace."""
    workspace_bytes = max(settings.workspace_bytes, settings.project_workspace_bytes)
    return settings.execute_body_limit_bytes + workspace_bytes + _JOB_OVERHEAD_BYTES


def make_client(settings: Settings, instance: str) -> SandboxClient:
    """The worker's end of the warden's socket; not opened yet."""
    return SandboxClient(
        socket_path=os.path.join(runtime_dir_of(settings, instance), "warden.sock"),
        longest_frame=settings.request_output_limit_bytes + _job_bytes(settings) + MIB,
        pids_overhead=OVERHEAD_PIDS,
        ttl_slack_ms=settings.runner_ttl_slack_ms,
        quarantine_max=settings.max_concurrency + 1,
    )
