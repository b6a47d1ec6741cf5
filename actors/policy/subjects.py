"""What each subject may still send: its runs and its tries in a minute."""

from __future__ import annotations

from gaoler.actors.policy.rates import Rates, whole_seconds


class Subjects:
    """A subject is the API key's id and the client's name for it; the two rates are apart."""

    def __init__(self, runs_per_minute: int, tries_per_minute: int) -> None:
        self._runs = Rates(runs_per_minute)
        self._tries = Rates(tries_per_minute)

    def take(self, purpose: str, scope: str, subject: str | None, now_ns: int) -> int | None:
        """None: the request may go on, and its token is spent.  Else seconds to the next."""
        if subject is None:
            return None
        wait_ns = self._of(purpose).take((scope, subject), now_ns)
        return None if wait_ns is None else whole_seconds(wait_ns)

    def hand_back(self, purpose: str, scope: str, subject: str | None) -> None:
        """The caps refused the request: a run is not spent; every try is."""
        if subject is not None and purpose == "run":
            self._runs.hand_back((scope, subject))

    def _of(self, purpose: str) -> Rates:
        return self._tries if purpose == "try" else self._runs
