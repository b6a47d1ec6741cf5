"""The rules of the queue, one sentence each; docs/api.md."""

from __future__ import annotations

from typing import Any

import pytest

from gaoler.actors.policy.picture import picture
from gaoler.actors.policy.slot_policy import SlotPolicy
from gaoler.actors.policy.slots import (
    ClassRules,
    Decision,
    Grant,
    QueueRules,
    Refuse,
    SlotRequest,
)

MS = 1_000_000
AGING_MS = 10_000
SLACK_MS, TEARDOWN_MS = 2_000, 10_000


class Queue:
    """A policy with a clock, that checks every invariant after every step."""

    def __init__(
        self,
        slots: int = 2,
        memory_bytes: int = 100,
        grading_slots: int = 1,
        limit: int = 64,
        allowances_ms: tuple[int, int] = (20_000, 60_000),
        grading_memory: int | None = None,
    ) -> None:
        interactive_ms, grading_ms = allowances_ms
        self.policy = SlotPolicy(
            QueueRules(
                slots,
                memory_bytes,
                grading_slots,
                AGING_MS,
                ClassRules(limit, interactive_ms),
                ClassRules(limit, grading_ms),
                slack_ms=SLACK_MS,
                teardown_ms=TEARDOWN_MS,
                grading_memory_bytes=grading_memory,
            )
        )
        self.now_ns = 0

    def come(
        self,
        ticket: str,
        slots: int = 1,
        memory: int = 1,
        budget_ms: int = 5_000,
        wait: bool = True,
    ) -> list[Decision]:
        """A request comes; a ticket that begins with "g" is a grading one."""
        priority = "grading" if ticket.startswith("g") else "interactive"
        request = SlotRequest(ticket, priority, slots, memory, budget_ms, wait)
        return self._checked(self.policy.enqueue(request, self.now_ns))

    def leave(self, ticket: str, slots: bool = True, memory: bool = True) -> list[Decision]:
        decisions = self.policy.release(ticket, self.now_ns, slots=slots, memory=memory)
        return self._checked(decisions)

    def withdraw(self, ticket: str) -> list[Decision]:
        return self._checked(self.policy.withdraw(ticket, self.now_ns))

    def later(self, milliseconds: int) -> list[Decision]:
        self.now_ns += milliseconds * MS
        return self._checked(self.policy.tick(self.now_ns))

    def wake_in_ms(self) -> int | None:
        wake_ns = self.policy.next_wake_ns(self.now_ns)
        return None if wake_ns is None else (wake_ns - self.now_ns) // MS

    def _checked(self, decisions: list[Decision]) -> list[Decision]:
        self.policy.check()
        return decisions


def grants(*tickets: str) -> list[Decision]:
    return [Grant(ticket) for ticket in tickets]


def cause(decisions: list[Decision]) -> str:
    (refusal,) = decisions
    assert isinstance(refusal, Refuse)
    return refusal.cause


def test_a_request_gets_its_slots_at_once_where_they_are_free() -> None:
    assert Queue().come("a", slots=2) == grants("a")


def test_slots_come_all_at_once_or_not_at_all() -> None:
    queue = Queue(slots=3)
    queue.come("a", slots=2)
    assert queue.come("wide", slots=2) == []
    assert queue.leave("a") == grants("wide")


def test_memory_is_reserved_as_slots_are() -> None:
    queue = Queue(slots=5, memory_bytes=100)
    queue.come("a", memory=60)
    assert queue.come("b", memory=50) == []
    assert queue.leave("a") == grants("b")


def test_within_a_class_first_come_is_first_served() -> None:
    queue = Queue(slots=1)
    queue.come("a")
    queue.come("b")
    queue.come("c")
    assert queue.leave("a") == grants("b")
    assert queue.leave("b") == grants("c")


def test_interactive_goes_before_grading_that_came_earlier() -> None:
    queue = Queue(slots=1)
    queue.come("a")
    queue.come("grade")
    queue.come("b")
    assert queue.leave("a") == grants("b")
    assert queue.leave("b") == grants("grade")


def test_grading_never_holds_more_than_its_ceiling() -> None:
    queue = Queue(slots=4, grading_slots=2)
    assert queue.come("g1") + queue.come("g2") + queue.come("g3") == grants("g1", "g2")
    assert queue.leave("g1") == grants("g3")


def test_grading_that_its_ceiling_holds_back_stands_in_nobodys_way_however_old() -> None:
    queue = Queue(slots=2, grading_slots=1)
    queue.come("g1")
    queue.come("g2")
    queue.later(AGING_MS)
    assert queue.come("a") == grants("a")


def test_narrow_requests_wait_behind_a_wide_one_that_they_could_delay() -> None:
    queue = Queue(slots=2)
    queue.come("a")
    queue.come("wide", slots=2)
    assert queue.come("narrow", budget_ms=5_001) == []
    assert queue.come("grade", budget_ms=5_001) == []
    assert queue.leave("a") == grants("wide")


def test_who_is_over_before_the_promised_start_goes_before_a_wide_head() -> None:
    queue = Queue(slots=2)
    queue.come("a")
    queue.later(1_000)
    queue.come("wide", slots=2)
    assert queue.come("long", budget_ms=4_001) == []
    assert queue.come("short", budget_ms=4_000) == grants("short")
    assert queue.policy.counters["backfilled"] == 1
    assert queue.leave("a") == []
    assert queue.leave("short") == grants("wide")


def test_the_promise_to_a_head_stays_what_it_was_however_often_others_go_before_it() -> None:
    queue = Queue(slots=2)
    queue.come("a", budget_ms=10_000)
    queue.come("wide", slots=2)
    promise = queue.policy.promise_to("wide")
    assert promise is not None
    assert promise.start_ns == (10_000 + SLACK_MS + TEARDOWN_MS) * MS
    for number in range(4):
        assert queue.come(f"b{number}", budget_ms=2_000) == grants(f"b{number}")
        queue.later(2_000)
        queue.leave(f"b{number}")
    assert queue.policy.promise_to("wide") == promise
    assert queue.come("late", budget_ms=2_001) == []


def test_interactive_ones_go_before_grading_ones_in_a_gap_and_each_in_its_order() -> None:
    queue = Queue(slots=3)
    queue.come("a", budget_ms=9_000)
    queue.come("b", budget_ms=2_000)
    queue.come("wide", slots=3)
    queue.come("g", slots=1, budget_ms=3_000, memory=100)
    queue.come("c", slots=2, budget_ms=3_000)  # starts when b ends
    queue.come("d", slots=1, budget_ms=3_000, memory=100)
    assert queue.leave("b") == grants("c")


def test_a_grading_request_in_a_gap_is_not_counted_as_having_passed_the_head() -> None:
    queue = Queue(slots=3, grading_slots=1)
    queue.come("a", budget_ms=60_000)
    queue.come("b", budget_ms=60_000)
    queue.come("wide", slots=3)
    assert queue.come("g1", budget_ms=1_000) == grants("g1")
    queue.later(1_000)
    queue.leave("g1")
    queue.come("g2", budget_ms=100_000)
    assert queue.later(AGING_MS) == grants("g2")


def test_a_wide_grading_request_keeps_its_place_below_the_ceiling() -> None:
    queue = Queue(slots=3, grading_slots=2)
    queue.come("a", slots=2, budget_ms=50_000)
    queue.come("gwide", slots=2)
    assert queue.come("gnarrow", budget_ms=1_000) == []
    assert queue.come("b", budget_ms=1_000) == grants("b")  # is no grading request


def test_narrow_grading_goes_before_one_that_the_ceiling_holds_back_where_it_ends_in_time() -> None:
    queue = Queue(slots=4, grading_slots=2)
    queue.come("g1", budget_ms=5_000)
    queue.come("gwide", slots=2)
    assert queue.come("glong", budget_ms=5_001) == []
    assert queue.come("gshort", budget_ms=5_000) == grants("gshort")


def test_where_memory_is_in_quarantine_nothing_is_promised_and_nobody_waits_for_it() -> None:
    queue = Queue(slots=2, memory_bytes=100)
    queue.come("a", memory=50)
    queue.leave("a", memory=False)
    queue.come("large", memory=60)
    assert queue.come("small", memory=10, budget_ms=1_000_000) == grants("small")


def test_a_head_that_would_not_wait_ends_nobodys_promise() -> None:
    """Pins: others were let in against the promise of one that was refused at once."""
    queue = Queue(slots=4, grading_slots=4)
    queue.come("a", budget_ms=8_000)
    queue.come("b", slots=2, budget_ms=25_000)
    queue.come("gwide", slots=2)
    promise = queue.policy.promise_to("gwide")
    queue.come("gnarrow", budget_ms=22_000)
    assert cause(queue.come("c", slots=4, wait=False)) == "no_slots"
    assert queue.policy.promise_to("gwide") == promise
    assert queue.leave("a") == grants("gwide")


def test_an_aged_request_that_leaves_ends_nobodys_promise() -> None:
    """Pins: a wide grading request that aged and hung up moved an interactive head's start."""
    queue = Queue(slots=4, grading_slots=4)
    queue.come("a", slots=2, budget_ms=20_000)
    queue.come("b", budget_ms=60_000)
    queue.come("gwide", slots=4)
    queue.come("head", slots=3)
    promise = queue.policy.promise_to("head")
    queue.come("narrow", budget_ms=45_000)
    assert queue.later(AGING_MS) == []  # gwide is the head, and promised more
    queue.withdraw("gwide")
    assert queue.policy.promise_to("head") == promise
    assert queue.leave("a") == grants("head")


def test_who_gives_up_and_comes_again_is_not_passed_again() -> None:
    """Pins: with a grading request always waiting, a wide interactive one never had its turn."""
    queue = Queue(slots=2, grading_slots=1, allowances_ms=(20_000, 600_000))
    queue.come("g0", budget_ms=30_000)
    queue.come("wide0", slots=2)
    queue.come("g1", budget_ms=30_000)
    assert cause(queue.later(20_000)) == "expired"
    queue.come("wide1", slots=2)
    queue.later(10_000)
    assert queue.leave("g0") == grants("g1")  # goes before wide1
    queue.come("g2", budget_ms=30_000)
    assert cause(queue.later(15_000)) == "expired"
    queue.come("wide2", slots=2)
    queue.later(15_000)
    assert queue.leave("g1") == grants("wide2")


def test_grading_never_holds_more_memory_than_its_share() -> None:
    queue = Queue(slots=3, grading_slots=2, memory_bytes=100, grading_memory=70)
    assert queue.come("g1", memory=60) == grants("g1")
    assert queue.come("g2", memory=20) == []
    queue.later(AGING_MS)
    assert queue.come("a", memory=30) == grants("a")
    assert cause(queue.come("g3", memory=71)) == "impossible"
    assert queue.leave("g1") == grants("g2")


def test_an_estimate_counts_the_ceiling_and_no_one_behind() -> None:
    """Pins: the first of many grading requests was told of hours, a single one of too little."""
    queue = Queue(slots=8, grading_slots=1, allowances_ms=(1_000_000, 1_000_000))
    queue.come("g", budget_ms=300_000)
    for number in range(7):
        queue.come(f"a{number}", budget_ms=30_000)
    for number in range(64):
        queue.come(f"w{number}", budget_ms=30_000)
    (refusal,) = queue.come("gnow", budget_ms=300_000, wait=False)
    assert isinstance(refusal, Refuse)
    assert (refusal.position, refusal.eta_ms) == (1, 300_000)
    queue.come("gfirst", budget_ms=300_000)
    for number in range(20):
        queue.come(f"glater{number}", budget_ms=300_000)
    (*_, refused) = [each for each in queue.later(1_000_000) if each.ticket == "gfirst"]
    assert isinstance(refused, Refuse)
    assert refused.eta_ms < 300_000


def test_an_aged_grading_request_goes_before_the_interactive_head_once() -> None:
    queue = Queue(slots=1)
    queue.come("a")
    queue.come("g1")
    queue.come("g2")
    queue.later(AGING_MS)
    queue.come("b")
    queue.come("c")
    assert queue.leave("a") == grants("g1")
    assert queue.leave("g1") == grants("b")  # b was passed once, so g2 waits
    assert queue.leave("b") == grants("g2")  # c was not
    assert queue.leave("g2") == grants("c")


def test_a_grading_request_that_has_not_aged_passes_nobody() -> None:
    queue = Queue(slots=1)
    queue.come("a")
    queue.come("g1")
    queue.come("b")
    queue.later(AGING_MS - 1)
    assert queue.leave("a") == grants("b")


def test_one_slot_and_a_flood_of_interactive_requests_still_serve_grading() -> None:
    queue = Queue(slots=1, allowances_ms=(60_000, 60_000))
    queue.come("a0")
    queue.come("grade")
    running = "a0"
    for number in range(1, 100):
        queue.come(f"a{number}")
        queue.later(1_000)
        (grant,) = queue.leave(running)
        running = grant.ticket
        if running == "grade":
            assert number == AGING_MS // 1_000
            return
    pytest.fail("grading was starved")


def test_aging_serves_a_grading_request_by_itself_when_it_fits() -> None:
    queue = Queue(slots=2, grading_slots=1)
    queue.come("a")
    queue.come("wide", slots=2)
    queue.come("grade", budget_ms=5_001)
    assert queue.wake_in_ms() == AGING_MS
    assert queue.later(AGING_MS) == grants("grade")


def test_a_full_queue_refuses_and_says_how_long_it_is() -> None:
    queue = Queue(slots=1, limit=2)
    queue.come("a")
    queue.come("b")
    queue.come("c")
    assert queue.come("d") == [Refuse("d", "queue_full", waiting=2, position=3, eta_ms=15_000)]


def test_the_classes_are_bounded_apart() -> None:
    queue = Queue(slots=1, limit=1)
    queue.come("a")
    queue.come("b")
    assert queue.come("grade") == []


def test_a_queue_of_no_places_still_serves_what_fits() -> None:
    queue = Queue(slots=1, limit=0)
    assert queue.come("a") == grants("a")
    assert cause(queue.come("b")) == "queue_full"


def test_who_will_not_wait_is_refused_with_an_estimate() -> None:
    queue = Queue(slots=1)
    queue.come("a")
    queue.later(1_000)
    assert queue.come("b", wait=False) == [
        Refuse("b", "no_slots", waiting=0, position=1, eta_ms=4_000)
    ]
    assert queue.leave("a") == []


def test_who_will_not_wait_overtakes_where_it_may_and_nowhere_else() -> None:
    queue = Queue(slots=2)
    queue.come("a")
    queue.come("wide", slots=2)
    assert cause(queue.come("b", budget_ms=5_001, wait=False)) == "no_slots"
    assert queue.come("c", budget_ms=5_000, wait=False) == grants("c")


@pytest.mark.parametrize(
    ("ticket", "slots", "memory"), [("a", 3, 1), ("a", 1, 101), ("grade", 2, 1)]
)
def test_what_could_never_fit_is_refused_at_once(ticket: str, slots: int, memory: int) -> None:
    assert cause(Queue().come(ticket, slots=slots, memory=memory)) == "impossible"


def test_a_request_leaves_when_its_allowance_is_spent() -> None:
    queue = Queue(slots=1)
    queue.come("a")
    queue.come("b")
    queue.later(5_000)
    queue.come("c")
    assert queue.wake_in_ms() == 15_000
    assert queue.later(14_999) == []
    assert queue.later(1) == [Refuse("b", "expired", waiting=1, position=1, eta_ms=0)]
    assert queue.leave("a") == grants("c")


def test_a_head_that_expires_lets_those_behind_it_go() -> None:
    queue = Queue(slots=2, allowances_ms=(20_000, 20_000))
    queue.come("a")
    queue.come("wide", slots=2)
    queue.later(1)
    queue.come("b")
    decisions = queue.later(19_999)
    assert cause(decisions[:1]) == "expired"
    assert decisions[1:] == grants("b")


def test_a_withdrawn_head_lets_those_behind_it_go() -> None:
    queue = Queue(slots=2)
    queue.come("a")
    queue.come("wide", slots=2)
    queue.come("b", budget_ms=5_001)
    assert queue.withdraw("wide") == grants("b")
    assert queue.wake_in_ms() is None


def test_withdrawing_or_releasing_a_stranger_changes_nothing() -> None:
    queue = Queue()
    queue.come("a")
    assert queue.withdraw("a") == []
    assert queue.withdraw("stranger") == []
    assert queue.leave("stranger") == []


def test_a_release_counts_once() -> None:
    queue = Queue(slots=2)
    queue.come("a", slots=2)
    queue.come("b", slots=2)
    assert queue.leave("a") == grants("b")
    assert queue.leave("a") == []


def test_quarantine_gives_slots_back_and_keeps_memory() -> None:
    queue = Queue(slots=1, memory_bytes=100)
    queue.come("a", memory=60)
    queue.come("b", memory=60)
    assert queue.leave("a", memory=False) == []
    assert queue.leave("a", memory=False) == []
    assert queue.leave("a") == grants("b")


def test_memory_in_quarantine_is_not_counted_on_in_an_estimate() -> None:
    queue = Queue(slots=2, memory_bytes=100)
    queue.come("a", memory=60)
    queue.leave("a", memory=False)
    queue.later(1_000)
    queue.come("b", memory=40)
    queue.later(1_000)
    (refusal,) = queue.come("c", memory=50, wait=False)
    assert isinstance(refusal, Refuse)
    assert refusal.eta_ms == 4_000  # when b ends, and not when a should have


def test_a_ticket_in_use_is_a_mistake_of_ours() -> None:
    queue = Queue(slots=1)
    queue.come("a")
    with pytest.raises(ValueError, match="in use"):
        queue.come("a")


def test_the_snapshot_tells_who_runs_and_who_waits_for_how_long() -> None:
    queue = Queue(slots=1)
    queue.come("a", memory=10)
    queue.later(1_000)
    queue.come("grade")
    queue.come("b")
    snapshot: dict[str, Any] = picture(queue.policy, queue.now_ns)
    assert snapshot["slots"] == {"total": 1, "free": 0}
    assert snapshot["memory_bytes"] == {"total": 100, "free": 90}
    (running,) = snapshot["running"]
    assert (running["elapsed_ms"], running["deadline_in_ms"]) == (1_000, 4_000)
    first, second = snapshot["waiting"]
    assert (first["priority"], first["eta_ms"]) == ("interactive", 4_000)
    assert (second["priority"], second["eta_ms"]) == ("grading", 9_000)
