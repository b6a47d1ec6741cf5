"""The rules, without concurrency: plain classes and functions that are handed the time.

Nothing in here knows a thread, a clock, a socket or an actor, so the tests and the planner
drive the very same code with a virtual clock.
"""
