"""The numbers that a server and its clients must agree on, written once.  Milliseconds.

The server, the client library and the planner compute the same budget from the same
request, so all three take the first four from here.  A client needs the others to know how
long an answer may take.
"""

# The budget of a request.
WALL_TIMEOUT_MS = 10_000
BUDGET_BUILD_MS = 20_000
BUDGET_GRACE_MS = 500
BUDGET_UPLOAD_MS = 2_000

# The most that it can be: interactive, grading, project.
RUNNER_TIMEOUT_MS = 30_000
OVERALL_TIMEOUT_MS = 300_000
RUNNER_PROJECT_TIMEOUT_MS = 300_000

# What comes to it: waiting for slots, and a sandbox that does not end in time.
QUEUE_ALLOWANCE_INTERACTIVE_MS = 20_000
QUEUE_ALLOWANCE_GRADING_MS = 60_000
RUNNER_TTL_SLACK_MS = 2_000
