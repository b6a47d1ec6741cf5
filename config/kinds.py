"""The kinds of value that a setting can have: how one is read, shown and refused.

A raw value is what stood in the environment (always text) or in the TOML file (text, a
number or an array).  Each kind turns both into the same typed value.
"""

from __future__ import annotations

import ipaddress
import math
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

# More than any setting of its sort can be.
MOST_BYTES = 2**50
DAY_MS = 86_400_000

SHORTEST_KEY = 16  # characters; what is shorter can be guessed over the network
LONGEST_SHOWN = 80  # characters of a refused value in the error line
_NUMBER = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")

# What the sandbox makes by itself: a bind mount there would hide it or be hidden.
SANDBOX_OWN_PATHS = ("/proc", "/sys", "/dev", "/etc", "/box", "/tmp", "/run")


class SettingsError(Exception):
    """The service cannot start with these settings.  The text is one line for the operator."""


class NotAllowedError(Exception):
    """A kind refuses a raw value.  The text, where there is one, says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Kind:
    """How values of one setting are written."""

    allowed: str  # for the operator, completes "allowed is …"
    parse: Callable[[Any], Any]  # a raw value in; NotAllowedError where it is refused
    plain: Callable[[Any], Any]  # a parsed value as JSON or TOML would have it
    secret: bool = False  # never shown, not even in an error
    nothing: Any = None  # the value where nothing is set and there is no default


@dataclass(frozen=True, slots=True)
class Row:
    """One setting of the table."""

    kind: Kind
    default: Callable[[], Any]
    meaning: str
    aliases: tuple[str, ...] = ()  # other names in the environment, upper case
    environment_only: bool = False


def setting(
    kind: Kind,
    default: Any,
    meaning: str,
    *,
    aliases: tuple[str, ...] = (),
    environment_only: bool = False,
) -> Any:
    """A field of `Settings` that carries its row.

    `default` is a raw value, or a function that looks at the host and returns one; None
    means that nothing is set.  It is not evaluated before a `Settings` is made.
    """

    def value() -> Any:
        raw = default() if callable(default) else default
        return kind.nothing if raw is None else kind.parse(raw)

    row = Row(kind, value, meaning, aliases, environment_only)
    return field(default_factory=value, repr=not kind.secret, metadata={"row": row})


def refusal(name: str, raw: object, allowed: str) -> SettingsError:
    """The one line: variable, value, what is allowed."""
    return SettingsError(f"{name}={shown(raw)}: allowed is {allowed}")


def shown(raw: object) -> str:
    """A value as one line of printable text."""
    text = ascii(str(raw))[1:-1]
    return text if len(text) <= LONGEST_SHOWN else text[: LONGEST_SHOWN - 1] + "…"


def _itself(value: Any) -> Any:
    return value


# --- numbers ------------------------------------------------------------------------------


def integer(lowest: int, highest: int, unit: str = "") -> Kind:
    def parse(raw: object) -> int:
        value = _whole_number(raw)
        if not lowest <= value <= highest:
            raise NotAllowedError
        return value

    return Kind(f"an integer from {lowest} to {highest}{unit and ' ' + unit}", parse, _itself)


def _whole_number(raw: object) -> int:
    if isinstance(raw, int) and not isinstance(raw, bool):
        return raw
    if isinstance(raw, str) and re.fullmatch(r"-?[0-9]{1,19}", raw.strip(), re.ASCII):
        return int(raw)
    raise NotAllowedError


def number(lowest: float, highest: float) -> Kind:
    def parse(raw: object) -> float:
        value = _any_number(raw)
        if not (math.isfinite(value) and lowest <= value <= highest):
            raise NotAllowedError
        return value

    return Kind(f"a number from {lowest:g} to {highest:g}", parse, _itself)


def _any_number(raw: object) -> float:
    if isinstance(raw, str) and not _NUMBER.fullmatch(raw.strip()):
        raise NotAllowedError  # float() also reads other scripts' digits, and `1_0`
    if isinstance(raw, bool) or not isinstance(raw, str | int | float):
        raise NotAllowedError
    try:
        return float(raw)
    except OverflowError:
        raise NotAllowedError from None


def uid_range(lowest: int, highest: int) -> Kind:
    """`LOW-HIGH`, both included."""

    def parse(raw: object) -> tuple[int, int]:
        found = re.fullmatch(r"([0-9]{1,10})-([0-9]{1,10})", str(raw).strip(), re.ASCII)
        if not found:
            raise NotAllowedError
        low, high = int(found[1]), int(found[2])
        if not lowest <= low <= high <= highest:
            raise NotAllowedError
        return low, high

    def plain(value: tuple[int, int]) -> str:
        return f"{value[0]}-{value[1]}"

    return Kind(f"LOW-HIGH with {lowest} <= LOW <= HIGH <= {highest}", parse, plain)


# --- names --------------------------------------------------------------------------------


def choice(*names: str) -> Kind:
    def parse(raw: object) -> str:
        if raw not in names:
            raise NotAllowedError
        return str(raw)

    return Kind(" or ".join(names), parse, _itself)


def choices(*names: str) -> Kind:
    """One or more of `names`, separated by commas; a tuple without doubles."""

    def parse(raw: object) -> tuple[str, ...]:
        found = tuple(dict.fromkeys(_items(raw, r"[,\s]+")))
        if not found or not set(found) <= set(names):
            raise NotAllowedError
        return found

    return Kind(f"one or more of {', '.join(names)}, separated by commas", parse, list)


def user_name(*forbidden: str) -> Kind:
    def parse(raw: object) -> str:
        if not isinstance(raw, str) or not re.fullmatch(r"[a-z_][a-z0-9_-]{0,31}", raw):
            raise NotAllowedError
        if raw in forbidden:
            raise NotAllowedError
        return raw

    allowed = f"a user's name of its own, never {' or '.join(forbidden)}"
    return Kind(allowed, parse, _itself)


def address() -> Kind:
    """`HOST:PORT`, an IPv6 host in brackets; (host, port), port 0 for any free one."""

    def parse(raw: object) -> tuple[str, int]:
        pattern = r"(?:\[([\w:.%]+)\]|(\w[\w.-]*)):([0-9]{1,5})"
        found = re.fullmatch(pattern, raw, re.ASCII) if isinstance(raw, str) else None
        if not found or int(found[3]) > 65_535:
            raise NotAllowedError
        _need_sound_host(found[1], found[2])
        return found[1] or found[2], int(found[3])

    return Kind("HOST:PORT, an IPv6 host in brackets, a port from 0 to 65535", parse, host_and_port)


def _need_sound_host(in_brackets: str | None, bare: str | None) -> None:
    try:
        if in_brackets is not None:
            ipaddress.IPv6Address(in_brackets)
        elif bare is not None and re.fullmatch(r"[0-9.]+", bare):
            ipaddress.IPv4Address(bare)
    except ValueError:
        raise NotAllowedError from None


def host_and_port(value: tuple[str, int]) -> str:
    host, port = value
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def keys() -> Kind:
    """API keys, separated by commas; a tuple without doubles.  Never shown."""

    def parse(raw: object) -> tuple[str, ...]:
        found = tuple(dict.fromkeys(_items(raw, r"[,\s]+")))
        if not found:
            raise NotAllowedError("no key in it")
        for position, key in enumerate(found, start=1):
            _need_sound_key(position, key)
        return found

    def plain(value: tuple[str, ...]) -> str | None:
        return f"{len(value)} key{'s'[: len(value) != 1]}" if value else None

    allowed = f"keys of at least {SHORTEST_KEY} visible ASCII characters, separated by commas"
    return Kind(allowed, parse, plain, secret=True, nothing=())


def _need_sound_key(position: int, key: str) -> None:
    if len(key) < SHORTEST_KEY:
        raise NotAllowedError(f"key {position} has {len(key)} characters")
    if not re.fullmatch(r"[!-~]+", key):
        raise NotAllowedError(f"key {position} has a character that a header cannot carry")


# --- paths --------------------------------------------------------------------------------


def path(longest: int = 4_000) -> Kind:
    """An absolute path other than `/`, at most `longest` bytes."""

    def parse(raw: object) -> Path:
        found = _absolute(raw)
        if found == Path("/") or len(os.fsencode(found)) > longest:
            raise NotAllowedError
        return found

    return Kind(f"an absolute path without '..', at most {longest} bytes", parse, _path_text)


def _path_text(value: Path | None) -> str | None:
    return None if value is None else str(value)


def _absolute(raw: object) -> Path:
    if not isinstance(raw, str | Path):
        raise NotAllowedError
    found = Path(raw)
    # Printable: paths stand in error lines and in the arguments of other programs.
    if not found.is_absolute() or ".." in found.parts or not str(found).isprintable():
        raise NotAllowedError
    return found


def readonly_paths(usual: tuple[str, ...]) -> Kind:
    """Folders shown to every task: those of `usual` that exist, and those that are named.

    A named folder must exist; one of `usual` that does not is left out.
    """

    def parse(raw: object) -> tuple[Path, ...]:
        named = [_absolute(item) for item in _items(raw, r"[,:\s]+")]
        for folder in named:
            _need_folder_to_show(folder, usual)
        wanted = dict.fromkeys([*map(Path, usual), *named])
        return tuple(folder for folder in wanted if folder.is_dir())

    def plain(value: tuple[Path, ...]) -> list[str]:
        return [str(folder) for folder in value]

    allowed = (
        "absolute paths of existing folders, separated by commas, outside "
        f"{' '.join(SANDBOX_OWN_PATHS)}; they are added to {' '.join(usual)}"
    )
    return Kind(allowed, parse, plain)


def _need_folder_to_show(folder: Path, usual: tuple[str, ...]) -> None:
    if folder == Path("/") or any(folder.is_relative_to(own) for own in SANDBOX_OWN_PATHS):
        raise NotAllowedError(f"{folder} cannot be shown")
    if str(folder) not in usual and not folder.is_dir():
        raise NotAllowedError(f"{folder} is no folder")


def _items(raw: object, separator: str) -> Iterable[str]:
    """The items of a list: an array of texts, or one text cut at `separator`."""
    if isinstance(raw, str):
        return [item for item in re.split(separator, raw) if item]
    if isinstance(raw, list | tuple) and all(isinstance(item, str) for item in raw):
        return list(raw)
    raise NotAllowedError
