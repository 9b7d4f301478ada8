"""`quire rebalance`: make a plan of moves from what is there, and carry it out, one move at a time.

A move copies first: the taker acknowledges every entry of its place, then one compare-and-swap puts it into the
ledger's metadata, and only then the old copy is nobody's. Readers that know the old place read there as long as it
lasts. At no moment an entry has fewer copies than before.

The lock of the ledger keeps the taker from tidying up what is not in the metadata yet. It goes with our session. So the
work ends when the session does, and the metadata is changed in one transaction with a look at the lock.

What is done is written down beside the plan, a line for each move, below one that says which plan it is about. So the
work may be interrupted at any point, and goes on where it stopped; and no other plan of that name is taken for made.
Each move is looked at again before it is made: a ledger that was deleted meanwhile, or repaired, or a taker that is
full by now, is passed by.
"""

import asyncio
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, TextIO

from quire.app.inventory import Operations, ask_spaces, take_inventory
from quire.app.repairing import marks_of
from quire.errors import InvalidArgument, MetadataUnavailable, NoSuchLedger, QuireError
from quire.ledger.bookies.racks import RackMap, parse_rack_lines
from quire.ledger.repair.fragment_check import plain_reader
from quire.ledger.repair.fragment_copy import Copied, copy_entries
from quire.metadata import StoredLedger
from quire.metadata.underreplication import LedgerLock, Underreplication
from quire.protocol.fragments import Span, spans_of
from quire.protocol.placement_racks import RackAwarePlacement
from quire.protocol.rebalancing import TOLERANCE, Level, Move, Plan, holdings_of, plan_moves
from quire.protocol.repair import Exchange, exchanged
from quire.replication.pacing import Pace
from quire.replication.sessions import in_session
from quire.types import BookieId, EntryId, LedgerId, LedgerState
from quire.values import dataclass

_VERSION: Final = 1
_LOCK_TRIES: Final = 20
_LOCK_PAUSE_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Made:
    """What came of a move. `is_done` is also true of one that nobody needs any more."""

    number: int
    is_done: bool
    told: str
    copied: Copied = Copied()


# --- The plan


async def make_plan(
    operations: Operations,
    *,
    racks: RackMap | None = None,
    racks_min: int = 2,
    bytes_max: int | None = None,
    tolerance: float = TOLERANCE,
) -> Plan:
    """What to move, from what the metadata and the bookies say now. Changes nothing."""
    inventory = await take_inventory(operations, with_lengths=False)
    spaces = await ask_spaces(operations, inventory)
    holdings = [held for ledger, stored in inventory.ledgers.items() for held in holdings_of(ledger, stored.metadata)]
    locations = {} if racks is None else racks.locations(space.bookie for space in spaces)
    return plan_moves(
        spaces,
        holdings,
        policy=RackAwarePlacement(racks_min if racks is not None else 1),
        locations=locations,
        bytes_max=bytes_max,
        tolerance=tolerance,
    )


def read_racks(path: str) -> RackMap:
    """Raises `InvalidArgument`."""
    try:
        return parse_rack_lines(Path(path).read_text(), name=path)
    except OSError as error:
        raise InvalidArgument(f"{path!r} cannot be read: {error.strerror}") from error


async def write_plan(operations: Operations, plan: Plan, path: Path) -> None:
    """Raises `InvalidArgument` if the file cannot be written, or is there already: its moves may be under way. So may
    those of an older plan of this name, if it was written down that some of them are made."""
    if (diary := _diary_of(path)).exists():
        raise InvalidArgument(
            f"{str(diary)!r} tells which moves of an older plan are made",
            hint="Give the plan another name, or delete that file, too, if nobody carries out the old plan any more.",
        )
    told = {
        "version": _VERSION,
        "instance_id": await operations.cluster.instance_id(),
        "made_at_ms": operations.runtime.clock.wall_ms(),
        "bytes": plan.bytes,
        "before": [asdict(level) for level in plan.before],
        "after": [asdict(level) for level in plan.after],
        "moves": [{**move._asdict(), "firsts": list(move.firsts)} for move in plan.moves],
    }
    try:
        with path.open("x") as file:
            json.dump(told, file, indent=1)
            file.write("\n")
    except FileExistsError:
        raise InvalidArgument(
            f"{str(path)!r} is there already",
            hint=f"Give the plan another name, or delete the old one, with {_diary_of(path).name} if there is one.",
        ) from None
    except OSError as error:
        raise InvalidArgument(f"{str(path)!r} cannot be written: {error.strerror}") from error


async def read_plan(operations: Operations, path: Path) -> Plan:
    """Raises `InvalidArgument` for what is no plan, or one of another cluster."""
    try:
        told: dict[str, Any] = json.loads(await asyncio.to_thread(path.read_text))
        if told["version"] != _VERSION:
            raise InvalidArgument(f"{str(path)!r} is a plan of version {told['version']}, which is not known here")
        moves = [
            Move(
                LedgerId(int(each["ledger_id"])),
                BookieId(each["source"]),
                BookieId(each["target"]),
                tuple(EntryId(int(first)) for first in each["firsts"]),
                int(each["bytes"]),
            )
            for each in told["moves"]
        ]
        levels = [tuple(Level(**level) for level in told[name]) for name in ("before", "after")]
    except OSError as error:
        raise InvalidArgument(f"{str(path)!r} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidArgument(f"{str(path)!r} is no plan: {error}", hint="Make one: `quire rebalance plan`.") from error
    if told.get("instance_id") != await operations.cluster.instance_id():
        raise InvalidArgument(f"{str(path)!r} is a plan for another cluster", hint="Give its metadata with --metadata.")
    return Plan(tuple(moves), *levels)


# --- Carrying it out


async def run_plan(
    operations: Operations,
    plan: Plan,
    path: Path,
    *,
    bytes_per_s: float,
    on_made: Callable[[Made], None] = lambda _: None,
) -> list[Made]:
    """Make all moves that are not made yet. One that fails does not keep the others; run it again for those.

    Raises what the metadata store raises when it cannot be reached, and `InvalidArgument` if what is written down as
    made are moves of another plan.
    """
    pace, marks = Pace(operations.runtime.clock, bytes_per_s), marks_of(operations)
    made: list[Made] = []
    with _diary(plan, path) as (done, file):
        for number, move in enumerate(plan.moves):
            if number in done:
                continue
            try:
                result = await _make(operations, marks, number, move, pace)
            except NoSuchLedger:
                result = Made(number, True, "the ledger is deleted by now")
            except MetadataUnavailable:
                raise
            except QuireError as error:
                result = Made(number, False, str(error))
            if result.is_done:
                file.write(json.dumps({"move": number, "told": result.told}) + "\n")
                file.flush()
            made.append(result)
            on_made(result)
    return made


def _diary_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.done")


@contextmanager
def _diary(plan: Plan, path: Path) -> Iterator[tuple[frozenset[int], TextIO]]:
    """Which moves are made, and where to write down those that are made now. A half line is that of a crash."""
    diary, name = _diary_of(path), _name_of(plan)
    done: set[int] = set()
    is_ours = False
    for line in diary.read_text().splitlines() if diary.exists() else ():
        try:
            told = json.loads(line)
            if "plan" in told:
                is_ours = told["plan"] == name
            else:
                done.add(int(told["move"]))
        except (ValueError, KeyError, TypeError):
            continue
        if not is_ours:
            raise InvalidArgument(
                f"{str(diary)!r} tells which moves of another plan are made",
                hint=f"Give {str(path)!r} another name, or delete that file if the other plan is of no use any more.",
            )
    with diary.open("a") as file:
        if file.tell():
            file.write("\n")  # Behind a half line, if there is one.
        if not is_ours:
            file.write(json.dumps({"plan": name}) + "\n")
            file.flush()
        yield frozenset(done), file
        os.fsync(file.fileno())


def _name_of(plan: Plan) -> str:
    """The same for the same moves in the same order, and for no others."""
    return hashlib.sha256(json.dumps(plan.moves).encode()).hexdigest()


async def _make(operations: Operations, marks: Underreplication, number: int, move: Move, pace: Pace) -> Made:
    """One move, with the ledger locked against workers, and against bookies that tidy up what nobody names.

    A bookie that tidies up after an earlier move has the lock for a moment: then it is asked for again.
    """
    for _ in range(_LOCK_TRIES):
        made = await _make_locked(operations, marks, number, move, pace)
        if made is not None:
            return made
        await operations.runtime.clock.sleep(_LOCK_PAUSE_S)
    return Made(number, False, "somebody repairs the ledger just now")


async def _make_locked(
    operations: Operations, marks: Underreplication, number: int, move: Move, pace: Pace
) -> Made | None:
    """None if somebody else has the lock. Raises `SessionExpired` or `LockLost` if it is lost before the end."""
    made: Made | None = None

    async def move_it() -> None:
        nonlocal made
        made = await _make_under_lock(operations, marks, number, move, pace)

    await in_session(operations.cluster.store, move_it)
    return made


async def _make_under_lock(
    operations: Operations, marks: Underreplication, number: int, move: Move, pace: Pace
) -> Made | None:
    total = Copied()

    def on_batch(copied: Copied) -> None:
        nonlocal total
        total = Copied(
            total.entries + copied.entries,
            total.read_bytes + copied.read_bytes,
            total.written_bytes + copied.written_bytes,
        )

    await marks.prepare()
    async with marks.locked(move.ledger_id) as lock:
        if lock is None:
            return None
        stored = await operations.cluster.ledgers.read(move.ledger_id)
        reason = await _obstacle(operations, stored, move)
        if reason is not None:
            return Made(number, False, reason)
        spans = [
            span for span in spans_of(stored.metadata, stored.metadata.last_entry_id) if move.source in span.bookies
        ]
        reader = plain_reader(operations.ledgers, stored)
        for span in spans:
            if move.target in span.bookies:
                return Made(number, True, f"{move.target} has a copy by now", total)
            place = span.bookies.index(move.source)
            await copy_entries(
                operations.ledgers, reader, span, {place: move.target}, before_batch=pace.pay, on_batch=on_batch
            )
            reader.adopt(await _publish(operations, move, span, place, lock))
    return Made(number, True, "moved" if spans else f"{move.source} has no copy any more", total)


async def _obstacle(operations: Operations, stored: StoredLedger, move: Move) -> str | None:
    listing = await operations.cluster.bookies.listing()
    if stored.metadata.state is not LedgerState.CLOSED:
        return "the ledger is not closed"
    if move.target not in listing.writable:
        return f"{move.target} is not writable just now"
    return None


async def _publish(operations: Operations, move: Move, span: Span, place: int, lock: LedgerLock) -> StoredLedger:
    """The copy is whole: now the metadata may say so, unless somebody else changed this fragment meanwhile, or the lock
    is lost, and perhaps the copy with it."""
    ledgers = operations.cluster.ledgers
    change = {place: Exchange(move.source, move.target)}
    return await ledgers.update(
        await ledgers.read(move.ledger_id),
        lambda metadata: exchanged(metadata, span.first, change),
        guard=lock.guard,
    )
