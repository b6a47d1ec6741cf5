"""How much memory a request reserves: docs/api.md, as a pure function.

The sum is what the queue sets aside and what the request's cgroup is limited to.  So each
part is taken at its full size: what a task may fill, it will, and one request's greed must
never become another one's shortage.
"""

from __future__ import annotations

from collections.abc import Sequence

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
