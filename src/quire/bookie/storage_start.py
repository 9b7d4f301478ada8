"""How a ledger storage starts: what an earlier life acknowledged is read back from the journals.

The checkpoint says from where on the journals are needed and how far the index must be. What is read back goes into the
write cache and the ledger table, as when it was new, and the first checkpoint of the new life makes it durable in logs
and index. Damage in a journal does not keep the storage from starting: its ledgers are in limbo then.
"""

from collections.abc import Sequence

from quire.bookie.journal import Damage, JournalMark
from quire.bookie.journals import Replays
from quire.bookie.ledger_table import LedgerTable
from quire.bookie.write_cache import WriteCache
from quire.codec.checkpoint import Checkpoint, decode_checkpoint
from quire.codec.entry import stored_ids, stored_lac
from quire.codec.journal import EXPLICIT_LAC, FENCE, LEDGER_KEY, Record
from quire.errors import DamagedJournal, WrongDisk
from quire.runtime import Disk, read_file
from quire.types import EntryId, LedgerId


async def read_checkpoint(disk: Disk, folder: str, *, journals: int, is_new: bool) -> Checkpoint | None:
    """The checkpoint of the last life; None if there was none. Raises `DamagedJournal`, `WrongDisk`."""
    if not await disk.exists(f"{folder}/checkpoint"):
        if is_new:
            return None
        raise DamagedJournal(
            f"{folder!r} has no checkpoint, and is not new",
            hint="Restore the bookie's folders together: without it acknowledged entries may be missing.",
        )
    checkpoint = decode_checkpoint(await read_file(disk, f"{folder}/checkpoint"))
    if len(checkpoint.journals) != journals:
        raise WrongDisk(
            f"{folder!r} was written with {len(checkpoint.journals)} journals, not {journals}",
            hint="Start the bookie with the journal directories it had: they hold acknowledged entries.",
        )
    return checkpoint


async def bring_back(
    disk: Disk, folders: Sequence[str], checkpoint: Checkpoint | None, table: LedgerTable, write_cache: WriteCache
) -> tuple[list[JournalMark], list[list[Damage]]]:
    """Take in every record behind the checkpoint. Returns where each journal ended, and what was damaged in it."""
    start = [JournalMark(0, 0, 0)] * len(folders)
    if checkpoint is not None:
        start = [JournalMark(*place) for place in checkpoint.journals]
    replays = Replays(disk, folders, start=start)
    async for record in replays.records():
        _take_in(record, table, write_cache)
    return replays.ends, replays.damages


def _take_in(record: Record, table: LedgerTable, write_cache: WriteCache) -> None:
    ledger_id, body = LedgerId(record.ledger_id), bytes(record.body)
    ledger = table.find(ledger_id)
    if record.entry_id == LEDGER_KEY:
        if ledger is None:
            table.create(ledger_id, body, revive=True)
    elif ledger is None:
        return  # Its key was in a group that cannot be read, or the ledger was deleted since.
    elif record.entry_id >= 0:
        entry_id, lac = EntryId(record.entry_id), stored_ids(body)[2]
        write_cache.put(ledger_id, entry_id, body)
        ledger.on_entry(entry_id, lac)
    elif record.entry_id == FENCE:
        ledger.gate.fenced = True
        table.on_change(ledger_id)
    elif record.entry_id == EXPLICIT_LAC:
        ledger.explicit_lac = body
        ledger.raise_lac(stored_lac(body)[1])
        table.on_change(ledger_id)
