"""A program that meets a limit: the outcome, the reason or the stat that names it.

Where the kernel leaves no trace, and only the program's own words tell, it says so here.
"""

from __future__ import annotations

from typing import Any

import pytest

from gaoler.sandbox.job import Task
from tests.emulation import stretched
from tests.hosting import MIB, LiveWarden, shell
from tests.runtimes.programs import (
    PATIENCE_MS,
    built,
    compile_c,
    compile_cpp,
    ended,
    need,
    program,
    run,
    script,
)


def inline(command: str, source: str, **limits: Any) -> Task:
    flag = "-c" if command == "python3" else "-e"
    return program(command, flag, source, **limits)


# --- memory -------------------------------------------------------------------------------

C_HOG = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int main(int count, char **words) {
    (void)words;
    for (int i = 0; i < 2048; i++) {
        char *block = malloc(1 << 20);
        if (!block) { puts("refused"); return 3; }
        if (count == 1) memset(block, 1, 1 << 20);
    }
    puts("all of it");
}
"""
CPP_HOG = r"""
#include <iostream>
#include <new>
#include <vector>
int main(int count, char **) {
    std::vector<std::vector<char>> kept;
    try {
        if (count > 1) new char[1UL << (60 - count)];
        for (;;) kept.emplace_back(1 << 20, 1);
    } catch (const std::bad_alloc &error) {
        std::cout << error.what() << std::endl;
        return 3;
    }
}
"""


def test_memory_of_c_counts_when_it_is_touched_not_when_it_is_promised(
    warden: LiveWarden,
) -> None:
    need("gcc")
    touched, promised = built(
        warden,
        compile_c(C_HOG),
        program("./program", memory_bytes=64 * MIB),
        program("./program", "untouched", memory_bytes=64 * MIB),
    )
    assert ended(touched) == ("memory_limit", None, None, None)
    assert touched.stats.oom_kills >= 1
    assert (ended(promised), promised.stdout) == (("completed", None, 0, None), b"all of it\n")


def test_new_of_cpp_throws_for_what_nobody_could_give_and_is_killed_for_its_limit(
    warden: LiveWarden,
) -> None:
    need("g++")
    killed, thrown = built(
        warden,
        compile_cpp(CPP_HOG),
        program("./program", memory_bytes=64 * MIB),
        program("./program", "huge", memory_bytes=64 * MIB),
    )
    assert ended(killed) == ("memory_limit", None, None, None)
    assert (ended(thrown), thrown.stdout) == (("completed", None, 3, None), b"std::bad_alloc\n")


def test_a_compiler_that_outgrows_its_memory_is_named_and_not_its_driver_blamed(
    warden: LiveWarden,
) -> None:
    need("g++")
    (result,) = run(warden, compile_cpp("#include <regex>\n", memory_bytes=16 * MIB))
    assert ended(result) == ("memory_limit", None, None, None)
    assert result.stats.oom_kills >= 1


@pytest.mark.parametrize(
    ("command", "source"),
    [
        ("python3", "kept = []\nwhile True: kept.append(bytearray(1 << 20))"),
        ("node", "const kept = []; for (;;) kept.push(Buffer.alloc(1 << 20, 1))"),
        ("node", "const kept = []; for (;;) kept.push(new Array(1000).fill(Math.random()))"),
        ("perl", "push @kept, 'x' x 1048576 while 1"),
        ("ruby", "kept = []; loop { kept << 'x' * 1048576 }"),
    ],
    ids=["python", "node_buffers", "node_objects", "perl", "ruby"],
)
def test_an_interpreter_that_fills_its_memory_is_killed_and_that_is_named(
    warden: LiveWarden, command: str, source: str
) -> None:
    need(command)
    (result,) = run(warden, inline(command, source, memory_bytes=96 * MIB))
    assert ended(result) == ("memory_limit", None, None, None)
    assert result.stats.oom_kills >= 1


def test_pythons_memory_error_is_for_what_nobody_could_give(warden: LiveWarden) -> None:
    (result,) = run(warden, inline("python3", "bytearray(1 << 50)", memory_bytes=64 * MIB))
    assert ended(result) == ("completed", None, 1, None)
    assert result.stderr.endswith(b"\nMemoryError\n")


def test_a_killed_child_of_pythons_pool_is_the_tasks_end(warden: LiveWarden) -> None:
    """The pool would wait for ever for what the killed one was to say."""
    source = """
import multiprocessing
def fill(size):
    return len(bytearray(size))
if __name__ == '__main__':
    with multiprocessing.Pool(2) as pool:
        print(pool.map(fill, [1, 512 << 20]))
"""
    (result,) = run(warden, script(source, memory_bytes=96 * MIB))
    assert ended(result) == ("memory_limit", None, None, None)


def test_nodes_own_bound_of_its_heap_is_its_own_abort_and_not_the_tasks_limit(
    warden: LiveWarden,
) -> None:
    need("node")
    source = "const kept = []; for (;;) kept.push(new Array(1000).fill(Math.random()))"
    (result,) = run(warden, program("node", "--max-old-space-size=32", "-e", source))
    assert ended(result) == ("signaled", None, None, 6)
    assert b"JavaScript heap out of memory" in result.stderr
    assert result.stats.oom_kills == 0


def test_files_in_the_workspace_and_in_tmp_count_as_the_tasks_memory(warden: LiveWarden) -> None:
    results = run(
        warden,
        *(
            program("sh", "-c", f"head -c 60000000 /dev/zero > {where}/big", memory_bytes=32 * MIB)
            for where in ("/box", "/tmp", "/dev/shm")
        ),
    )
    assert [result.outcome for result in results] == ["memory_limit"] * 3


# --- processes and threads ----------------------------------------------------------------

C_CROWD = r"""
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
static void *stay(void *given) { pause(); return given; }
int main(int count, char **words) {
    (void)words;
    for (;;) {
        pthread_t thread;
        int failed = 0;
        if (count > 1) failed = pthread_create(&thread, NULL, stay, NULL);
        else {
            pid_t child = fork();
            if (child == 0) stay(NULL);
            if (child < 0) failed = errno;
        }
        if (failed) { puts(strerror(failed)); return 3; }
    }
}
"""


def test_fork_and_pthread_create_of_c_say_eagain_and_it_is_counted(warden: LiveWarden) -> None:
    need("gcc")
    results = built(
        warden,
        compile_c(C_CROWD),
        program("./program", pids=16),
        program("./program", "threads", pids=16),
        program("./program", "threads", pids=16, profile="native_v1"),
    )
    for result in results:
        assert ended(result) == ("completed", None, 3, None)
        assert result.stdout == b"Resource temporarily unavailable\n"
        assert result.stats.pids_limit_hits > 0


def test_a_thread_too_many_of_cpp_is_an_exception_and_is_counted(warden: LiveWarden) -> None:
    need("g++")
    source = r"""
#include <thread>
#include <unistd.h>
#include <vector>
int main() { std::vector<std::thread> kept; for (;;) kept.emplace_back([] { pause(); }); }
"""
    (result,) = built(warden, compile_cpp(source), program("./program", pids=16))
    assert ended(result) == ("signaled", None, None, 6)
    assert b"Resource temporarily unavailable" in result.stderr
    assert result.stats.pids_limit_hits > 0


@pytest.mark.parametrize(
    ("source", "words"),
    [
        (
            "import threading\nwhile True:\n"
            "  threading.Thread(target=threading.Event().wait, daemon=True).start()",
            b"RuntimeError: can't start new thread",
        ),
        (
            "import multiprocessing, signal\nif __name__ == '__main__':\n  while True:\n"
            "    multiprocessing.Process(target=signal.pause, daemon=True).start()",
            b"BlockingIOError: [Errno 11]",
        ),
        (
            "import multiprocessing\nif __name__ == '__main__':\n  multiprocessing.Pool(40)",
            b"BlockingIOError: [Errno 11]",
        ),
    ],
    ids=["threads", "processes", "pool"],
)
def test_threads_and_processes_too_many_of_python_are_its_errors_and_are_counted(
    warden: LiveWarden, source: str, words: bytes
) -> None:
    (result,) = run(warden, script(source, pids=16))
    assert ended(result) == ("completed", None, 1, None)
    assert words in result.stderr
    assert result.stats.pids_limit_hits > 0


NODE_WORKERS = """
const { Worker } = require('worker_threads');
for (let n = 0; n < 40; n++) new Worker('setInterval(() => {}, 1000)', { eval: true });
"""
NODE_CHILDREN = """
const { spawn } = require('child_process');
for (let n = 0; n < 40; n++) spawn('sleep', ['60']);
"""


@pytest.mark.parametrize("source", [NODE_WORKERS, NODE_CHILDREN], ids=["workers", "children"])
def test_workers_and_children_too_many_of_node_are_its_errors_and_are_counted(
    warden: LiveWarden, source: str
) -> None:
    need("node")
    (result,) = run(warden, program("node", "-e", source, pids=16))
    assert ended(result) == ("completed", None, 1, None)
    assert b"EAGAIN" in result.stderr
    assert result.stats.pids_limit_hits > 0


@pytest.mark.parametrize(("command", "pids"), [("node", 3), ("gcc", 1), ("bash", 2)])
def test_one_that_hangs_for_want_of_a_process_has_it_in_its_count(
    warden: LiveWarden, command: str, pids: int
) -> None:
    """gcc and bash try for 15 s and more; node may wait for a thread that never began."""
    need(command)
    arguments = {
        "node": ("-e", "0"),
        "gcc": ("-c", "main.c"),
        "bash": ("-c", "for n in 1 2 3; do sleep 60 & done; wait"),
    }[command]
    wanted = program(
        *(command, *arguments),
        files={"main.c": b"int main(void) {}\n"},
        pids=pids,
        wall_ms=int(stretched(1000)),
    )
    (result,) = run(warden, wanted)
    if command != "node":
        assert ended(result) == ("timed_out", "wall", None, None)
    assert not result.succeeded
    assert result.stats.pids_limit_hits > 0


# --- files --------------------------------------------------------------------------------

C_WRITER = r"""
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
static char block[1 << 16];
int main(int count, char **words) {
    FILE *file = fopen(words[1], "w");
    if (count > 2) signal(SIGXFSZ, SIG_IGN);
    while (fwrite(block, 1, sizeof block, file) == sizeof block) {}
    puts(strerror(errno));
    return 3;
}
"""


def test_a_file_past_its_limit_is_named_for_who_does_not_catch_the_signal(
    warden: LiveWarden,
) -> None:
    need("gcc")
    killed, told = built(
        warden,
        compile_c(C_WRITER),
        program("./program", "big", file_bytes=MIB),
        program("./program", "big", "ignore", file_bytes=MIB),
    )
    assert ended(killed) == ("signaled", "file_size", None, 25)
    assert (ended(told), told.stdout) == (("completed", None, 3, None), b"File too large\n")


@pytest.mark.parametrize(
    ("command", "source"),
    [
        ("perl", "open F, '>', 'big'; print F 'x' x 65536 while 1"),
        ("ruby", "File.open('big', 'w') { |f| loop { f.write('x' * 65536) } }"),
    ],
)
def test_perl_and_ruby_leave_the_signal_alone_and_so_it_is_named(
    warden: LiveWarden, command: str, source: str
) -> None:
    need(command)
    (result,) = run(warden, inline(command, source, file_bytes=MIB))
    assert ended(result) == ("signaled", "file_size", None, 25)


@pytest.mark.parametrize(
    ("command", "source", "words"),
    [
        (
            "python3",
            "f = open('big', 'wb', 0)\nwhile f.write(b'x' * 65536): pass",
            b"OSError: [Errno 27] File too large",
        ),
        ("node", "require('fs').writeFileSync('big', Buffer.alloc(3 << 20))", b"code: 'EFBIG'"),
    ],
)
def test_python_and_node_ignore_the_signal_so_only_their_own_words_tell(
    warden: LiveWarden, command: str, source: str, words: bytes
) -> None:
    need(command)
    (result,) = run(warden, inline(command, source, file_bytes=MIB))
    assert ended(result) == ("completed", None, 1, None)
    assert words in result.stderr


def test_a_compilers_part_that_writes_too_much_is_told_by_the_compiler_alone(
    warden: LiveWarden,
) -> None:
    need("gcc")
    source = "char block[4 << 20] = {1}; int main(void) { return block[1]; }\n"
    (result,) = run(warden, compile_c(source, file_bytes=MIB))
    assert (result.outcome, result.reason, result.signal) == ("completed", None, None)
    assert result.exit_code != 0
    assert b"File size limit exceeded" in result.stderr


def test_a_full_workspace_and_a_full_tmp_are_the_programs_own_errors(warden: LiveWarden) -> None:
    results = run(
        warden,
        *(
            shell(f"head -c {size} /dev/zero > {where}/big", memory_bytes=512 * MIB)
            for where, size in (("/box", 20_000_000), ("/tmp", 100_000_000))
        ),
        workspace_bytes=16 * MIB,
    )
    for result in results:
        assert ended(result) == ("completed", None, 1, None)
        assert b"No space left on device" in result.stderr


@pytest.mark.parametrize(
    ("command", "source", "words"),
    [
        ("python3", "kept = []\nwhile True: kept.append(open('/dev/null'))", b"Too many open"),
        ("node", "for (;;) require('fs').openSync('/dev/null')", b"EMFILE"),
        ("perl", "while (1) { open my $f, '<', '/dev/null' or die $!; push @k, $f }", b"Too many"),
        ("ruby", "kept = []; loop { kept << File.open('/dev/null') }", b"Too many open files"),
    ],
    ids=["python", "node", "perl", "ruby"],
)
def test_open_files_too_many_are_the_programs_own_error(
    warden: LiveWarden, command: str, source: str, words: bytes
) -> None:
    need(command)
    (result,) = run(warden, inline(command, source))
    assert result.outcome == "completed"
    assert result.exit_code not in (0, None)
    assert words in result.stderr


# --- stacks -------------------------------------------------------------------------------

C_DEEP = r"""
#include <stdio.h>
#include <stdlib.h>
static int deeper(int left) {
    volatile char frame[4096];
    frame[0] = (char)left;
    return left == 0 ? 0 : deeper(left - 1) + frame[0];
}
int main(int count, char **words) { deeper(count > 1 ? atoi(words[1]) : -1); puts("deep"); }
"""


def test_a_stack_grows_to_its_limit_and_past_it_is_a_segmentation_fault(
    warden: LiveWarden,
) -> None:
    """Nothing tells it from another bad address."""
    need("gcc")
    fits, over, endless, none = built(
        warden,
        compile_c(C_DEEP),
        program("./program", "7000", stack_bytes=32 * MIB),
        program("./program", "7000", stack_bytes=16 * MIB),
        program("./program", stack_bytes=MIB, profile="native_v1"),
        program("./program", stack_bytes=1),
    )
    assert (ended(fits), fits.stdout) == (("completed", None, 0, None), b"deep\n")
    for result in (over, endless, none):
        assert ended(result) == ("signaled", None, None, 11)


def test_a_stack_larger_than_the_memory_is_the_memorys_limit(warden: LiveWarden) -> None:
    need("gcc")
    (result,) = built(
        warden, compile_c(C_DEEP), program("./program", stack_bytes=64 * MIB, memory_bytes=32 * MIB)
    )
    assert ended(result) == ("memory_limit", None, None, None)


def test_threads_get_stacks_of_the_limits_size_and_many_of_them_fit(warden: LiveWarden) -> None:
    """They are address space until they are used; it is the case of a judge, where the
    stack may be as large as all of the memory."""
    need("gcc")
    source = r"""
#include <pthread.h>
#include <stdio.h>
static pthread_barrier_t all;
static void *stay(void *given) { pthread_barrier_wait(&all); return given; }
int main(void) {
    pthread_t threads[100];
    pthread_attr_t usual;
    size_t size;
    pthread_barrier_init(&all, NULL, 101);
    for (int i = 0; i < 100; i++)
        if (pthread_create(&threads[i], NULL, stay, NULL)) return 3;
    pthread_barrier_wait(&all);
    pthread_getattr_default_np(&usual);
    pthread_attr_getstacksize(&usual, &size);
    printf("%zu\n", size >> 20);
}
"""
    build = compile_c("#define _GNU_SOURCE\n" + source)
    (result,) = built(
        warden, build, program("./program", stack_bytes=512 * MIB, memory_bytes=512 * MIB)
    )
    assert (ended(result), result.stdout) == (("completed", None, 0, None), b"512\n")


@pytest.mark.parametrize(
    ("command", "source", "words"),
    [
        ("python3", "def f(): f()\nf()", b"RecursionError"),
        ("node", "function f() { f() }; f()", b"RangeError: Maximum call stack"),
        ("ruby", "def f; f; end; f", b"SystemStackError"),
    ],
)
def test_an_interpreter_counts_its_own_depth_and_says_so(
    warden: LiveWarden, command: str, source: str, words: bytes
) -> None:
    need(command)
    (result,) = run(warden, inline(command, source))
    assert ended(result) == ("completed", None, 1, None)
    assert words in result.stderr


def test_python_that_lifts_its_own_bound_meets_the_memorys_or_the_stacks(
    warden: LiveWarden,
) -> None:
    lift = "import sys, faulthandler; sys.setrecursionlimit(10 ** 9); faulthandler.enable()\n"
    through_c = "class A:\n  def __getattr__(self, name): return getattr(self, name)\nA().x"
    memory, stack = run(
        warden,
        inline("python3", lift + "def f(): f()\nf()", memory_bytes=64 * MIB),
        inline("python3", lift + through_c, stack_bytes=2 * MIB),
    )
    assert ended(memory) == ("memory_limit", None, None, None)
    assert ended(stack) == ("signaled", None, None, 11)
    assert b"Fatal Python error: Segmentation fault" in stack.stderr


# --- output and time ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "source"),
    [
        ("python3", "while True: print('out')"),
        ("python3", "import sys\nwhile True: print('err', file=sys.stderr)"),
        ("node", "for (;;) console.log('out')"),
        ("perl", "print 'out' while 1"),
        ("ruby", "loop { puts 'out' }"),
    ],
    ids=["python", "python_stderr", "node", "perl", "ruby"],
)
def test_endless_output_of_an_interpreter_is_named_and_its_beginning_kept(
    warden: LiveWarden, command: str, source: str
) -> None:
    need(command)
    (result,) = run(warden, inline(command, source, output_bytes=4096))
    assert ended(result) == ("output_limit", None, None, None)
    assert [len(result.stdout), len(result.stderr)] in ([4096, 0], [0, 4096])
    assert result.stdout_truncated or result.stderr_truncated


@pytest.mark.parametrize(
    ("command", "source"),
    [
        ("python3", "while True: pass"),
        ("python3", "import os; os.fork(); os.fork()\nwhile True: pass"),
        (
            "python3",
            "import signal\nfor n in (2, 15, 24): signal.signal(n, signal.SIG_IGN)\n"
            "while True: pass",
        ),
        ("node", "for (;;);"),
        ("perl", "1 while 1"),
    ],
    ids=["python", "python_forked", "python_ignoring", "node", "perl"],
)
def test_an_endless_loop_of_an_interpreter_is_the_processors_limit(
    warden: LiveWarden, command: str, source: str
) -> None:
    need(command)
    (result,) = run(warden, inline(command, source, cpu_ms=int(stretched(300))))
    assert ended(result) == ("timed_out", "cpu", None, None)
    assert result.timed_out


@pytest.mark.parametrize(
    ("command", "source"),
    [
        ("python3", "import threading; threading.Event().wait()"),
        ("python3", "input(); import asyncio; asyncio.run(asyncio.sleep(600))"),
        ("node", "setInterval(() => {}, 1000)"),
        ("perl", "sleep"),
    ],
    ids=["python", "python_asyncio", "node", "perl"],
)
def test_an_interpreter_that_waits_for_ever_is_the_wall_limit(
    warden: LiveWarden, command: str, source: str
) -> None:
    need(command)
    wanted = inline(command, source, stdin=b"line\n", wall_ms=int(stretched(600)))
    (result,) = run(warden, wanted)
    assert ended(result) == ("timed_out", "wall", None, None)
    assert result.stats.cpu_user_ms + result.stats.cpu_system_ms < PATIENCE_MS
