"""A bookie of a local cluster: what `quire bookie run` runs. See `quire.app.child_process`."""

import sys
from pathlib import Path
from typing import Any

from quire.app.bookie import BookieOptions, run_bookie
from quire.app.child_process import run_child


def parse(value: dict[str, Any]) -> BookieOptions:
    """The options, as `quire.app.local_services` writes them."""
    return BookieOptions(
        value["metadata"],
        Path(value["data"]),
        listen=value["listen"],
        id=value["id"],
        moves_with=Path(value["moves_with"]),
        overrides=tuple(value["overrides"]),
    )


if __name__ == "__main__":
    sys.exit(run_child("bookie", lambda options: run_bookie(parse(options))))
