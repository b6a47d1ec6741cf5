"""The queue keeps its rules and its promises, whatever comes; see queue_machine."""

from __future__ import annotations

from hypothesis import settings

from tests.actors.queue_machine import NarrowMachine, QueueMachine

TestQueue = QueueMachine.TestCase
TestQueue.settings = settings(max_examples=500, stateful_step_count=50, deadline=None)

TestNarrowQueue = NarrowMachine.TestCase
TestNarrowQueue.settings = settings(max_examples=300, stateful_step_count=50, deadline=None)
