"""Bits that flip on disks while nobody looks."""

from pathlib import Path


def flip_bit(folder: Path, mark: bytes) -> None:
    """Of the one entry that has the mark, in the entry logs below the folder."""
    count = 0
    for path in folder.rglob("*.log"):
        data = bytearray(path.read_bytes())
        at = data.find(mark)
        if at >= 0:
            data[at] ^= 1
            path.write_bytes(data)
            count += 1
    assert count == 1
