"""How much memory a request reserves: docs/api.md, as a pure function.

The sum is what the queue sets aside and what the request's cgroup is limited to.  So each
part is taken at its full size: what a task may fill, it will, and one request's greed must
never become another one's shortage.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

MEBIBYTE = 1024 * 1024

# Our own processes, once a request: the jailer (a small Python heap forked from the warden,
# every page of it counted as if it had been touched), the page tables, and the kernel's
# own objects for the cgroups, mounts and sockets, which are charged to the request.
REQUEST_OVERHEAD_BYTES = 48 * MEBIBYTE

# Our own processes, once for each task that runs side by side: its supervisor and its init,
# again forks of the warden's heap, and the pipes' buffers; and the buffers of its sockets, which
# cgroup v1 counts apart from the task's memory.
TASK_OVERHEAD_BYTES = 16 * MEBIBYTE + 16 * MEBIBYTE

# Output is buffered twice at worst: as it was drained from the pipes, and as the frame that
# carries it to the worker.
OUTPUT_COPIES = 2


def request_memory_bytes(
    steps: Sequence[Sequence[int]],
    workspace_bytes: int,
    tmp_bytes: int,
    shm_bytes: int,
    output_bytes: int,
) -> int:
    """The memory that a request reserves, in bytes.

    `steps`: for each step its tasks' memory limits, never empty.  `tmp_bytes` and `shm_bytes`
    are of one task; `output_bytes` is REQUEST_OUTPUT_LIMIT_BYTES, of the whole request.  The
    step with the most memory and the one with the most tasks need not be the same.
    """
    tasks_bytes = max(sum(limits) for limits in steps)
    width = max(len(limits) for limits in steps)
    per_task_bytes = tmp_bytes + shm_bytes + TASK_OVERHEAD_BYTES
    overhead_bytes = REQUEST_OVERHEAD_BYTES + OUTPUT_COPIES * output_bytes
    return tasks_bytes + workspace_bytes + width * per_task_bytes + overhead_bytes


class MemorySettings(Protocol):
    """Those settings that a request's memory follows from."""

    @property
    def tasks_memory_bytes(self) -> int: ...
    @property
    def max_concurrency(self) -> int: ...
    @property
    def grading_runner_concurrency(self) -> int: ...
    @property
    def memory_limit_bytes(self) -> int: ...
    @property
    def workspace_bytes(self) -> int: ...
    @property
    def tmp_bytes(self) -> int: ...
    @property
    def shm_bytes(self) -> int: ...
    @property
    def request_output_limit_bytes(self) -> int: ...


def usual_request_bytes(settings: MemorySettings) -> int:
    """What a request of one task reserves that names no limits."""
    return request_memory_bytes(
        [[settings.memory_limit_bytes]],
        settings.workspace_bytes,
        settings.tmp_bytes,
        settings.shm_bytes,
        settings.request_output_limit_bytes,
    )


def grading_memory_bytes(settings: MemorySettings) -> int:
    """How much of the memory grading requests may hold together.

    As with the slots, a flood of them must leave interactive ones something: where there are
    more slots than grading's ceiling, the memory of one usual request.  All of it on a host
    that has not even two of these.
    """
    every, usual = settings.tasks_memory_bytes, usual_request_bytes(settings)
    if settings.grading_runner_concurrency >= settings.max_concurrency or every < 2 * usual:
        return every
    return every - usual
