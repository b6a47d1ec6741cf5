"""How many requests of an evaluation may be under way, and of an attempt."""

from __future__ import annotations

from collections import Counter

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from gaoler.actors.policy.caps import ATTEMPT_IN_FLIGHT, EVALUATION_CAP, Caps


def reserve(
    caps: Caps,
    ticket: str,
    evaluation: str | None = "quiz",
    attempt: str | None = None,
    scope: str = "key",
    interactive: bool = True,
) -> str | None:
    return caps.reserve(ticket, scope, evaluation, attempt, interactive)


def test_an_evaluation_has_as_many_places_as_the_cap_and_a_release_makes_one_free() -> None:
    caps = Caps(2)
    assert [reserve(caps, ticket) for ticket in "abc"] == [None, None, EVALUATION_CAP]
    caps.release("a")
    assert reserve(caps, "c") is None


def test_what_was_refused_holds_nothing() -> None:
    caps = Caps(1)
    reserve(caps, "a")
    assert reserve(caps, "b", attempt="try") == EVALUATION_CAP
    caps.release("b")
    assert reserve(caps, "c", evaluation=None, attempt="try") is None


def test_an_attempt_is_under_way_once_in_whatever_class() -> None:
    caps = Caps(4)
    assert reserve(caps, "a", attempt="1") is None
    assert reserve(caps, "b", attempt="1", interactive=False) == ATTEMPT_IN_FLIGHT
    caps.release("a")
    assert reserve(caps, "b", attempt="1", interactive=False) is None


def test_the_attempt_is_looked_at_before_the_evaluation() -> None:
    caps = Caps(1)
    reserve(caps, "a", attempt="1")
    assert reserve(caps, "b", attempt="1") == ATTEMPT_IN_FLIGHT


def test_grading_requests_are_not_counted_and_not_refused() -> None:
    caps = Caps(1)
    assert reserve(caps, "a", interactive=False) is None
    assert reserve(caps, "b") is None
    assert reserve(caps, "c", interactive=False) is None


def test_the_same_names_under_another_key_are_others() -> None:
    caps = Caps(1)
    reserve(caps, "a", attempt="1", scope="one")
    assert reserve(caps, "b", attempt="1", scope="two") is None


def test_who_names_nothing_is_not_counted() -> None:
    caps = Caps(1)
    assert all(reserve(caps, ticket, evaluation=None) is None for ticket in "abc")


def test_releasing_twice_or_a_stranger_is_harmless() -> None:
    caps = Caps(1)
    reserve(caps, "a")
    reserve(caps, "b")
    for _ in range(2):
        caps.release("a")
        caps.release("stranger")
    assert reserve(caps, "c") is None
    assert reserve(caps, "d") == EVALUATION_CAP


def test_a_ticket_in_use_is_a_mistake_of_ours() -> None:
    caps = Caps(2)
    reserve(caps, "a")
    with pytest.raises(ValueError, match="in use"):
        reserve(caps, "a")


def test_the_snapshot_names_what_is_in_use() -> None:
    caps = Caps(3)
    reserve(caps, "a", attempt="1")
    reserve(caps, "b")
    assert caps.snapshot(9) == {
        "per_evaluation": 3,
        "evaluations": [{"evaluation_id": "quiz", "key_id": "key", "requests": 2}],
        "evaluations_total": 1,
        "attempts": 1,
    }
    caps.release("a")
    caps.release("b")
    assert caps.snapshot(9) == {
        "per_evaluation": 3,
        "evaluations": [],
        "evaluations_total": 0,
        "attempts": 0,
    }


def test_a_snapshot_shows_so_many_evaluations_and_counts_all() -> None:
    caps = Caps(3)
    for number in range(5):
        reserve(caps, f"t{number}", evaluation=f"e{number}")
    shown = caps.snapshot(2)
    assert [row["evaluation_id"] for row in shown["evaluations"]] == ["e0", "e1"]  # type: ignore[attr-defined]
    assert shown["evaluations_total"] == 5


NAMES = st.sampled_from([None, "a", "b"])


class CapsMachine(RuleBasedStateMachine):
    """Caps are exact whatever comes: against a count of what is under way."""

    caps_class = Caps
    most = 2

    def __init__(self) -> None:
        super().__init__()
        self.caps = self.caps_class(self.most)
        self.under_way: dict[str, tuple[str, str | None, str | None, bool]] = {}
        self.number = 0

    @rule(scope=st.sampled_from(["x", "y"]), evaluation=NAMES, attempt=NAMES, fast=st.booleans())
    def come(self, scope: str, evaluation: str | None, attempt: str | None, fast: bool) -> None:
        self.number += 1
        ticket = f"t{self.number}"
        said = self.caps.reserve(ticket, scope, evaluation, attempt, fast)
        assert said == self.expected(scope, evaluation, attempt, fast)
        if said is None:
            self.under_way[ticket] = (scope, evaluation, attempt, fast)

    def expected(
        self, scope: str, evaluation: str | None, attempt: str | None, fast: bool
    ) -> str | None:
        held = self.under_way.values()
        if attempt is not None and any((s, a) == (scope, attempt) for s, _, a, _ in held):
            return ATTEMPT_IN_FLIGHT
        counts = Counter((s, e) for s, e, _, interactive in held if interactive)
        if fast and evaluation is not None and counts[scope, evaluation] >= self.most:
            return EVALUATION_CAP
        return None

    @precondition(lambda self: self.under_way)
    @rule(data=st.data(), again=st.booleans())
    def leave(self, data: st.DataObject, again: bool) -> None:
        ticket = data.draw(st.sampled_from(list(self.under_way)))
        del self.under_way[ticket]
        self.caps.release(ticket)
        if again:
            self.caps.release(ticket)

    @invariant()
    def it_holds_what_it_says(self) -> None:
        self.caps.check()

    def teardown(self) -> None:
        for ticket in self.under_way:
            self.caps.release(ticket)
        assert self.caps.snapshot(9)["evaluations"] == []
        assert self.caps.snapshot(9)["attempts"] == 0


TestCaps = CapsMachine.TestCase
TestCaps.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
