"""Bearer tokens: whoever calls a proxy that asks for them proves by one who it is.

    quire-1.<id>.<secret>        in the header `authorization: Bearer …`

A proxy knows salted hashes of them, from a file with one JSON object a line, which is read again when it changes:

    {"id": "a1b2c3d4", "principal": "billing", "salt": "<hex>", "sha256": "<hex>", "expires": 1767225600}

Secrets are random and long, so that a fast hash is enough. `expires` is in seconds since 1970; null for never.

Invariants:
  SecretsStayOutside   neither the file, nor an error, nor a log has a secret.
  StaleIsRefused       from its expiry on, or once it is out of the file, a token opens no call; and calls that are open
                       end soon, once what is under way is answered.
"""

import hashlib
import hmac
import json
from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple

from quire.errors import InvalidArgument, NotAuthenticated, QuireError, RequestDenied

Token = str | Callable[[], str]
"""What a client shows, or a function that is asked for it before each call: one that expires is replaced there."""

_HINT: Final = (
    "Programs give a token as ProxyClientSettings(token=…), commands in $QUIRE_TOKEN, HTTP clients as "
    "`authorization: Bearer …`."
)
_PREFIX: Final = "quire-1"
_SECRET_BYTES: Final = 32
_SALT_BYTES: Final = 16
_ID_BYTES: Final = 6
_TOKEN_CHARACTERS_MAX: Final = 256


class KnownToken(NamedTuple):
    """One line of the file."""

    id: str
    principal: str
    salt: bytes
    digest: bytes
    expires_s: float | None

    def line(self) -> str:
        """As it stands in the file."""
        return json.dumps(
            {
                "id": self.id,
                "principal": self.principal,
                "salt": self.salt.hex(),
                "sha256": self.digest.hex(),
                "expires": self.expires_s,
            }
        )


def new_token(principal: str, *, draw: Callable[[int], bytes], expires_s: float | None) -> tuple[str, KnownToken]:
    """A token, and what a proxy has to know of it. `draw` gives so many random bytes."""
    id, secret, salt = draw(_ID_BYTES).hex(), draw(_SECRET_BYTES).hex(), draw(_SALT_BYTES)
    return f"{_PREFIX}.{id}.{secret}", KnownToken(id, principal, salt, _digest(salt, secret), expires_s)


def parse_tokens(text: str) -> dict[str, KnownToken]:
    """By id. Raises `InvalidArgument`, which says in which line something is wrong."""
    found: dict[str, KnownToken] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            try:
                known = _known(json.loads(line))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise InvalidArgument(
                    f"line {number} of the tokens is none", hint="Make one with `quire proxy token`."
                ) from error
            found[known.id] = known
    return found


def _known(value: dict[str, Any]) -> KnownToken:
    expires = value["expires"]
    return KnownToken(
        str(value["id"]),
        str(value["principal"]),
        bytes.fromhex(value["salt"]),
        bytes.fromhex(value["sha256"]),
        None if expires is None else float(expires),
    )


def _digest(salt: bytes, secret: str) -> bytes:
    return hashlib.sha256(salt + secret.encode()).digest()


class Tokens:
    """The tokens that count now."""

    def __init__(self, known: Iterable[KnownToken], wall_s: Callable[[], float]) -> None:
        self._known = {each.id: each for each in known}
        self._wall_s = wall_s

    def replace(self, known: dict[str, KnownToken]) -> None:
        self._known = known

    def check(self, authorization: str) -> KnownToken:
        """The token that a header has. Raises `NotAuthenticated`; its fact `cause` is what to count."""
        scheme, _, token = authorization.partition(" ")
        if not token:
            raise NotAuthenticated("this proxy asks for a token, and the call has none", hint=_HINT, cause="no_token")
        unknown = NotAuthenticated("the token of the call is not known here", hint=_HINT, cause="unknown_token")
        prefix, _, rest = token.strip().partition(".")
        id, _, secret = rest.partition(".")
        known = self._known.get(id) if scheme.lower() == "bearer" and prefix == _PREFIX else None
        if known is None or len(token) > _TOKEN_CHARACTERS_MAX:
            raise unknown
        if not hmac.compare_digest(_digest(known.salt, secret), known.digest):
            raise unknown
        if self._is_over(known):
            raise NotAuthenticated(
                f"the token of {known.principal!r} has expired",
                hint="Get another one from whoever runs the proxies.",
                cause="stale_token",
            )
        return known

    def problem_of(self, known: KnownToken) -> QuireError | None:
        """Why a call that was opened with this token may not go on, if it may not."""
        if self._known.get(known.id) != known:
            return RequestDenied(f"the token of {known.principal!r} was taken back")
        if self._is_over(known):
            return NotAuthenticated(f"the token of {known.principal!r} has expired")
        return None

    def _is_over(self, known: KnownToken) -> bool:
        return known.expires_s is not None and self._wall_s() >= known.expires_s


class Permit:
    """What an open call was opened with; and why it may not go on, once that is so."""

    __slots__ = ("known", "problem")

    def __init__(self, known: KnownToken) -> None:
        self.known = known
        self.problem: QuireError | None = None
