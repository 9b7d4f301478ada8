"""Autorecovery of a local cluster: what `quire autorecovery run` runs. See `quire.app.child_process`."""

import sys
from typing import Any

from quire.app.autorecovery import AutorecoveryOptions, run_autorecovery
from quire.app.child_process import run_child


def parse(value: dict[str, Any]) -> AutorecoveryOptions:
    """The options, as `quire.app.local_services` writes them. What others listen with serves as the admin API's."""
    return AutorecoveryOptions(
        value["metadata"], name=value["name"], admin=value["listen"], overrides=tuple(value["overrides"])
    )


if __name__ == "__main__":
    sys.exit(run_child("autorecovery", lambda options: run_autorecovery(parse(options))))
