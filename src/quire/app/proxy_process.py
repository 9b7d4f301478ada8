"""A proxy of a local cluster: what `quire write-proxy run` and `quire read-proxy run` run. See
`quire.app.child_process`."""

import sys
from typing import Any

from quire.app.child_process import run_child
from quire.app.proxy import ProxyOptions, run_proxy


def parse(value: dict[str, Any]) -> ProxyOptions:
    """The options, as `quire.app.local_services` writes them."""
    return ProxyOptions(
        value["role"],
        value["uri"],
        value["listen"],
        gateway=value["gateway"],
        http_hosts=tuple(value["http_hosts"]),
        overrides=tuple(value["overrides"]),
    )


if __name__ == "__main__":
    sys.exit(run_child("proxy", lambda options: run_proxy(parse(options))))
