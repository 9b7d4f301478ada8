"""`quire autorecovery` on a cluster of `quire up`, which starts it by itself."""

import json
from pathlib import Path
from typing import Any

from tests.support.servers.local_cluster import LocalCluster, quire_command
from tests.support.waiting import eventually


async def test_quire_up_repairs_and_the_commands_show_and_steer_it(tmp_path: Path) -> None:
    with LocalCluster(tmp_path, "--bookies=1", autorecovery=True) as cluster:
        uri = f"sqlite:{cluster.data}/metadata.db"

        def told(*words: str, code: int = 0) -> Any:
            printed = quire_command(
                "autorecovery", *words, "--metadata", uri, "--json", folder=tmp_path, state=tmp_path, code=code
            )
            return json.loads(printed)

        async def has_auditor() -> bool:
            return bool(told("status")["auditor"] == "autorecovery")

        await eventually(has_auditor, within_s=60.0, what="autorecovery of `quire up` is the auditor")
        status = told("status")
        assert (status["enabled"], status["marked"], status["lost_bookies"]) == (True, 0, [])
        assert told("disable") == {"enabled": False, "changed": True}
        assert told("disable") == {"enabled": False, "changed": False}
        assert told("status")["enabled"] is False
        assert told("enable") == {"enabled": True, "changed": True}
        assert told("delay", "45") == {"delay_s": 45}
        assert told("delay") == {"delay_s": 45}
        assert told("audit") == {"auditor": "autorecovery"}
        assert told("list") == {"ledgers": []}
        shown = json.loads(
            quire_command("status", "--data", str(cluster.data), "--json", folder=tmp_path, state=tmp_path)
        )
        states = {service["kind"]: service["state"] for service in shown["services"]}
        assert states == {"bookie": "up", "autorecovery": "up"}


def test_without_an_auditor_an_audit_is_refused(tmp_path: Path) -> None:
    uri = f"sqlite:{tmp_path}/metadata.db"
    quire_command("metadata", "init", uri, folder=tmp_path, state=tmp_path)
    printed = quire_command("autorecovery", "audit", "--metadata", uri, folder=tmp_path, state=tmp_path, code=1)
    assert "there is no auditor in this cluster" in printed
    assert "quire autorecovery run" in printed
