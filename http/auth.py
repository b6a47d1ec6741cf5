"""API keys: which one a request carries, found without telling how close a guess came."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable

from gaoler.http.errors import Problem

_ID_DIGITS = 12


class Keys:
    """The configured keys.

    Only their digests are kept: digests are all of one length, so a comparison cannot show
    how long a key is, and nothing that is logged or dumped has a key in it.
    """

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = tuple(_digest(key.encode()) for key in keys)

    def identify(self, headers: Iterable[tuple[bytes, bytes]]) -> str:
        """The id of the key that the request carries, "" where no keys are configured.

        `headers` are ASGI's, names in lower case.  Raises Problem 401 where no key fits.
        """
        if not self._digests:
            return ""
        found = ""
        for presented in _presented(headers):
            digest = _digest(presented)
            for known in self._digests:
                # No early exit: the time taken must not depend on which key it was.
                if hmac.compare_digest(digest, known):
                    found = known.hex()[:_ID_DIGITS]
        if not found:
            raise Problem(
                "unauthorized",
                "send a key as Authorization: Bearer KEY or as X-API-Key: KEY",
                headers={"WWW-Authenticate": 'Bearer realm="gaoler"'},
            )
        return found


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def _presented(headers: Iterable[tuple[bytes, bytes]]) -> Iterable[bytes]:
    for name, value in headers:
        if name == b"x-api-key":
            yield value.strip()
        elif name == b"authorization":
            scheme, _, rest = value.strip().partition(b" ")
            if scheme.lower() == b"bearer":
                yield rest.strip()
