"""What a new ledger may be, when its bookies suffice, and how to say that it did not come about."""

from collections.abc import Collection, Mapping, Sequence

from quire.errors import InvalidArgument, MetadataOutcomeUnknown, NotEnoughBookies, QuireError
from quire.ledger.deadlines import Deadline
from quire.protocol.quorum import write_sets
from quire.types import BookieId, DigestType, LedgerId, Quorum


def checked_quorum(ensemble: int, write: int, ack: int) -> Quorum:
    if ack < 1:
        raise InvalidArgument("an ack quorum of 0 would acknowledge what nobody has")
    return Quorum(ensemble, write, ack)


def digest_type(digest: str | DigestType) -> DigestType:
    if isinstance(digest, DigestType):
        return digest
    try:
        return DigestType[digest.upper()]
    except KeyError:
        raise InvalidArgument(
            f"there is no digest {digest!r}",
            hint=f"Choose one of {', '.join(each.name.lower() for each in DigestType)}.",
        ) from None


def reaches_acks(quorum: Quorum, bookies: Sequence[BookieId], failed: Collection[BookieId]) -> bool:
    """Whether every entry finds an ack quorum among those that did not fail."""
    sized = Quorum(len(bookies), quorum.write, quorum.ack)
    return all(sum(bookies[p] not in failed for p in window) >= quorum.ack for window in write_sets(sized))


def unreached_error(quorum: Quorum, failed: Mapping[BookieId, QuireError]) -> QuireError:
    told, hint = "", ""
    if failed:
        bookie, why = list(failed.items())[-1]
        told, hint = f", and {len(failed)} cannot be reached. Of bookie {bookie} we know: {why}", why.hint
    return NotEnoughBookies(
        f"no ledger was created: {quorum.ensemble} bookies are needed{told}",
        hint=hint,
        needed=quorum.ensemble,
        unreachable=sorted(failed),
    )


def uncreated_error(with_id: LedgerId | None, deadline: Deadline) -> QuireError:
    which = "a new ledger" if with_id is None else f"ledger {with_id}"
    return MetadataOutcomeUnknown(
        f"whether {which} was created is not known: no answer came within {deadline.timeout_s:g} s",
        hint="Nothing was written to it. An empty ledger does no harm: delete it if it is there.",
        ledger_id=with_id,
    )
