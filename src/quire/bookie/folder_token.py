"""What tells a folder of this machine from every other folder anywhere, as long as the machine runs.

A bookie writes it into its registration. One that starts anew, holds the lock of the same folder, and finds the same
token in a registration knows that the process behind it is dead: it need not wait for the metadata store to notice. A
copy of the folder has another inode, another machine has another boot id.
"""

import os
from pathlib import Path
from typing import Final

from quire.bookie.identity import LOCK

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


def folder_token(folder: str) -> str:
    """The token of a data folder whose lock is held."""
    stat = os.stat(f"{folder}/{LOCK}")
    return f"{_BOOT_ID.read_text().strip()}:{stat.st_dev:x}:{stat.st_ino:x}"
