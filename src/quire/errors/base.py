"""The root of the error tree, and what stands outside of it."""

import enum
from typing import ClassVar, NoReturn


class Outcome(enum.Enum):
    """What a failed call did to the log: callers need this more than the cause."""

    NOT_APPLIED = enum.auto()  # Nothing was stored; trying again cannot duplicate.
    UNKNOWN = enum.auto()  # It may be stored; read back before trying again.


class QuireError(Exception):
    """The root of everything that Quire raises on purpose."""

    retryable: ClassVar[bool] = False
    outcome: ClassVar[Outcome] = Outcome.NOT_APPLIED
    hint: str = ""

    def __init__(self, message: str, *, hint: str = "", **facts: object) -> None:
        super().__init__(message)
        self.facts = facts  # Structured, so that logs and the RPC boundary need not parse prose.
        if hint:
            self.hint = hint


class InvariantBroken(Exception):
    """A promise that the code makes to itself does not hold. Never caught by retry loops: this is a bug."""


def invariant(condition: bool, message: str, **facts: object) -> None:
    """Raise `InvariantBroken` unless `condition` holds. Stays on in production, also under `python -O`."""
    if not condition:
        _broken(message, facts)


def _broken(message: str, facts: dict[str, object]) -> NoReturn:
    detail = ", ".join(f"{name}={value!r}" for name, value in facts.items())
    raise InvariantBroken(f"{message} ({detail})" if detail else message)
