"""Tests on an emulated host: everything is slower there, and some tests say nothing there.

bin/test-cgroup2 boots another kernel with cgroup v2 alone and sets GAOLER_TEST_STRETCH, by
how much longer everything may take.  What holds is tested there, never how fast.
"""

from __future__ import annotations

import os

STRETCH = float(os.environ.get("GAOLER_TEST_STRETCH", "1"))


def stretched(amount: float) -> float:
    """An upper bound of a time, in whatever unit, that also holds where all is slower."""
    return amount * STRETCH


# Why tests are not run there.
_JVM = "the JVM's start takes half a minute there"
_COMPILER = "a compiler of that size takes minutes there"
_NO_KERNEL = "says nothing of the kernel, and takes minutes there"
_EMULATOR = "the emulator ends at an instruction that a processor refuses"
_PROCESSES = "starts a dozen interpreters, a minute there"
# Files, or file::function, below tests/.
LEFT_OUT = {
    "live/test_soak.py::"
    "test_a_soak_of_hostile_and_normal_requests_with_random_kills_leaves_nothing": (
        "a soak, which takes minutes there"
    ),
    "adversarial/test_system_calls.py::"
    "test_a_call_from_a_32_bit_segment_ends_the_process": _EMULATOR,
    "live/test_capacity.py": _NO_KERNEL,
    "live/test_client.py": _NO_KERNEL,
    "live/test_drain.py": _NO_KERNEL,
    "live/test_stub.py": _NO_KERNEL,
    "adversarial/test_memory.py::test_names_that_do_not_exist_fill_no_memory": (
        "sixty thousand look-ups take minutes there"
    ),
    "runtimes/test_jvm.py": _JVM,
    "runtimes/test_numpy.py": "importing it takes ten seconds there",
    "runtimes/test_rust.py": _COMPILER,
    "runtimes/test_go.py": _COMPILER,
    "runtimes/test_c.py::test_threads_tasks_exceptions_and_streams_of_cpp_work_together": _COMPILER,
    "runtimes/test_native.py::"
    "test_a_cpp_program_with_threads_and_streams_runs_under_native_v1": _COMPILER,
    "runtimes/test_native.py::"
    "test_a_rust_program_with_threads_and_files_runs_under_native_v1": _COMPILER,
    "runtimes/test_native.py::test_a_go_program_with_goroutines_runs_under_native_v1": _COMPILER,
    "runtimes/test_limits.py::"
    "test_new_of_cpp_throws_for_what_nobody_could_give_and_is_killed_for_its_limit": _COMPILER,
    "runtimes/test_limits.py::"
    "test_a_thread_too_many_of_cpp_is_an_exception_and_is_counted": _COMPILER,
    "runtimes/test_limits.py::test_a_killed_child_of_pythons_pool_is_the_tasks_end": _PROCESSES,
    "runtimes/test_limits.py::"
    "test_threads_and_processes_too_many_of_python_are_its_errors_and_are_counted": _PROCESSES,
    "runtimes/test_limits.py::"
    "test_workers_and_children_too_many_of_node_are_its_errors_and_are_counted": _PROCESSES,
    "runtimes/test_cpython.py::test_multiprocessing_with_pools_queues_and_locks": _PROCESSES,
    "runtimes/test_cpython.py::"
    "test_multiprocessing_with_shared_memory_and_a_server_of_shared_objects": _PROCESSES,
    "runtimes/test_cpython.py::test_executors_of_threads_and_processes": _PROCESSES,
}


def left_out(file: str, function: str) -> str | None:
    """Why a test, or all of its file, is not run there; None where it is."""
    return LEFT_OUT.get(file, LEFT_OUT.get(f"{file}::{function}"))
