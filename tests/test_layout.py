"""The rules of the house that no single module can hold: who imports whom, and what lies where."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

# What each part of the project may import of the project, by prefix.  The longest key that
# fits a module holds for it.  A module may always import from its own part, but not from a
# part of its own that has a key, unless that is listed.
MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "config": (),
    "sandbox": (),
    "sandbox.client": ("sandbox", "config"),
    "store": ("config",),
    "actors": (
        "actors.policy",
        "sandbox.client",
        "sandbox.job",
        "sandbox.paths",
        "store",
        "config",
    ),
    "actors.policy": ("config",),
    "http": ("actors", "sandbox.job", "sandbox.paths", "store", "config"),
    "planning": ("actors.policy", "config"),
    "grading": ("http.client", "store", "config"),
    "cli": ("actors", "config", "grading", "http", "planning", "sandbox", "store"),
}
# What runs as root may import of others.
ROOTS_PACKAGES = {"pyseccomp", "cgutils"}

# Libraries and the only places that know them: a room, or one module.
ONLY_IN = {
    "falcon": ("http",),
    "ctypes": ("sandbox.syscalls",),
    "httpx": ("http.client", "http.client_exchange"),
    "anyio": ("http.client", "http.client_exchange"),
    "simpy": ("planning",),
}


def rooms() -> list[str]:
    """The folders that are packages of gaoler, by setup.cfg's word for it."""
    return sorted({name.partition(".")[0] for name in packages()})


def packages() -> list[str]:
    lines = (ROOT / "setup.cfg").read_text().partition("\npackages =")[2].splitlines()[1:]
    names = []
    for line in lines:
        if not line.startswith(" "):
            break
        names.append(line.strip().removeprefix("gaoler."))
    return names


def modules() -> dict[str, Path]:
    """Every module of the project by its name below `gaoler`."""
    found = {}
    for room in rooms():
        for source in sorted((ROOT / room).rglob("*.py")):
            parts = source.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = source
    return found


def imports(source: Path) -> Iterator[tuple[int, str]]:
    """(line, module) of every import, wherever it stands; relative ones begin with a dot.

    `from gaoler.a import b` counts as gaoler.a.b where that is a module.
    """
    for node in ast.walk(ast.parse(source.read_text(), str(source))):
        if isinstance(node, ast.Import):
            for name in node.names:
                yield node.lineno, name.name
        elif isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            for name in node.names:
                whole = f"{module}.{name.name}"
                yield node.lineno, whole if whole.removeprefix("gaoler.") in modules() else module


def is_within(module: str, part: str) -> bool:
    return module == part or module.startswith(part + ".")


def part_of(module: str) -> str:
    """The longest key of MAY_IMPORT that the module lies in."""
    return max((part for part in MAY_IMPORT if is_within(module, part)), key=len)


def of_the_project() -> Iterator[tuple[str, str, str]]:
    """(module, imported module, place) of every import from the project itself."""
    for module, source in modules().items():
        for line, imported in imports(source):
            if is_within(imported, "gaoler"):
                yield module, imported.removeprefix("gaoler").lstrip("."), f"{source}:{line}"


def test_every_room_of_setup_cfg_has_a_rule_and_every_package_is_in_setup_cfg() -> None:
    assert set(rooms()) <= set(MAY_IMPORT)
    folders = {module.rpartition(".")[0] or module for module in modules()} - {""}
    assert folders <= set(packages())


def test_imports_run_one_way() -> None:
    wrong = []
    for module, imported, place in of_the_project():
        part = part_of(module)
        allowed = any(is_within(imported, other) for other in MAY_IMPORT[part])
        if not allowed and part_of(imported) != part:
            wrong.append(f"{place}: {part} imports {imported}")
    assert wrong == []


def test_libraries_are_known_only_where_they_belong() -> None:
    wrong = [
        f"{source}:{line}: {imported}"
        for module, source in modules().items()
        for line, imported in imports(source)
        for library, homes in ONLY_IN.items()
        if is_within(imported, library) and not any(is_within(module, home) for home in homes)
    ]
    assert wrong == []


def test_only_the_bridge_knows_both_asyncio_and_actors() -> None:
    both = {
        module
        for module, source in modules().items()
        for names in [[name for _, name in imports(source)]]
        if any(is_within(name, "asyncio") for name in names)
        and (
            any(is_within(name, "pykka") or is_within(name, "gaoler.actors") for name in names)
            or is_within(module, "actors")
        )
    }
    # cli.web is the worker's composition root: it starts and stops both.
    assert both <= {"http.bridge", "cli.web"}


def test_code_that_runs_as_root_imports_almost_nothing() -> None:
    wrong = [
        f"{source}:{line}: {imported}"
        for module, source in modules().items()
        if is_within(module, "sandbox") and module != "sandbox.client"
        for line, imported in imports(source)
        if not is_within(imported, "gaoler.sandbox")
        and imported.partition(".")[0] not in sys.stdlib_module_names | ROOTS_PACKAGES
    ]
    assert wrong == []


def test_no_import_is_relative_and_none_takes_a_room_for_a_top_level_module() -> None:
    """`import config` works in the checkout and makes a second copy of gaoler.config."""
    top_level = set(rooms()) - sys.stdlib_module_names
    wrong = [
        f"{source}:{line}: {imported}"
        for source in [*modules().values(), *sorted((ROOT / "tests").rglob("*.py"))]
        for line, imported in imports(source)
        if imported.startswith(".") or imported.partition(".")[0] in top_level
    ]
    assert wrong == []


@pytest.mark.parametrize("room", ["http", "tests"])
def test_a_room_that_would_hide_another_package_has_no_init(room: str) -> None:
    """Pins: with http/__init__.py every `import http.client` in the checkout broke."""
    assert list((ROOT / room).rglob("__init__.py")) == []


def test_no_module_is_named_after_one_of_the_standard_library() -> None:
    """A program started from its own folder would find ours first."""
    hiding = [
        str(source)
        for name, source in modules().items()
        if "." in name and name.rpartition(".")[2] in sys.stdlib_module_names
    ]
    assert hiding == []


def test_nothing_starts_at_import() -> None:
    """Threads, descriptors, children and log handlers are the same before and after."""
    names = [f"gaoler.{name}" for name in modules() if name not in ("http", "cli.__main__")]
    code = """
import importlib, logging, os, pathlib, signal, sys

def state():
    mine = pathlib.Path("/proc/self/task", str(os.getpid()), "children")
    return {
        "threads": len(os.listdir("/proc/self/task")),
        "children": mine.read_text(),
        "descriptors": [fd for fd in range(256) if os.path.lexists(f"/proc/self/fd/{fd}")],
        "signals": [signal.getsignal(number) for number in sorted(signal.valid_signals())],
        "log handlers": list(logging.root.handlers),
        "environment": dict(os.environ),
    }

before = state()
for name in sys.argv[1:]:
    importlib.import_module(name)
    after = state()
    changed = [key for key in before if before[key] != after[key]]
    assert not changed, f"importing {name} changes {changed}"
"""
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-c", code, *names],
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], "RUNNER_TIMEOUT_MS": "nonsense, read only when asked"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_a_client_loads_nothing_of_the_server() -> None:
    """Nor does a command line that cannot be carried out load what speaks to a service."""
    code = """
import sys
import gaoler.cli.run
assert not {"httpx", "anyio", "asyncio"} & set(sys.modules)
import gaoler.http.client
loaded = {"falcon", "gunicorn", "pykka", "gaoler.sandbox", "gaoler.config.settings"}
assert not loaded & set(sys.modules), loaded & set(sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_the_standard_librarys_http_is_found_from_within_the_checkout() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import http.client, gaoler.http; print(http.client.__file__)"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert not Path(done.stdout.strip()).is_relative_to(ROOT / "http")


def test_every_script_can_be_run() -> None:
    """Those that begin with an underscore are sourced by the others."""
    scripts = [path for path in (ROOT / "bin").iterdir() if not path.name.startswith("_")]
    scripts.append(ROOT / ".ci/run")
    assert len(scripts) > 3
    assert [str(path) for path in scripts if not os.access(path, os.X_OK)] == []
    for script in scripts:
        assert script.read_bytes().startswith(b"#!/"), script


def test_no_file_names_where_packages_come_from() -> None:
    """Installs use whatever registry the machine's own client is set up with."""
    named = ("--index" + "-url", "--find" + "-links", "--trusted" + "-host", "pypi." + "org")
    sources = [*(ROOT / "bin").iterdir(), ROOT / ".ci/run", ROOT / "constraints.txt"]
    wrong = [
        f"{source}: {name}" for source in sources for name in named if name in source.read_text()
    ]
    assert wrong == []
