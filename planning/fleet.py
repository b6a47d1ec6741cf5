"""The service: nodes, each with the queue and the caps of one, and the proxy before them.

A `Node` does for `SlotPolicy` and `Caps` what the actors do in the service: it hands them
what happens, carries out what they decide, and wakes the policy when it wants to be woken.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import simpy

from gaoler.actors.policy.caps import Caps
from gaoler.actors.policy.estimate import retry_after_s
from gaoler.actors.policy.slot_policy import SlotPolicy
from gaoler.actors.policy.slots import INTERACTIVE, Decision, Grant, QueueRules, SlotRequest
from gaoler.planning.tally import Tally

SCOPE = ""  # of the caps: all who come here have one key


@dataclass(slots=True, eq=False)
class Call:
    """One request on its way through the service."""

    ticket: str
    priority: str
    slots: int
    memory_bytes: int
    budget_ms: int
    run_ns: int  # from its slots to its answer
    done: simpy.Event  # happens when it is answered or refused
    evaluation_id: str | None = None
    attempt_id: str | None = None
    wait: bool = True
    sent_ns: int = 0
    granted_ns: int = 0
    refused: str | None = None  # the cause
    retry_after_s: int = 0  # what the refusal says

    def slot_request(self) -> SlotRequest:
        return SlotRequest(
            self.ticket,
            self.priority,
            self.slots,
            self.memory_bytes,
            self.budget_ms,
            self.wait,
            self.ticket,
            self.evaluation_id,
        )


class Node:
    """One service.

    Invariant: `_waiting` has the calls that the policy has in its queues, and an alarm is
    set for no later than when the policy wants to be woken.
    """

    def __init__(
        self, env: simpy.Environment, rules: QueueRules, cap: int, teardown_ns: int, tally: Tally
    ) -> None:
        self._env = env
        self.policy = SlotPolicy(rules)
        self.caps = Caps(cap)
        self._teardown_ns = teardown_ns
        self._tally = tally
        self._waiting: dict[str, Call] = {}
        self._alarm_ns: int | None = None

    def submit(self, call: Call) -> None:
        """Take a request; `call.done` happens when it has ended."""
        now_ns = int(self._env.now)
        call.sent_ns = now_ns
        self._tally.accounts[call.priority].sent += 1
        cause = self.caps.reserve(
            call.ticket,
            SCOPE,
            call.evaluation_id,
            call.attempt_id,
            call.priority == INTERACTIVE,
        )
        if cause is not None:
            call.retry_after_s = retry_after_s(0)
            self._tally.refused(call.priority, cause, False, now_ns)
            self._refuse(call, cause)
            return
        self._waiting[call.ticket] = call
        self._tally.waits(call.priority, now_ns)
        self._carry_out(self.policy.enqueue(call.slot_request(), now_ns), now_ns)

    def _carry_out(self, decisions: Iterable[Decision], now_ns: int) -> None:
        for decision in decisions:
            call = self._waiting.pop(decision.ticket)
            if isinstance(decision, Grant):
                self._start(call, now_ns)
                continue
            self.caps.release(call.ticket)
            call.retry_after_s = retry_after_s(decision.eta_ms)
            self._tally.refused(call.priority, decision.cause, True, now_ns)
            self._refuse(call, decision.cause)
        self._set_alarm(now_ns)

    def _refuse(self, call: Call, cause: str) -> None:
        call.refused = cause
        call.done.succeed()

    # --- a call that has its slots --------------------------------------------------------

    def _start(self, call: Call, now_ns: int) -> None:
        call.granted_ns = now_ns
        self._tally.granted(call.priority, call.slots, now_ns - call.sent_ns, now_ns)
        self._after(call.run_ns, self._answer, call)

    def _answer(self, event: simpy.Event) -> None:
        """The caps are free before the client hears of it, the slots only after teardown."""
        call = event.value
        assert isinstance(call, Call)
        self.caps.release(call.ticket)
        self._tally.answered(call.priority, int(self._env.now))
        call.done.succeed()
        self._after(self._teardown_ns, self._torn_down, call)

    def _torn_down(self, event: simpy.Event) -> None:
        call = event.value
        assert isinstance(call, Call)
        now_ns = int(self._env.now)
        self._tally.freed(call.priority, call.slots, now_ns)
        self._carry_out(self.policy.release(call.ticket, now_ns), now_ns)

    def _after(
        self, delay_ns: int, then: Callable[[simpy.Event], None], value: object = None
    ) -> None:
        timeout = simpy.Timeout(self._env, delay_ns, value)
        assert timeout.callbacks is not None  # it has not happened yet
        timeout.callbacks.append(then)

    # --- the alarm ------------------------------------------------------------------------

    def _set_alarm(self, now_ns: int) -> None:
        """An alarm that rings too early is left alone: it sets the next one."""
        wake_ns = self.policy.next_wake_ns(now_ns)
        if wake_ns is None or (self._alarm_ns is not None and self._alarm_ns <= wake_ns):
            return
        self._alarm_ns = max(wake_ns, now_ns)
        self._after(self._alarm_ns - now_ns, self._ring, self._alarm_ns)

    def _ring(self, event: simpy.Event) -> None:
        if event.value != self._alarm_ns:
            return  # an earlier one was set after this one
        now_ns = int(self._env.now)
        self._alarm_ns = None
        self._carry_out(self.policy.tick(now_ns), now_ns)

    def check(self) -> None:
        """Raise AssertionError where an invariant does not hold."""
        self.policy.check()
        self.caps.check()
        wake_ns = self.policy.next_wake_ns(int(self._env.now))
        assert wake_ns is None or (self._alarm_ns is not None and self._alarm_ns <= wake_ns)


# --- the proxy ----------------------------------------------------------------------------


class RoundRobin:
    """Each node in its turn, whatever it has to do."""

    def __init__(self, nodes: int) -> None:
        self._nodes = nodes
        self._next = 0

    def pick(self) -> int:
        number = self._next
        self._next = (number + 1) % self._nodes
        return number

    def ended(self, number: int) -> None:
        """A request of that node has ended, which is all the same here."""


class LeastOutstanding:
    """The node with the fewest requests under way; of several, the one longest without a change.

    Every step costs O(1): nodes lie in one row for each number of requests, and that number
    changes by one at a time.
    Invariant: `_least` is the lowest row that is not empty.
    """

    def __init__(self, nodes: int) -> None:
        self._outstanding = [0] * nodes
        self._rows: dict[int, OrderedDict[int, None]] = {0: OrderedDict.fromkeys(range(nodes))}
        self._least = 0

    def pick(self) -> int:
        number = next(iter(self._rows[self._least]))
        self._move(number, 1)
        return number

    def ended(self, number: int) -> None:
        self._move(number, -1)

    def _move(self, number: int, by: int) -> None:
        before = self._outstanding[number]
        after = before + by
        self._outstanding[number] = after
        row = self._rows[before]
        del row[number]
        self._rows.setdefault(after, OrderedDict())[number] = None
        if after < self._least or (before == self._least and not row):
            self._least = after

    def check(self) -> None:
        """Raise AssertionError where the invariant does not hold."""
        assert self._least == min(self._outstanding)
        for number, outstanding in enumerate(self._outstanding):
            assert number in self._rows[outstanding]
        assert sum(map(len, self._rows.values())) == len(self._outstanding)


class Proxy:
    """What clients talk to; knows of each node only what it was sent and has answered."""

    def __init__(
        self,
        nodes: list[Node],
        balance: RoundRobin | LeastOutstanding,
        record: Callable[[Call], None] | None = None,
    ) -> None:
        """`record` is told of every request that is passed on."""
        self.nodes = nodes
        self._balance = balance
        self._record = record

    def submit(self, call: Call) -> None:
        """Pass a request on; `call.done` happens when it has ended."""
        number = self._balance.pick()
        assert call.done.callbacks is not None  # it has not happened yet
        call.done.callbacks.append(lambda _: self._balance.ended(number))
        self.nodes[number].submit(call)
        if self._record is not None:
            self._record(call)
