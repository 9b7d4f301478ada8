"""Say of an embedded log that its disk is full: the bookies are in this process, so what they lack is known here."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from quire.errors import DiskFull, NotEnoughBookies
from quire.ledger.bookies.placing import PlacementSettings, PolicyName
from quire.protocol.placement import NO_BOOKIES, NO_CUSTOM, Adherence, BookieView, Chance, Placement
from quire.types import BookieId, Quorum

if TYPE_CHECKING:
    from quire.bookie.bookie import Bookie


def telling_of_full_disks(
    placement: PolicyName | Placement | PlacementSettings, bookies: Sequence["Bookie"]
) -> PlacementSettings:
    """The same choices, with errors that say why there is no bookie to choose."""
    settings = placement if isinstance(placement, PlacementSettings) else PlacementSettings(policy=placement)
    return replace(settings, policy=_Telling(settings.new_policy(), bookies))


class _Telling:
    def __init__(self, policy: Placement, bookies: Sequence["Bookie"]) -> None:
        self._policy, self._bookies = policy, bookies

    def new_ensemble(
        self,
        view: BookieView,
        quorum: Quorum,
        rng: Chance,
        *,
        exclude: frozenset[BookieId] = NO_BOOKIES,
        custom: Mapping[str, bytes] = NO_CUSTOM,
    ) -> tuple[BookieId, ...]:
        full = {bookie.bookie_id: "; ".join(bookie.reasons) for bookie in self._bookies if bookie.is_readonly}
        try:
            return self._policy.new_ensemble(view, quorum, rng, exclude=exclude.union(full), custom=custom)
        except NotEnoughBookies as error:
            if not full or not exclude <= full.keys():
                raise
            raise DiskFull(f"nothing new can be stored: {'; '.join(full.values())}", bookies=sorted(full)) from error

    def replace(
        self,
        view: BookieView,
        quorum: Quorum,
        ensemble: Sequence[BookieId],
        index: int,
        rng: Chance,
        *,
        exclude: frozenset[BookieId] = NO_BOOKIES,
        custom: Mapping[str, bytes] = NO_CUSTOM,
    ) -> BookieId:
        try:
            return self._policy.replace(view, quorum, ensemble, index, rng, exclude=exclude, custom=custom)
        except NotEnoughBookies as error:
            full = [reason for bookie in self._bookies if bookie.is_readonly for reason in bookie.reasons]
            if not full:
                raise
            raise NotEnoughBookies(f"nothing new can be stored: {'; '.join(full)}", hint=DiskFull.hint) from error

    def adherence(self, view: BookieView, quorum: Quorum, ensemble: Sequence[BookieId]) -> Adherence:
        return self._policy.adherence(view, quorum, ensemble)
