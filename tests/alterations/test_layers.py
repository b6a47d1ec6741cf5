"""Every layer is missed by some probe, and docs/security.md says by which.

The record is made by `bin/layers --write`.  Here only the probes that fell then are run again,
each without its layer; what the others still stop is the whole of bin/layers.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from gaoler.sandbox import syscalls
from tests.adversarial.probing import see
from tests.alterations import survey
from tests.alterations.layers_off import LAYERS
from tests.hosting import LiveWarden

# Of those that fell, so many are run again for each layer.
MOST_RERUN = 6


def test_every_layer_is_missed_by_a_probe() -> None:
    recorded = {each.layer: each for each in survey.recorded()}
    assert set(recorded) == set(LAYERS)
    assert [layer for layer, each in recorded.items() if not each.fell] == []


def test_the_document_says_what_was_recorded() -> None:
    text = survey.DOCUMENT.read_text(encoding="utf-8")
    shown = text.partition(survey.BEGIN)[2].partition(survey.END)[0]
    assert shown == survey.table(survey.recorded())


def test_an_unknown_layer_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert survey.main(["paint"]) == 2
    assert "Landlock" in capsys.readouterr().err


@pytest.mark.timeout(survey.LIMIT_S)
@pytest.mark.parametrize("layer", LAYERS)
def test_without_its_layer_what_fell_falls_again(session_warden: LiveWarden, layer: str) -> None:
    """The mutation check: without a layer's code the suite does not pass."""
    del session_warden  # for the reason to skip where no task can be held
    fell = [name for name in _of(layer) if os.path.exists(survey.ROOT / name.partition("::")[0])]
    assert fell
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-x"]
    done = subprocess.run(
        [*command, "-m", "not heavy", f"--without={layer}", *fell[:MOST_RERUN]],
        cwd=survey.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout


def _of(layer: str) -> tuple[str, ...]:
    return next(each.fell for each in survey.recorded() if each.layer == layer)


_ADD_KEY, _KEYCTL, _SEARCH, _SESSION = 248, 250, 10, -3


@pytest.mark.parametrize(
    ("switched_off", "found"), [("seccomp_profile", False), ("session_keyring", True)]
)
def test_a_key_of_whoever_started_the_service_is_found_only_without_a_keyring_of_its_own(
    start_warden: Callable[..., LiveWarden], switched_off: str, found: bool
) -> None:
    """Seccomp kills keyctl, so this layer is seen where that one is gone as well."""
    call = ctypes.CDLL(None, use_errno=True).syscall
    syscalls.join_new_session_keyring()
    assert call(_ADD_KEY, b"user", b"gaoler-secret", b"told", 4, _SESSION) > 0
    live = start_warden(f"layers_off:{switched_off}")
    seen = see(
        live,
        f"tell(key=syscall({_KEYCTL}, {_SEARCH}, {_SESSION}, b'user', b'gaoler-secret', 0))",
    )
    assert isinstance(seen["key"], int) == found, seen
