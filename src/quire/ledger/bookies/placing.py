"""Which bookies a client gives its ledgers to: a policy, and what it has to know of bookies to decide.

The policies themselves are pure (`quire.protocol.placement`). Here is what they look at: who is listed, who is in
quarantine, where each bookie stands, and, if wanted, how much room it has. Racks come from an operator's map. A map may
name hosts instead of ids, so the hosts that bookies published are looked up. Free space is asked of the bookies
themselves, rarely: it changes slowly, and being a little wrong costs nothing.

Invariants:
  NeverStuck       what a bookie does not tell is taken as unknown. No choice waits long for anybody's answer.
  CustomIsShown    the ledger's own metadata is shown to the policy at each choice, the first and all later ones.
"""

import math
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Literal, TypeAlias, get_args

from quire.errors import InvalidArgument
from quire.ledger.bookies.pool import BookiePool
from quire.ledger.bookies.racks import LiveRacks, racks_from_file, racks_from_metadata
from quire.ledger.bookies.survey import Survey
from quire.ledger.metrics import LedgerMetrics
from quire.metadata import Cluster
from quire.protocol.placement import (
    NO_BOOKIES,
    Adherence,
    BookieView,
    Placement,
    RandomPlacement,
    check_rack,
    opportunistic_ensemble,
)
from quire.protocol.placement_racks import RackAwarePlacement
from quire.runtime import Runtime, StrPath
from quire.telemetry.events import logger
from quire.types import BookieId, LedgerMetadata, Quorum
from quire.values import dataclass

PolicyName: TypeAlias = Literal["rack-aware", "random", "region-aware"]

_log = logger("ledger")


@dataclass(frozen=True, slots=True)
class PlacementSettings:
    """Which bookies new ledgers go to, and who replaces those that fail. The defaults are those of Apache's clients."""

    policy: PolicyName | Placement = "rack-aware"
    """`rack-aware`, `region-aware`, `random`, or a policy of your own, to which the rules below do not apply."""

    racks_file: StrPath | None = None
    """The map of racks as a file, read again when it changes. Without any map all bookies are in one rack."""

    racks_node: str | None = None
    """The same map as a node of the metadata store: its path there. All clients of a cluster can share it."""

    local_rack: str | None = None
    """Where this client stands: the first bookie of an ensemble is taken from there if possible."""

    min_racks_per_write_quorum: int = 2
    """How many racks each entry is on; never more than the write quorum. 1 turns the rule off."""

    enforce_racks: bool = False
    """Rather no ledger than one that breaks that rule. Otherwise it is logged and counted."""

    regions: tuple[str, ...] = ()
    """Regions to write to. Empty: all that the map names."""

    min_regions_for_durability: int = 2
    """No fewer regions hold an ack quorum of any entry."""

    enforce_regions_in_replace: bool = True
    """Rather no replacement than one that breaks the promise about regions."""

    weighted: bool = False
    """Prefer bookies with more free space, up to three times the median."""

    space_interval_s: float = 86_400.0
    """How often free space is asked for, when it matters. Apache's clients ask once a day."""

    space_retry_s: float = 60.0
    """When a bookie that did not tell is asked again."""

    opportunistic_striping: bool = False
    """Take a smaller ensemble, down to the write quorum, where there are too few bookies for a new ledger."""

    def __post_init__(self) -> None:
        if isinstance(self.policy, str) and self.policy not in get_args(PolicyName):
            raise InvalidArgument(
                f"there is no placement policy {self.policy!r}",
                hint=f"Choose one of {', '.join(get_args(PolicyName))}.",
            )
        if self.racks_file is not None and self.racks_node is not None:
            raise InvalidArgument("racks come from a file or from metadata, not from both", hint="Give one of them.")
        if self.local_rack is not None:
            check_rack(self.local_rack)
        if not (0 < self.space_interval_s < math.inf and 0 < self.space_retry_s < math.inf):
            raise InvalidArgument("free space is asked for after more than 0 s")
        self.new_policy()  # It has rules of its own, which are told at once.

    def new_policy(self) -> Placement:
        match self.policy:
            case "random":
                return RandomPlacement(weighted=self.weighted)
            case "rack-aware":
                return RackAwarePlacement(self.min_racks_per_write_quorum, self.enforce_racks, self.weighted)
            case "region-aware":
                from quire.protocol.placement_regions import RegionAwarePlacement  # Few have regions.

                return RegionAwarePlacement(
                    self.regions,
                    self.min_regions_for_durability,
                    self.enforce_regions_in_replace,
                    self.min_racks_per_write_quorum,
                    self.enforce_racks,
                    self.weighted,
                )
            case policy:
                return policy


class Placing:
    """Chooses bookies. Made by `open_placing`."""

    def __init__(
        self,
        runtime: Runtime,
        pool: BookiePool,
        settings: PlacementSettings,
        metrics: LedgerMetrics,
        racks: LiveRacks | None,
        survey: Survey,
    ) -> None:
        self._runtime, self._pool, self._settings, self._metrics = runtime, pool, settings, metrics
        self._racks, self._survey = racks, survey
        self.policy = settings.new_policy()

    async def new_ensemble(
        self, quorum: Quorum, custom: Mapping[str, bytes], *, exclude: frozenset[BookieId] = NO_BOOKIES
    ) -> tuple[BookieId, ...]:
        """The bookies of a new ledger; with opportunistic striping perhaps fewer than asked for.

        Waits until bookies are listed at all. Raises `NotEnoughBookies`.
        """
        await self._pool.wait_listed()
        await self._survey.wait_asked()
        view = self._view(())
        rng = self._runtime.rng
        if self._settings.opportunistic_striping:
            found = opportunistic_ensemble(self.policy, view, quorum, rng, exclude=exclude, custom=custom)
        else:
            found = self.policy.new_ensemble(view, quorum, rng, exclude=exclude, custom=custom)
        self._judge(view, Quorum(len(found), quorum.write, quorum.ack), found)
        return found

    def replacement(
        self,
        metadata: LedgerMetadata,
        ensemble: tuple[BookieId, ...],
        position: int,
        exclude: frozenset[BookieId],
    ) -> BookieId:
        """Who takes a place in an ensemble. Raises `NotEnoughBookies`."""
        view = self._view(ensemble)
        found = self.policy.replace(
            view, metadata.quorum, ensemble, position, self._runtime.rng, exclude=exclude, custom=metadata.custom
        )
        changed = (*ensemble[:position], found, *ensemble[position + 1 :])
        if exclude.isdisjoint(changed):  # Else others are still to be replaced, and the last choice tells.
            self._judge(view, metadata.quorum, changed)
        return found

    def keeps_rule(self, quorum: Quorum, ensemble: tuple[BookieId, ...]) -> bool:
        """Whether the policy's rule holds for an ensemble, whoever chose it. Without a map of racks any does: no rule
        about them was meant."""
        if self._racks is None and isinstance(self._settings.policy, str):
            return True
        return self.policy.adherence(self._view(ensemble), quorum, ensemble) is not Adherence.FAIL

    def _view(self, ensemble: Sequence[BookieId]) -> BookieView:
        pool, locations = self._pool, {}
        if self._racks is not None:
            locations = self._racks.current.locations({*pool.writable, *ensemble}, self._survey.hosts)
        return BookieView(
            pool.writable,
            locations,
            self._survey.free_bytes,
            pool.health.quarantined(self._runtime.clock.monotonic()),
            self._settings.local_rack,
        )

    def _judge(self, view: BookieView, quorum: Quorum, ensemble: Sequence[BookieId]) -> None:
        """Tell of an ensemble that breaks the rule. Without a map of racks no rule about them was meant."""
        if self._racks is None and isinstance(self._settings.policy, str):
            return
        if self.policy.adherence(view, quorum, ensemble) is Adherence.FAIL:
            self._metrics.on_placement_failed()
            racks = sorted({view.rack_of(bookie) for bookie in ensemble})
            _log.warning("placement.not_kept", bookies=list(ensemble), racks=racks)


@asynccontextmanager
async def open_placing(
    runtime: Runtime, cluster: Cluster, pool: BookiePool, settings: PlacementSettings, metrics: LedgerMetrics
) -> AsyncIterator[Placing]:
    """Know what there is to know for the block. Raises `InvalidArgument`, `DamagedMetadata` for a map that is none."""
    async with AsyncExitStack() as stack:
        racks: LiveRacks | None = None
        if settings.racks_file is not None:
            racks = await stack.enter_async_context(racks_from_file(runtime, settings.racks_file))
        elif settings.racks_node is not None:
            racks = await stack.enter_async_context(
                racks_from_metadata(cluster.store, runtime.clock, settings.racks_node)
            )
        survey = Survey(
            runtime.clock,
            pool,
            cluster.bookies if racks is not None else None,
            space_interval_s=settings.space_interval_s if settings.weighted else None,
            retry_s=settings.space_retry_s,
        )
        if survey.is_needed:
            await stack.enter_async_context(survey.running())
        yield Placing(runtime, pool, settings, metrics, racks, survey)
