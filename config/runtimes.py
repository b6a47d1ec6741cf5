"""How a source file of each language is built and run inside a sandbox.

Pure functions: a file's name and text in, arguments out.  Commands are names that the
task's PATH finds inside the sandbox; paths are relative to the workspace.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gaoler.config import java

PROGRAM = "program"  # what compilers write

# The JVM sizes its heap by the host's memory, which a task does not have, and its parallel
# collectors start more threads than a task may.
JAVA_LIMITS = ("-Xmx256m", "-XX:+UseSerialGC")


class UnknownLanguageError(Exception):
    """No runtime has the file's suffix.  The text names those that are known."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """One language.  `{file}` and `{main_class}` in a command stand for the source's own."""

    language: str
    suffixes: tuple[str, ...]
    build: tuple[str, ...] | None
    run: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Program:
    """One source file, ready to be laid out: its name in the workspace and its commands."""

    language: str
    file_name: str
    build: tuple[str, ...] | None
    run: tuple[str, ...]


def _native(language: str, suffixes: tuple[str, ...], *build: str) -> Runtime:
    return Runtime(language, suffixes, build, (f"./{PROGRAM}",))


RUNTIMES = (
    Runtime("python", (".py",), None, ("python3", "{file}")),
    _native("c", (".c",), "gcc", "-O2", "-std=gnu17", "-pthread", "-o", PROGRAM, "{file}", "-lm"),
    _native(
        "cpp",
        (".cpp", ".cc", ".cxx", ".c++", ".C"),
        *("g++", "-O2", "-std=gnu++17", "-pthread", "-o", PROGRAM, "{file}"),
    ),
    Runtime("javascript", (".js", ".mjs", ".cjs"), None, ("node", "{file}")),
    Runtime(
        "java",
        (".java",),
        ("javac", *(f"-J{limit}" for limit in JAVA_LIMITS), "-d", ".", "{file}"),
        ("java", *JAVA_LIMITS, "-cp", ".", "{main_class}"),
    ),
    Runtime("shell", (".sh",), None, ("bash", "{file}")),
    Runtime("perl", (".pl",), None, ("perl", "{file}")),
    Runtime("ruby", (".rb",), None, ("ruby", "{file}")),
    # rustc would take the crate's name from the file's, which need not be an identifier.
    _native("rust", (".rs",), "rustc", "--crate-name", "main", "-O", "-o", PROGRAM, "{file}"),
    _native("go", (".go",), "go", "build", "-o", PROGRAM, "{file}"),
)
BY_SUFFIX = {suffix: runtime for runtime in RUNTIMES for suffix in runtime.suffixes}


def program(file_name: str, source: str) -> Program:
    """How to build and run one file.  `file_name` may have folders before it.

    Raises UnknownLanguageError where its suffix tells no language.
    """
    runtime, suffix = _runtime_of(file_name)
    stored = _stored_name(runtime, file_name, suffix, source)
    words = {"{file}": stored}
    if runtime.language == "java":
        words["{main_class}"] = java.main_class(source)
    build = None if runtime.build is None else _filled(runtime.build, words)
    return Program(runtime.language, stored, build, _filled(runtime.run, words))


def _runtime_of(file_name: str) -> tuple[Runtime, str]:
    base = file_name.rpartition("/")[2]
    stem, dot, ending = base.rpartition(".")
    for suffix in (dot + ending, (dot + ending).lower()):  # `.C` is C++, `.PY` is Python
        if stem and suffix in BY_SUFFIX:
            return BY_SUFFIX[suffix], suffix
    raise UnknownLanguageError(f"{base!a}: its name should end in one of {' '.join(BY_SUFFIX)}")


def _stored_name(runtime: Runtime, file_name: str, suffix: str, source: str) -> str:
    """The user's own name where every tool takes it, so that messages are as at home."""
    if runtime.language == "java":
        return java.file_name(source)
    stem = file_name.rpartition("/")[2].rpartition(".")[0]
    # Go reads a meaning into names such as x_test.go and x_windows.go.
    sane = runtime.language != "go" and re.fullmatch(r"\w[\w.-]{0,99}", stem, re.ASCII)
    return (stem if sane else "main") + suffix


def _filled(command: tuple[str, ...], words: dict[str, str]) -> tuple[str, ...]:
    return tuple(words.get(word, word) for word in command)
