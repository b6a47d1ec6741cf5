"""Structured logs: one JSON object a line on stderr, each with an `event`."""

from __future__ import annotations

import datetime
import json
import logging
import sys

# What every record has; whatever else is on one was given with `extra`.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}


class JsonFormatter(logging.Formatter):
    """time, level, event, and the fields that were given; a traceback where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        line: dict[str, object] = {
            "time": moment.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": getattr(record, "event", record.getMessage()),
        }
        if hasattr(record, "event"):
            line["message"] = record.getMessage()
        line |= {name: value for name, value in vars(record).items() if name not in _STANDARD}
        line |= line.pop("fields", {})  # type: ignore[call-overload]
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def configure(level: str) -> None:
    """Send everything to stderr as JSON lines.  Called by programs, never by an import."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(_LEVELS[level])


def note(event: str, **fields: object) -> None:
    """Log an event of the supervising process."""
    logging.getLogger("gaoler.serve").warning(event, extra={"fields": fields})
