"""What this server allows, the defaults it fills in, and the order in which it refuses."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from gaoler.actors.messages import Reply
from gaoler.actors.policy.memory import request_memory_bytes
from gaoler.config.settings import Settings
from gaoler.http.admit import Admitted, FileStore, NoFiles, admit
from gaoler.http.errors import Problem
from gaoler.http.schemas import Bounds, read_execute
from gaoler.sandbox.job import InputFile, Limits, Pipe

MIB = 2**20
SHA = "0" * 64


class OneFile:
    """A file store with one file in it."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.id = hashlib.sha256(data).hexdigest()

    def takes_files(self) -> bool:
        return True

    def size_bytes(self, file_id: str) -> int | None:
        return len(self.data) if file_id == self.id else None

    def read(self, file_id: str) -> bytes | None:
        return self.data if file_id == self.id else None


def settings(**values: Any) -> Settings:
    given = {"max_concurrency": 4, "tasks_memory_bytes": 16 * 2**30, "cpus_per_slot": 1.0}
    return Settings(**{**given, **values})


def admitted(
    body: dict[str, Any], files: FileStore | None = None, values: Settings | None = None
) -> Admitted:
    used = values or settings()
    bounds = Bounds(used.max_steps_per_request, used.max_parallel_tasks, used.workspace_inodes)
    return admit(read_execute(body, bounds), "request", "key", used, files or NoFiles())


def refused(
    body: dict[str, Any], files: FileStore | None = None, values: Settings | None = None
) -> tuple[int, str, str]:
    with pytest.raises(Problem) as caught:
        admitted(body, files, values)
    return caught.value.status, caught.value.code, caught.value.detail


def task(**fields: Any) -> dict[str, Any]:
    return {"steps": [{"cmd": "true", **fields}]}


def limits(**values: int) -> dict[str, Any]:
    return task(limits=values)


def test_a_task_that_names_nothing_gets_the_servers_defaults() -> None:
    only = admitted(task()).job.steps[0].tasks[0]
    assert only.limits == Limits(
        wall_ms=10_000,
        cpu_ms=10_000,
        memory_bytes=512 * MIB,
        pids=128,
        output_bytes=MIB,
        file_bytes=128 * MIB,
        stack_bytes=64 * MIB,
    )
    assert only.env == {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/box",
        "TMPDIR": "/tmp",
        "LANG": "C.UTF-8",
    }
    assert (only.profile, only.wall_promised, only.stdin) == ("standard_v1", False, b"")


def test_what_a_task_names_is_what_it_gets() -> None:
    given = {
        "wall_ms": 1,
        "cpu_ms": 2,
        "memory_bytes": 16 * MIB,
        "pids": 1,
        "output_bytes": 0,
        "file_bytes": 0,
        "stack_bytes": 16 * MIB,
    }
    fields = {"limits": given, "profile": "native_v1", "env": {"LANG": "C", "A": ""}}
    only = admitted(task(**fields)).job.steps[0].tasks[0]
    assert only.limits == Limits(**given)
    assert (only.profile, only.wall_promised) == ("native_v1", True)
    assert (only.env["LANG"], only.env["A"], only.env["HOME"]) == ("C", "", "/box")


def test_a_build_gets_the_builds_time_and_cpu_time_follows_the_wall_time() -> None:
    build = admitted(task(role="build")).job.steps[0].tasks[0].limits
    assert (build.wall_ms, build.cpu_ms) == (20_000, 20_000)
    assert admitted(limits(wall_ms=700)).job.steps[0].tasks[0].limits.cpu_ms == 700


def test_the_stack_never_exceeds_the_tasks_memory() -> None:
    assert admitted(limits(memory_bytes=32 * MIB)).job.steps[0].tasks[0].limits.stack_bytes == (
        32 * MIB
    )


OVER = [
    ("memory_bytes", 2**50),
    ("memory_bytes", 2 * 2**30 + 1),
    ("memory_bytes", 16 * MIB - 1),
    ("memory_bytes", 0),
    ("wall_ms", 10**9),
    ("wall_ms", 29_501),  # with the grace it is past the ceiling
    ("wall_ms", 0),
    ("cpu_ms", 30_001),
    ("cpu_ms", 0),
    ("pids", 100_000_000),
    ("pids", 1_025),
    ("pids", 0),
    ("output_bytes", 2**40),
    ("output_bytes", 16 * MIB + 1),
    ("file_bytes", 128 * MIB + 1),
    ("stack_bytes", 512 * MIB + 1),
    ("stack_bytes", 0),
    ("wall_ms", 10**30),
]


@pytest.mark.parametrize(("name", "value"), OVER)
def test_a_limit_out_of_its_range_is_a_422_that_names_it(name: str, value: int) -> None:
    status, code, detail = refused(limits(**{name: value}))
    assert (status, code) == (422, "limits_exceeded")
    assert detail.startswith(f"steps[0].limits.{name}:")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("wall_ms", 29_500),
        ("cpu_ms", 30_000),
        ("memory_bytes", 2 * 2**30),
        ("pids", 1_024),
        ("output_bytes", 16 * MIB),
        ("file_bytes", 128 * MIB),
        ("stack_bytes", 512 * MIB),
    ],
)
def test_a_limit_at_its_maximum_is_taken(name: str, value: int) -> None:
    assert getattr(admitted(limits(**{name: value})).job.steps[0].tasks[0].limits, name) == value


def test_each_kind_of_request_has_its_own_ceiling() -> None:
    long = {"wall_ms": 299_500}
    grading = {**task(limits=long), "priority": "grading"}
    project = {**task(limits=long), "action": "project"}
    assert refused(task(limits=long))[1] == "limits_exceeded"
    assert admitted(grading).budget_ms == admitted(project).budget_ms == 300_000
    short = settings(runner_project_timeout_ms=5_000)
    assert refused(project, values=short)[2].endswith("allowed is 1 to 4500")


def test_a_project_has_its_own_workspace_and_queues_as_grading() -> None:
    given = admitted({**task(), "action": "project"})
    assert given.job.workspace_bytes == 512 * MIB
    assert given.job.steps[0].tasks[0].limits.file_bytes == 512 * MIB
    assert given.priority == "grading"


def test_the_budget_is_the_formulas() -> None:
    steps = [
        {"cmd": "cc", "role": "build", "files": {"a.c": ""}, "limits": {"wall_ms": 4_000}},
        [{"cmd": "a", "limits": {"wall_ms": 1_000}}, {"cmd": "b", "limits": {"wall_ms": 3_000}}],
    ]
    assert admitted({"steps": steps}).budget_ms == 4_000 + 500 + 2_000 + 3_000 + 500
    assert admitted({"steps": steps, "budget_ms": 1_234}).budget_ms == 1_234
    assert admitted({"steps": steps * 9}).budget_ms == 30_000


def test_a_step_wider_than_the_slots_is_a_422() -> None:
    wide = {"steps": [{"cmd": "a"}, [{"cmd": "a"}] * 5]}
    status, code, detail = refused(wide)
    assert (status, code) == (422, "limits_exceeded")
    assert detail == "steps[1]: 5 tasks side by side, MAX_CONCURRENCY is 4"


def test_a_grading_request_wider_than_the_grading_slots_is_a_422() -> None:
    two = {"steps": [[{"cmd": "a"}] * 2], "priority": "grading"}
    assert "GRADING_RUNNER_CONCURRENCY is 1" in refused(two)[2]
    assert admitted(two, values=settings(grading_runner_concurrency=2)).job.width == 2
    assert admitted({**two, "priority": "interactive"}).job.width == 2


def test_the_job_reserves_what_the_formula_says() -> None:
    wide = {"steps": [{"cmd": "a"}, [{"cmd": "a", "limits": {"memory_bytes": 32 * MIB}}] * 3]}
    expected = request_memory_bytes(
        [[512 * MIB], [32 * MIB] * 3], 128 * MIB, 64 * MIB, 64 * MIB, 16 * MIB
    )
    assert admitted(wide).job.memory_bytes == expected


def test_a_request_that_could_never_fit_into_memory_is_a_422() -> None:
    status, code, detail = refused(task(), values=settings(tasks_memory_bytes=600 * MIB))
    assert (status, code) == (422, "limits_exceeded")
    assert detail.startswith("steps: the request reserves")


def test_a_profile_that_is_not_allowed_is_named() -> None:
    assert refused(task(profile="anything_goes_v9"))[:2] == (422, "profile_not_allowed")
    only_standard = settings(allowed_sandbox_profiles=("standard_v1",))
    detail = refused(task(profile="native_v1"), values=only_standard)[2]
    assert detail == 'steps[0].profile: "native_v1" is not allowed here'


def test_a_well_formed_id_of_no_file_is_a_404() -> None:
    for given in (task(stdin={"file_id": SHA}), task(files={"a": {"file_id": SHA}})):
        status, code, detail = refused(given)
        assert (status, code) == (404, "file_not_found")
        assert detail.endswith(f"there is no file {SHA}")


def test_an_uploaded_file_is_put_into_the_job() -> None:
    store = OneFile(b"\x00\x01")
    given = task(stdin={"file_id": store.id}, files={"a": {"file_id": store.id, "mode": "755"}})
    only = admitted(given, store).job.steps[0].tasks[0]
    assert only.stdin == b"\x00\x01"
    assert only.files == (InputFile("a", 0o755, b"\x00\x01"),)


def test_storing_needs_a_file_store() -> None:
    given = task(collect=["a", {"path": "b", "store": True}])
    status, code, detail = refused(given)
    assert (status, code) == (400, "invalid_request")
    assert detail == "steps[0].collect[1].store: this server has no file store"
    assert admitted(given, OneFile(b"")).job.steps[0].tasks[0].collect == ("a", "b")


def test_input_files_that_cannot_fit_the_workspace_together_are_a_422() -> None:
    small = settings(workspace_bytes=8_192)
    step = {"cmd": "a", "files": {"a": "x" * 5_000}}
    assert refused({"steps": [step, {**step, "files": {"b": "x" * 5_000}}]}, values=small)[1:] == (
        "limits_exceeded",
        "steps[1].files: more than the workspace's 8192 bytes",
    )
    # The same file written twice is there once.
    admitted({"steps": [step, {**step, "files": {"./a": "x" * 8_000}}]}, values=small)


def test_limits_are_refused_before_files_are_looked_for() -> None:
    given = task(stdin={"file_id": SHA}, profile="none_such")
    assert refused(given)[1] == "profile_not_allowed"
    assert refused(task(stdin={"file_id": SHA}, limits={"pids": 0}))[1] == "limits_exceeded"


def test_pipes_and_spellings_reach_the_job() -> None:
    steps = {
        "tasks": [{"cmd": "a", "collect": ["./x", "x"]}, {"cmd": "b"}],
        "pipes": [{"from": [0, "stdout"], "to": [1, "stdin"]}],
    }
    job = admitted({"steps": [steps], "stop_on_failure": True}).job
    assert job.steps[0].pipes == (Pipe(0, 1),)
    assert job.steps[0].tasks[0].collect == ("x",)
    assert (job.stop_on_failure, job.deadline_ns, job.request_id) == (True, 0, "request")


def test_the_message_for_admission_carries_the_envelope() -> None:
    body = {
        **task(),
        "evaluation_id": "e",
        "attempt_id": "a",
        "subject": "s",
        "purpose": "try",
        "wait": False,
    }
    got: list[Reply] = []
    submit = admitted(body).submit("ticket", got.append)
    assert (submit.ticket, submit.request_id, submit.key_id) == ("ticket", "request", "key")
    assert (submit.evaluation_id, submit.attempt_id, submit.subject) == ("e", "a", "s")
    assert (submit.purpose, submit.wait, submit.priority) == ("try", False, "interactive")
