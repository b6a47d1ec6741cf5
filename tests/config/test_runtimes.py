"""`gaoler run FILE`: which commands build and run a file."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from gaoler.config.runtimes import RUNTIMES, UnknownLanguageError, program

HELLO = {
    "hello.py": "print('hello')",
    "hello.c": '#include <stdio.h>\nint main(void) { puts("hello"); }',
    "hello.cpp": '#include <iostream>\nint main() { std::cout << "hello\\n"; }',
    "hello.js": "console.log('hello')",
    "hello.java": "public class Greeter { public static void main(String[] a) "
    '{ System.out.println("hello"); } }',
    "hello.sh": "echo hello",
    "hello.pl": 'print "hello\\n"',
}


@pytest.mark.parametrize("file_name", HELLO)
def test_a_hello_world_of_each_language_is_built_and_run_by_its_commands(
    file_name: str, tmp_path: Path
) -> None:
    made = program(file_name, HELLO[file_name])
    assert shutil.which((made.build or made.run)[0]), "bin/test installs it"
    (tmp_path / made.file_name).write_text(HELLO[file_name])
    for command in filter(None, (made.build, made.run)):
        done = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=60)
    assert done.stdout == b"hello\n"


def test_an_interpreted_language_has_no_build() -> None:
    made = program("solve.py", "print(1)")
    assert made.build is None
    assert made.run == ("python3", "solve.py")


def test_a_compiled_language_runs_what_its_build_writes() -> None:
    made = program("solve.rs", "fn main() {}")
    assert made.language == "rust"
    assert made.build is not None
    assert "program" in made.build
    assert made.build[-1] == "solve.rs"
    assert made.run == ("./program",)


def test_folders_before_the_name_are_left_out() -> None:
    assert program("/home/me/work/solve.rb", "puts 1").file_name == "solve.rb"


@pytest.mark.parametrize("name", ["-o.c", "a b.c", "ä.c", "$(id).c", "a\nb.c", ".x.c"])
def test_a_name_that_a_tool_could_misread_becomes_main(name: str) -> None:
    assert program(name, "int main(void) { }").file_name == "main.c"


def test_a_go_file_is_always_main() -> None:
    assert program("x_test.go", "package main").file_name == "main.go"


def test_the_suffix_counts_in_either_case_and_capital_c_is_cpp() -> None:
    assert program("A.PY", "").language == "python"
    assert program("A.PY", "").file_name == "A.py"
    assert program("a.C", "").language == "cpp"
    assert program("a.c", "").language == "c"


@pytest.mark.parametrize("name", ["solve", "solve.txt", ".py", "solve.", "", "dir.py/solve"])
def test_an_unknown_suffix_is_refused_with_those_that_are_known(name: str) -> None:
    with pytest.raises(UnknownLanguageError, match=r"\.py.*\.go"):
        program(name, "")


def test_no_suffix_belongs_to_two_languages() -> None:
    suffixes = [suffix for runtime in RUNTIMES for suffix in runtime.suffixes]
    assert len(suffixes) == len(set(suffixes))


@pytest.mark.parametrize(
    ("source", "file_name", "main_class"),
    [
        ("public class A { static void main(String[] x) {} }", "A.java", "A"),
        ("class A {} class B { public static void main(String[] x) {} }", "Main.java", "B"),
        ("class A {}", "Main.java", "A"),
        ("", "Main.java", "Main"),
        ("package a.b; public final class C {}", "C.java", "a.b.C"),
        ("final public class C {}", "C.java", "C"),
        ("public abstract sealed class C permits D {} final class D extends C {}", "C.java", "C"),
        ("public record P(int x) {}", "P.java", "P"),
        ("public enum E { A; }", "E.java", "E"),
        ("public @interface I {}", "I.java", "I"),
        ("public interface I<T> { static void main(String[] x) {} }", "I.java", "I"),
        ("// public class No {}\npublic class Yes {}", "Yes.java", "Yes"),
        ("/* public class No {} */ class Yes {}", "Main.java", "Yes"),
        ('class A { String s = "} public class No {"; }', "Main.java", "A"),
        ('class A { String s = """\n } public class No { " \\""" """; }', "Main.java", "A"),
        ("class A { char c = '}'; public class Inner {} }", "Main.java", "A"),
        ("class A { class In { void main() {} } } class B { void main() {} }", "Main.java", "B"),
        ("import a.record.C; @X(C.class) class A {}", "Main.java", "A"),
        ("public class A {} class B { static void main(String[] x) {} }", "A.java", "B"),
        ("public class Größe {}", "Größe.java", "Größe"),
    ],
)
def test_a_java_file_is_named_after_its_public_class_and_starts_where_main_is(
    source: str, file_name: str, main_class: str
) -> None:
    made = program("x.java", source)
    assert made.file_name == file_name
    assert made.run[-1] == main_class


@pytest.mark.parametrize(
    "piece", ['"', '\\"', "'", "/*", '"""', "class a ", "final ", "{", "public ", "package a."]
)
@pytest.mark.timeout(60)
def test_reading_java_takes_time_in_proportion_to_its_length(piece: str) -> None:
    """Pins: a source of the size of a whole request must not hold the service up.

    Anything worse than proportion takes hours for these.
    """
    program("x.java", '"' + piece * 100_000)
    program("x.java", piece * 100_000)
