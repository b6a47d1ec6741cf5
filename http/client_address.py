"""Where a service is, and the key that it wants."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import SplitResult, urlsplit

# As DNS has it; Python's resolver fails in a way of its own on what is longer or empty.
_BAD_LABEL = re.compile(r"[^.]{64}|\.\.|^\.")


class AddressError(ValueError):
    """The URL or the key cannot be used.  The text says why; it never holds the key."""


@dataclass(frozen=True, slots=True)
class Service:
    """The checked URL in parts, and the key."""

    secure: bool
    host: str
    port: int | None
    prefix: str  # of every path, without a slash at its end
    key: str | None = field(default=None, repr=False)

    @property
    def address(self) -> str:
        """As it is shown to people."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port is None else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        """Without a slash at its end, to be followed by a route."""
        return f"{'https' if self.secure else 'http'}://{self.address}{self.prefix}"


def service_at(url: str, key: str | None = None) -> Service:
    """The service at a URL such as http://127.0.0.1:8300.  Raises AddressError."""
    if "@" in url:  # not shown: it may be a secret
        raise AddressError("the URL must not hold a user or a password, nor any @")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as problem:
        raise AddressError(f"the URL {url!a}: {problem}") from None
    _check_url(url, parts)
    if key is not None and not (key and key.isprintable() and key == key.strip()):
        raise AddressError("the API key is empty or holds characters that no key has")
    host = parts.hostname or ""
    return Service(parts.scheme == "https", host, port, parts.path.rstrip("/"), key)


def _check_url(url: str, parts: SplitResult) -> None:
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise AddressError(f"the URL {url!a}: expected http://HOST[:PORT] or https://HOST[:PORT]")
    if not re.fullmatch(r"[!-~]+", url):
        raise AddressError(f"the URL {url!a}: only printable ASCII is allowed")
    if parts.query or parts.fragment:
        raise AddressError(f"the URL {url!a}: it must end with the path")
    if _BAD_LABEL.search(parts.hostname):
        raise AddressError(f"the URL {url!a}: no host has such a name")
