"""The four numbers of the time budget, written once.

The server, the client library and the planner compute the same budget from the same
request, so all three take these from here.  Milliseconds.
"""

WALL_TIMEOUT_MS = 10_000
BUDGET_BUILD_MS = 20_000
BUDGET_GRACE_MS = 500
BUDGET_UPLOAD_MS = 2_000
