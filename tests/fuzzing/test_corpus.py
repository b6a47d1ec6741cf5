"""Every input that was once worth keeping goes through its target again."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzzing import driver

MOST_FILES = 200
MOST_BYTES = 4096
KEPT = [(target, file) for target in driver.targets() for file in driver.kept(target)]


@pytest.mark.parametrize(
    ("target", "file"), KEPT, ids=[f"{target}/{file.name}" for target, file in KEPT]
)
def test_a_kept_input_passes(target: str, file: Path) -> None:
    driver.load(target).fuzz(file.read_bytes())


def test_the_corpus_is_small_and_each_folder_of_it_has_a_target() -> None:
    folders = {folder.name: list(folder.iterdir()) for folder in (driver.HERE / "corpus").iterdir()}
    assert sorted(folders) == driver.targets()
    for name, files in folders.items():
        assert 1 <= len(files) <= MOST_FILES, name
        assert [file.name for file in files if file.stat().st_size > MOST_BYTES] == []
