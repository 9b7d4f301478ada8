"""Every workload and every planted bug, of all areas."""

from tests.simulation.cold import flaws as cold_flaws
from tests.simulation.cold import workloads as cold
from tests.simulation.harness import Flaw, Workload
from tests.simulation.ledgers import flaws as ledger_flaws
from tests.simulation.ledgers import workloads as ledgers
from tests.simulation.replication import flaws as repair_flaws
from tests.simulation.replication import operator_flaws
from tests.simulation.replication import workloads as replication
from tests.simulation.serving import flaws as serving_flaws
from tests.simulation.serving import workloads as serving
from tests.simulation.staging import flaws as staging_flaws
from tests.simulation.staging import workloads as staging
from tests.simulation.streams import flaws as stream_flaws
from tests.simulation.streams import workloads as streams

WORKLOADS: dict[str, Workload] = {
    name: workload
    for area in (ledgers, replication, streams, cold, staging, serving)
    for name, workload in area.WORKLOADS.items()
}
FLAWS: list[Flaw] = [
    *ledger_flaws.FLAWS,
    *repair_flaws.FLAWS,
    *operator_flaws.FLAWS,
    *stream_flaws.FLAWS,
    *cold_flaws.FLAWS,
    *staging_flaws.FLAWS,
    *serving_flaws.FLAWS,
]
