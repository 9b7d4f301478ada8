"""Changes of metadata that meet others on their way, or whose answers are lost: read, decide, write, and look again.

Invariant: an error that says "nothing was written" is raised only if no answer was lost before it.
"""

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from quire.errors import MetadataOutcomeUnknown, MetadataUnavailable, QuireError, SessionExpired, Unavailable
from quire.metadata import MetadataStore

T = TypeVar("T")

_ATTEMPTS_MAX: Final = 100


async def settle(
    store: MetadataStore,
    attempt: Callable[[MetadataOutcomeUnknown | None], Awaitable[T]],
    *,
    races: tuple[type[QuireError], ...],
    shown: str,
) -> T:
    """Call `attempt` until it returns. It reads what there is, decides from that, and writes at most once.

    It is called again when it raises one of `races`, the session ends, or an answer is lost. Then it gets the lost
    answer, and has to find out by reading whether the write happened. `shown` says what the attempts are about.
    """
    doubt: MetadataOutcomeUnknown | None = None
    for attempts in range(_ATTEMPTS_MAX):
        try:
            if attempts:
                await store.sync()
            return await attempt(doubt)
        except MetadataOutcomeUnknown as unknown:
            if unknown is doubt:
                raise  # The attempt found no way to tell.
            doubt = unknown
        except races:
            continue
        except SessionExpired:
            continue  # It refused this write, and says nothing of an earlier one.
        except Unavailable as error:
            if doubt is None:
                raise
            raise doubt from error
    raise doubt or MetadataUnavailable(f"{shown}: others change it as fast as it is read")
