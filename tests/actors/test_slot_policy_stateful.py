"""Whatever comes in whatever order: the queue keeps its promises."""

from __future__ import annotations

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from gaoler.actors.policy.slot_policy import SlotPolicy
from gaoler.actors.policy.slots import ClassRules, Decision, Grant, QueueRules, SlotRequest

MS = 1_000_000
AGING_MS = 50


class QueueMachine(RuleBasedStateMachine):
    """Drives a SlotPolicy beside a simple account of who was told what."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ns = 0
        self.number = 0
        self.waiting: dict[str, SlotRequest] = {}  # in the order of arrival
        self.held: dict[str, SlotRequest] = {}
        self.kept: dict[str, tuple[bool, bool]] = {}  # slots, memory of the held
        self.passes: dict[str, int] = {}

    @initialize(
        slots=st.integers(1, 4),
        memory=st.integers(1, 8),
        grading_slots=st.integers(1, 4),
        limit=st.integers(0, 4),
    )
    def begin(self, slots: int, memory: int, grading_slots: int, limit: int) -> None:
        self.policy = SlotPolicy(
            QueueRules(
                slots,
                memory,
                grading_slots,
                AGING_MS,
                ClassRules(limit, allowance_ms=100),
                ClassRules(limit, allowance_ms=300),
            )
        )

    @rule(
        grading=st.booleans(),
        slots=st.integers(1, 5),
        memory=st.integers(0, 9),
        wait=st.sampled_from([True, True, True, False]),
    )
    def come(self, grading: bool, slots: int, memory: int, wait: bool) -> None:
        self.number += 1
        ticket = f"t{self.number}"
        priority = "grading" if grading else "interactive"
        request = SlotRequest(ticket, priority, slots, memory, budget_ms=20, wait=wait)
        self.waiting[ticket] = request
        self.hear(self.policy.enqueue(request, self.now_ns))
        assert wait or ticket not in self.waiting, "a request that would not wait is waiting"

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(list(self.waiting)))
        del self.waiting[ticket]
        self.hear(self.policy.withdraw(ticket, self.now_ns))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), slots=st.booleans(), memory=st.booleans())
    def release(self, data: st.DataObject, slots: bool, memory: bool) -> None:
        ticket = data.draw(st.sampled_from(list(self.held)))
        had_slots, had_memory = self.kept[ticket]
        self.kept[ticket] = (had_slots and not slots, had_memory and not memory)
        if self.kept[ticket] == (False, False):
            del self.held[ticket], self.kept[ticket]
        self.hear(self.policy.release(ticket, self.now_ns, slots=slots, memory=memory))

    @rule(milliseconds=st.integers(1, 120))
    def time_passes(self, milliseconds: int) -> None:
        self.now_ns += milliseconds * MS
        self.hear(self.policy.tick(self.now_ns))

    @rule()
    def time_passes_until_just_before_the_next_wake(self) -> None:
        wake_ns = self.policy.next_wake_ns(self.now_ns)
        self.now_ns = self.now_ns + 10**12 if wake_ns is None else wake_ns - 1
        assert self.policy.tick(self.now_ns) == [], "a wake was missed"

    @rule()
    def time_passes_until_the_next_wake(self) -> None:
        wake_ns = self.policy.next_wake_ns(self.now_ns)
        if wake_ns is not None:
            self.now_ns = wake_ns
            self.hear(self.policy.tick(self.now_ns))

    @invariant()
    def it_holds_what_it_says(self) -> None:
        if hasattr(self, "policy"):
            self.policy.check()
            snapshot = self.policy.snapshot(self.now_ns)
            assert len(snapshot["waiting"]) == len(self.waiting)  # type: ignore[arg-type]
            assert len(snapshot["running"]) == len(self.held)  # type: ignore[arg-type]

    def teardown(self) -> None:
        """Once everything is given back, and time passes, nobody waits."""
        while self.held:
            ticket = next(iter(self.held))
            del self.held[ticket], self.kept[ticket]
            self.hear(self.policy.release(ticket, self.now_ns))
        assert not self.waiting

    def hear(self, decisions: list[Decision]) -> None:
        for decision in decisions:
            request = self.waiting.pop(decision.ticket)  # KeyError: told twice, or a stranger
            if isinstance(decision, Grant):
                self.held[decision.ticket] = request
                self.kept[decision.ticket] = (True, True)
                self.count_passes(request)

    def count_passes(self, granted: SlotRequest) -> None:
        interactive = [other for other in self.waiting.values() if other.priority != "grading"]
        if granted.priority == "grading" and interactive:
            head = interactive[0].ticket
            self.passes[head] = self.passes.get(head, 0) + 1
            assert self.passes[head] == 1, "an interactive head was passed twice"


TestQueue = QueueMachine.TestCase
TestQueue.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
