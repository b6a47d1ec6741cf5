"""The queue as operators see it; docs/api.md has the fields."""

from __future__ import annotations

from gaoler.actors.policy.estimate import Expected
from gaoler.actors.policy.holdings import Held
from gaoler.actors.policy.slot_policy import SlotPolicy
from gaoler.actors.policy.slots import NS_PER_MS

# Those who would start first; the numbers of all that wait are beside them.
USUAL_ROWS = 50
MOST_ROWS = 1_000


def picture(policy: SlotPolicy, now_ns: int, rows: int = USUAL_ROWS) -> dict[str, object]:
    """`slots`, `memory_bytes`, `grading_slots`, `running`, `waiting`, `waiting_total`, `counters`.

    `rows`: how many of those who wait are shown, so that a long queue costs no more to look at
    than a short one.
    """
    rules, free = policy.rules, policy.holdings.free
    every = rules.room
    return {
        "slots": {"total": every.slots, "free": free.slots},
        "memory_bytes": {"total": every.memory_bytes, "free": free.memory_bytes},
        "grading_slots": {
            "total": rules.grading_slots,
            "held": every.grading_slots - free.grading_slots,
        },
        "running": [_running(policy, held, now_ns) for held in policy.holdings],
        "waiting": _waiting(policy, now_ns, rows),
        "waiting_total": {priority: len(line) for priority, line in policy.lines.items()},
        "counters": dict(policy.counters),
    }


def _running(policy: SlotPolicy, held: Held, now_ns: int) -> dict[str, object]:
    request = held.request
    return {
        "id": request.request_id,
        "priority": request.priority,
        "evaluation_id": request.evaluation_id,
        "slots": held.room.slots,
        "memory_bytes": held.room.memory_bytes,
        "elapsed_ms": (now_ns - held.granted_ns) // NS_PER_MS,
        "budget_ms": request.budget_ms,
        "deadline_in_ms": (held.deadline_ns - now_ns) // NS_PER_MS,
        "quarantined": not held.slots,
    }


def _waiting(policy: SlotPolicy, now_ns: int, rows: int) -> list[dict[str, object]]:
    """In the order in which they may expect to start; `position` is in the class."""
    places = dict.fromkeys(policy.lines, 0)
    shown = []
    for expected in policy.expected(now_ns, rows):
        priority = expected.waiting.request.priority
        places[priority] += 1
        shown.append(_row(policy, expected, places[priority], now_ns))
    return shown


def _row(policy: SlotPolicy, expected: Expected, position: int, now_ns: int) -> dict[str, object]:
    waiting = expected.waiting
    request = waiting.request
    row: dict[str, object] = {
        "id": request.request_id,
        "priority": request.priority,
        "evaluation_id": request.evaluation_id,
        "age_ms": (now_ns - waiting.since_ns) // NS_PER_MS,
        "aged": policy.aged(waiting, now_ns),
        "slots": request.slots,
        "position": position,
        "eta_ms": (expected.start_ns - now_ns) // NS_PER_MS,
        "expires_in_ms": (policy.expires_ns(waiting) - now_ns) // NS_PER_MS,
    }
    promise = policy.promise_to(request.ticket)
    if promise is not None and promise.start_ns is not None:
        row["promised_in_ms"] = (promise.start_ns - now_ns) // NS_PER_MS
    return row
