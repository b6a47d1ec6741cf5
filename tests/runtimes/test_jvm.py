"""The JVM: javac once, then programs of the classes that it made.

How large its heap may get is the caller's business: the JVM looks at the host's memory,
which is not what a task has.  The service's own choice for `gaoler run` is in
config/runtimes.py.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from gaoler.config.runtimes import JAVA_LIMITS
from gaoler.sandbox.job import Task
from tests.hosting import MIB, LiveWarden
from tests.runtimes.programs import ended, need, program, run, said

SOURCES = {
    "Hello": """
public class Hello {
    public static void main(String[] words) throws Exception {
        var in = new java.io.BufferedReader(new java.io.InputStreamReader(System.in, "UTF-8"));
        System.out.println("hello " + in.readLine().length());
        System.err.println(Runtime.getRuntime().maxMemory());
        System.exit(7);
    }
}
""",
    "Threads": """
import java.util.*;
import java.util.concurrent.*;
import java.util.concurrent.atomic.*;
import java.util.stream.*;
public class Threads {
    static class Sum extends RecursiveTask<Long> {
        final long from, to;
        Sum(long from, long to) { this.from = from; this.to = to; }
        protected Long compute() {
            if (to - from < 1000) return LongStream.range(from, to).sum();
            Sum left = new Sum(from, (from + to) / 2), right = new Sum((from + to) / 2, to);
            left.fork();
            return right.compute() + left.join();
        }
    }
    public static void main(String[] words) throws Exception {
        AtomicLong total = new AtomicLong();
        List<Thread> threads = new ArrayList<>();
        for (int n = 0; n < 32; n++) {
            int own = n;
            threads.add(new Thread(() -> total.addAndGet(own)));
        }
        for (Thread each : threads) each.start();
        for (Thread each : threads) each.join();
        ExecutorService pool = Executors.newFixedThreadPool(8);
        List<Future<Integer>> squares = new ArrayList<>();
        for (int n = 0; n < 10; n++) { int own = n; squares.add(pool.submit(() -> own * own)); }
        int sum = 0;
        for (Future<Integer> each : squares) sum += each.get();
        pool.shutdown();
        long even = IntStream.range(0, 1_000_000).parallel().filter(n -> n % 2 == 0).count();
        long forked = new ForkJoinPool(4).invoke(new Sum(0, 100_000));
        System.out.println(total + " " + sum + " " + even + " " + forked);
    }
}
""",
    "World": """
import java.io.*;
import java.net.*;
import java.nio.file.*;
public class World {
    public static void main(String[] words) throws Exception {
        Path file = Files.createTempFile("own", "");
        Files.writeString(file, "kept");
        Process child = new ProcessBuilder("cat", file.toString()).start();
        String read = new String(child.getInputStream().readAllBytes());
        try (ServerSocket server = new ServerSocket(0, 1, InetAddress.getLoopbackAddress())) {
            new Thread(() -> {
                try (Socket socket = server.accept()) {
                    socket.getInputStream().transferTo(socket.getOutputStream());
                } catch (IOException error) { error.printStackTrace(); }
            }).start();
            try (Socket socket = new Socket(server.getInetAddress(), server.getLocalPort())) {
                socket.getOutputStream().write("echo".getBytes());
                socket.shutdownOutput();
                System.out.println(read + " " + child.waitFor() + " "
                    + new String(socket.getInputStream().readAllBytes()) + " " + file.getParent());
            }
        }
        throw new IllegalStateException("own");
    }
}
""",
    "Hog": """
import java.util.*;
public class Hog {
    public static void main(String[] words) {
        List<long[]> kept = new ArrayList<>();
        while (true) { long[] block = new long[1 << 17]; Arrays.fill(block, 1); kept.add(block); }
    }
}
""",
    "Crowd": """
public class Crowd {
    public static void main(String[] words) {
        while (true) {
            Thread each = new Thread(() -> {
                try { Thread.sleep(600_000); } catch (InterruptedException error) { }
            });
            each.setDaemon(true);
            each.start();
        }
    }
}
""",
    "Deep": """
public class Deep {
    static int deeper(int n) { return deeper(n + 1) + 1; }
    public static void main(String[] words) { deeper(0); }
}
""",
}

Classes = dict[str, bytes]


@pytest.fixture(scope="module")
def classes(session_warden: LiveWarden) -> Classes:
    """The class files of SOURCES, by their names."""
    need("java", "javac")
    names = re.findall(r"class (\w+)", "".join(SOURCES.values()))
    files = [f"{name}.class" for name in SOURCES] + ["Threads$Sum.class"]
    assert len(files) == len(names)
    (built,) = run(
        session_warden,
        program(
            "javac",
            *(f"{name}.java" for name in SOURCES),
            files={f"{name}.java": text.encode() for name, text in SOURCES.items()},
            collect=tuple(files),
        ),
    )
    assert said(built) == ""
    return {found.path: found.data for found in built.files}


def java(classes: Classes, name: str, *flags: str, **limits: Any) -> Task:
    return program("java", *flags, "-cp", ".", name, files=classes, **limits)


def test_a_class_runs_with_the_jvms_defaults_within_512_mib_and_says_its_exit_code(
    warden: LiveWarden, classes: Classes
) -> None:
    by_default, bounded = run(
        warden,
        java(classes, "Hello", stdin="grün\n".encode(), memory_bytes=512 * MIB),
        java(classes, "Hello", *JAVA_LIMITS, stdin="grün\n".encode(), memory_bytes=512 * MIB),
    )
    for result in (by_default, bounded):
        assert ended(result) == ("completed", None, 7, None)
        assert (result.stdout, result.stats.pids_limit_hits) == (b"hello 4\n", 0)
    assert 200 * MIB < int(bounded.stderr) <= 256 * MIB


def test_threads_pools_parallel_streams_and_fork_join(warden: LiveWarden, classes: Classes) -> None:
    (result,) = run(warden, java(classes, "Threads", "-Xmx256m"))
    assert said(result) == "496 285 500000 4999950000\n"


def test_files_processes_and_sockets_and_an_exception_that_nobody_catches(
    warden: LiveWarden, classes: Classes
) -> None:
    (result,) = run(warden, java(classes, "World", *JAVA_LIMITS))
    assert ended(result) == ("completed", None, 1, None)
    assert result.stdout == b"kept 0 echo /tmp\n"
    assert b"java.lang.IllegalStateException: own\n\tat World.main" in result.stderr


def test_javac_says_what_is_wrong_in_its_own_words(warden: LiveWarden) -> None:
    need("javac")
    files = {"Main.java": b"class Main { void f() { int x = } }\n"}
    (result,) = run(warden, program("javac", "Main.java", files=files))
    assert ended(result) == ("completed", None, 1, None)
    assert b"Main.java:1: error: illegal start of expression" in result.stderr


def test_a_heap_with_a_bound_ends_in_javas_own_error_and_one_without_in_the_kernels_kill(
    warden: LiveWarden, classes: Classes
) -> None:
    own, killed = run(
        warden,
        java(classes, "Hog", "-Xmx48m"),
        java(classes, "Hog", "-Xmx4g", memory_bytes=128 * MIB),
    )
    assert ended(own) == ("completed", None, 1, None)
    assert b"java.lang.OutOfMemoryError: Java heap space" in own.stderr
    assert own.stats.oom_kills == 0
    assert ended(killed) == ("memory_limit", None, None, None)
    assert killed.stats.oom_kills >= 1


def test_a_thread_too_many_is_javas_own_error_and_is_counted(
    warden: LiveWarden, classes: Classes
) -> None:
    (result,) = run(warden, java(classes, "Crowd", "-XX:+UseSerialGC", pids=40))
    assert (result.outcome, result.exit_code) == ("completed", 1)
    assert b"unable to create native thread" in result.stdout + result.stderr
    assert result.stats.pids_limit_hits > 0


def test_a_stack_that_overflows_is_javas_own_error(warden: LiveWarden, classes: Classes) -> None:
    (result,) = run(warden, java(classes, "Deep", *JAVA_LIMITS))
    assert ended(result) == ("completed", None, 1, None)
    assert b"java.lang.StackOverflowError\n\tat Deep.deeper" in result.stderr
