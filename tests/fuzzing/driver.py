"""What bin/fuzz runs: one target, under atheris or on given inputs alone.

driver.py TARGET again FILE…     run these inputs, without atheris; 1 where one fails
driver.py TARGET fuzz OPTION…    libFuzzer's options and folders
driver.py --list                 the targets' names
"""

from __future__ import annotations

import importlib
import shlex
import sys
import traceback
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
_PREFIX = "fuzz_"


def targets() -> list[str]:
    return sorted(path.stem.removeprefix(_PREFIX) for path in HERE.glob(f"{_PREFIX}*.py"))


def load(target: str) -> Any:
    """The target's module: `fuzz(data)`, LONGEST_BYTES of an input, and WORDS to build from."""
    return importlib.import_module(f"tests.fuzzing.{_PREFIX}{target}")


def kept(target: str) -> list[Path]:
    """The inputs that are kept for a target, in the same order each time."""
    return sorted((HERE / "corpus" / target).iterdir())


def run_again(target: str, files: list[Path]) -> int:
    """The exit code; says which inputs fail."""
    module = load(target)
    failed = 0
    for file in files:
        try:
            module.fuzz(file.read_bytes())
        except Exception:  # noqa: BLE001 - whatever it is, it is what is looked for
            traceback.print_exc()
            print(f"{target} fails on {file}", file=sys.stderr)
            failed += 1
    print(f"{target}: {len(files)} inputs, {failed} failed")
    return 1 if failed else 0


def fuzz(target: str, options: list[str]) -> None:
    """Does not return: libFuzzer ends the process."""
    atheris: Any = importlib.import_module("atheris")  # not there outside of bin/fuzz
    # Only what is imported in here is watched, so the target comes in here as well.
    with atheris.instrument_imports(include=["gaoler"]):
        module = load(target)
    folder = HERE / "found" / target
    folder.mkdir(parents=True, exist_ok=True)
    words = folder / "words"
    words.write_text("".join(f'"{_escaped(word)}"\n' for word in module.WORDS))
    given = [f"-dict={words}", f"-max_len={module.LONGEST_BYTES}", *options]
    atheris.Setup([str(_command(folder, target)), *given], module.fuzz)
    atheris.Fuzz()


def _command(folder: Path, target: str) -> Path:
    """An executable that is this run without its options: to merge, libFuzzer starts it again."""
    command = folder / "again"
    line = shlex.join([sys.executable, "-m", "tests.fuzzing.driver", target, "fuzz"])
    command.write_text(f'#!/bin/sh\nexec {line} "$@"\n')
    command.chmod(0o755)
    return command


def _escaped(word: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word)


def main(arguments: list[str]) -> int:
    if arguments == ["--list"]:
        print("\n".join(targets()))
        return 0
    target, how, *rest = arguments
    if how == "again":
        return run_again(target, [Path(name) for name in rest])
    fuzz(target, rest)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
