"""Who may look into a data folder."""

from pathlib import Path

_INDEX = "index"  # Native code makes the files in it, in a folder that is closed to others.


def shared_with_others(folder: Path) -> list[str]:
    """Files and folders of a data folder, and itself, that others than their owner may use."""
    everything = [folder, *folder.rglob("*")]
    found = [each for each in everything if _INDEX not in each.relative_to(folder).parts[:-1]]
    return [f"{each}: {each.stat().st_mode & 0o777:o}" for each in found if each.stat().st_mode & 0o077]
