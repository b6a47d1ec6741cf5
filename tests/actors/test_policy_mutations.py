"""A rule that is broken is noticed: each alteration of the queue makes its search fail.

The search is test_slot_policy_stateful's.  What it could not tell from the real policy, it
would not protect.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from gaoler.actors.policy.holdings import Held, Holdings
from gaoler.actors.policy.line import Line, Waiting
from gaoler.actors.policy.slot_policy import Promise, SlotPolicy
from gaoler.actors.policy.slots import (
    GRADING,
    INTERACTIVE,
    NS_PER_MS,
    Decision,
    QueueRules,
    Room,
    SlotRequest,
)
from tests.actors.queue_machine import SLACK_MS, TEARDOWN_MS, NarrowMachine, QueueMachine

SEARCH = settings(
    stateful_step_count=30,
    deadline=None,
    derandomize=True,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


class Unchecked(SlotPolicy):
    """The search alone must notice, not what the policy says of itself."""

    def check(self) -> None:
        pass


class MemoryIsNotCounted(Unchecked):
    def _fits(self, waiting: Waiting) -> bool:
        return waiting.request.slots <= self.holdings.free.slots and not (
            waiting.request.priority == GRADING and self._held_back(waiting)
        )


class SlotsAreOversubscribed(Unchecked):
    def _fits(self, waiting: Waiting) -> bool:
        free = self.holdings.free
        return free.plus(Room(1, 0)).holds(waiting.request.room)


class MemoryIsLost(Unchecked):
    def release(
        self, ticket: str, now_ns: int, *, slots: bool = True, memory: bool = True
    ) -> list[Decision]:
        decisions = super().release(ticket, now_ns, slots=slots, memory=False)
        self.holdings._held.pop(ticket, None)
        return decisions


class SlotsComeBackTwice(Unchecked):
    def release(
        self, ticket: str, now_ns: int, *, slots: bool = True, memory: bool = True
    ) -> list[Decision]:
        held = self.holdings._held.get(ticket)
        if held is not None and not memory:
            self.holdings.free = self.holdings.free.plus(Room(held.request.slots, 0))
        return super().release(ticket, now_ns, slots=slots, memory=memory)


class QuarantineGivesMemoryBack(Unchecked):
    def release(
        self, ticket: str, now_ns: int, *, slots: bool = True, memory: bool = True
    ) -> list[Decision]:
        del memory
        return super().release(ticket, now_ns, slots=slots, memory=True)


class GradingHasNoCeiling(Unchecked):
    def __init__(self, rules: QueueRules) -> None:
        super().__init__(rules)
        self.holdings.free = Room(rules.slots, rules.memory_bytes, rules.slots, rules.memory_bytes)


class LastComeIsFirstServed(Unchecked):
    def __init__(self, rules: QueueRules) -> None:
        super().__init__(rules)
        self.lines = {INTERACTIVE: _Backwards(), GRADING: _Backwards()}


class _Backwards(Line):
    def head(self) -> Waiting | None:
        return next(reversed(self._waiting.values()), None)


class GradingIsFirst(Unchecked):
    def aged(self, waiting: Waiting, now_ns: int) -> bool:
        return waiting.request.priority == GRADING

    def _first(self, now_ns: int) -> Waiting | None:
        grading = self.lines[GRADING].head()
        if grading is not None and not self._held_back(grading):
            return grading
        return super()._first(now_ns)


class NobodyAges(Unchecked):
    def _first(self, now_ns: int) -> Waiting | None:
        return super()._first(-(10**18))


class NoWakeForAging(Unchecked):
    def next_wake_ns(self, now_ns: int) -> int | None:
        return self._expiries.next_ns()


class AHeadIsPassedAgainAndAgain(Unchecked):
    def _note_passing(self, first: Waiting) -> None:
        pass


class AHeldBackOneIsInTheWay(Unchecked):
    def _first(self, now_ns: int) -> Waiting | None:
        grading = self.lines[GRADING].head()
        if grading is not None and self.aged(grading, now_ns):
            return grading
        return super()._first(now_ns)


class NobodyOvertakes(Unchecked):
    def _overtaker(self, head: Waiting | None, now_ns: int) -> Waiting | None:
        return None


class EverybodyOvertakes(Unchecked):
    def _most_budget_ms(self, promise: Promise | None, now_ns: int) -> int:
        return 10**9


class ThePromiseIsMadeAnewEachTime(Unchecked):
    def _kept(self, promise: Promise | None, waiting: Waiting | None) -> Promise | None:
        return None


class AnotherHeadEndsThePromise(Unchecked):
    """A grading request that ages, fills the queue's front, and hangs up."""

    def _note_promises(self, head: Waiting | None, now_ns: int) -> None:
        super()._note_promises(head, now_ns)
        for priority, promise in self._promises.items():
            if head is None or (promise is not None and promise.ticket != head.request.ticket):
                self._promises[priority] = None


class ThePromiseOutlivesTheHead(Unchecked):
    def _kept(self, promise: Promise | None, waiting: Waiting | None) -> Promise | None:
        return promise if promise is not None and promise.start_ns is not None else None


class GradingMemoryHasNoCeiling(Unchecked):
    def _held_back(self, grading: Waiting) -> bool:
        return grading.request.slots > self.holdings.free.grading_slots


class SlackAndTeardownTakeNoTime(Unchecked):
    def _most_budget_ms(self, promise: Promise | None, now_ns: int) -> int:
        return super()._most_budget_ms(promise, now_ns) + SLACK_MS + TEARDOWN_MS


class SlackIsNotPromised(Unchecked):
    def __init__(self, rules: QueueRules) -> None:
        super().__init__(rules)
        self.holdings = _EndsAtDeadline(rules)


class _EndsAtDeadline(Holdings):
    def end_ns(self, held: Held) -> int:
        return held.deadline_ns


class GradingFillsGapsFirst(Unchecked):
    def _overtaker(self, head: Waiting | None, now_ns: int) -> Waiting | None:
        most_ms = {p: self._most_budget_ms(each, now_ns) for p, each in self._promises.items()}
        return self._grading_overtaker(most_ms, now_ns) or super()._overtaker(head, now_ns)


class GapsTakeThePlaceBelowTheCeiling(Unchecked):
    def _grading_overtaker(self, most_ms: dict[str, int], now_ns: int) -> Waiting | None:
        free = self.holdings.free
        slots = min(free.slots, free.grading_slots)
        memory_bytes = min(free.memory_bytes, free.grading_memory_bytes)
        return self.lines[GRADING].first_within(Room(slots, memory_bytes), min(most_ms.values()))


class NobodyExpires(Unchecked):
    def _add(self, request: SlotRequest, now_ns: int) -> None:
        super()._add(request, now_ns)
        self._expiries.set(
            request.ticket, 10**18, self.lines[request.priority]._waiting[request.ticket]
        )


class EverybodyExpiresEarly(Unchecked):
    def _add(self, request: SlotRequest, now_ns: int) -> None:
        super()._add(request, now_ns - NS_PER_MS)


class WhoWillNotWaitWaits(Unchecked):
    def _may_not_wait(self, request: SlotRequest) -> str | None:
        cause = super()._may_not_wait(request)
        return None if cause == "no_slots" else cause


class TheQueueHasNoEnd(Unchecked):
    def _may_not_wait(self, request: SlotRequest) -> str | None:
        cause = super()._may_not_wait(request)
        return None if cause == "queue_full" else cause


class AWithdrawalIsNotLookedAt(Unchecked):
    def withdraw(self, ticket: str, now_ns: int) -> list[Decision]:
        waiting = self._find(ticket)
        if waiting is not None:
            self._remove(waiting.request)
        return []


class WhatNeverFitsWaits(Unchecked):
    def enqueue(self, request: SlotRequest, now_ns: int) -> list[Decision]:
        self._add(request, now_ns)
        return self._grant_all(now_ns)


def _altered() -> list[type[Unchecked]]:
    return Unchecked.__subclasses__()


def _search(policy: type[Unchecked], most_examples: int) -> None:
    """By both machines; AssertionError, or what a policy that is broken raises itself."""
    for machine in (NarrowMachine, QueueMachine):
        # Without what the policy says of itself, which it may not even know any more.
        members = {"policy_class": policy, "the_policy_holds_what_it_says": None}
        altered = type("Altered", (machine,), members)
        run_state_machine_as_test(altered, settings=settings(SEARCH, max_examples=most_examples))


@pytest.mark.parametrize("altered", _altered(), ids=lambda altered: altered.__name__)
def test_the_search_finds_every_altered_rule(altered: type[Unchecked]) -> None:
    with pytest.raises((AssertionError, KeyError, BaseExceptionGroup)):
        _search(altered, 1_500)


def test_the_search_finds_nothing_where_nothing_is_altered() -> None:
    _search(Unchecked, 100)
