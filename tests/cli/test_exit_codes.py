"""What the commands that ask a service exit with where it did not do as asked."""

from __future__ import annotations

import pytest

from gaoler.cli.exit_codes import of_error
from gaoler.http.client_errors import (
    AnswerGarbled,
    NotConnected,
    RequestRefused,
    RunnerBusy,
    RunnerError,
    RunnerFailed,
    RunnerUnavailable,
)


@pytest.mark.parametrize(
    ("kind", "code"),
    [
        (RunnerBusy, 3),
        (RunnerUnavailable, 4),
        (NotConnected, 4),
        (RequestRefused, 1),
        (RunnerFailed, 1),
        (AnswerGarbled, 1),
    ],
)
def test_busy_is_3_unavailable_4_and_the_rest_1(kind: type[RunnerError], code: int) -> None:
    assert of_error(kind("why")) == code
