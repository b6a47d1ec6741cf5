"""The exit codes of every `gaoler` command.  `gaoler run` adds its own, see there."""

DONE = 0
FAILED = 1
BAD_USAGE = 2
BUSY = 3
UNAVAILABLE = 4
INTERRUPTED = 130  # as shells say it: 128 + SIGINT
