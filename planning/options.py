"""How an option of the planner is described, and how raw values become typed ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from gaoler.config.kinds import Kind, NotAllowedError, refusal


@dataclass(frozen=True, slots=True)
class Option:
    """One option: on the command line `--its-name`, in a scenario file `its_name`."""

    group: str  # under which heading the help has it
    kind: Kind
    default: object  # a raw value; None: that of `setting`, or nothing at all
    meaning: str
    setting: str | None  # the service's setting that the default is taken from
    written: str  # how a value is written, for the help


def option(
    group: str,
    kind: Kind,
    default: object,
    meaning: str,
    *,
    setting: str | None = None,
    written: str = "X",
) -> Any:
    """A field of `Scenario` that carries its option."""
    return field(metadata={"option": Option(group, kind, default, meaning, setting, written)})


def options(described: type) -> dict[str, Option]:
    """Every option of a class of options, by its name, in order."""
    return {each.name: each.metadata["option"] for each in fields(described)}


def parsed(
    table: Mapping[str, Option], raw: Mapping[str, object], prefix: str = ""
) -> dict[str, Any]:
    """Typed values.  SettingsError with one line that names what is wrong.

    `prefix` is what stands before a name where the value was written: `--`, or the file.
    """
    values = {}
    for name, value in raw.items():
        written = f"{prefix}{name.replace('_', '-') if prefix == '--' else name}"
        if name not in table:
            raise refusal(written, value, "an option that `gaoler plan --help` names")
        values[name] = _value(table[name].kind, written, value)
    return values


def _value(kind: Kind, written: str, raw: object) -> Any:
    try:
        return kind.parse(raw)
    except NotAllowedError as problem:
        allowed = f"{kind.allowed}; {problem}" if str(problem) else kind.allowed
        raise refusal(written, raw, allowed) from None
