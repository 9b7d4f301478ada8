"""What the admin API of autorecovery answers; `quire.replication.admin` has the list of paths."""

import asyncio
from typing import Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from quire.errors import QuireError
from quire.replication.autorecovery import Autorecovery
from quire.runtime.http_answers import admin_application, metrics_answer
from quire.telemetry.events import logger

_STORE_S: Final = 2.0
_log = logger("autorecovery.admin")


def application(autorecovery: Autorecovery) -> Starlette:
    async def healthz(request: Request) -> Response:
        return JSONResponse({"ok": True})

    async def readyz(request: Request) -> Response:
        reasons = await _problems(autorecovery)
        return JSONResponse({"ok": not reasons, "reasons": reasons}, 503 if reasons else 200)

    async def metrics(request: Request) -> Response:
        return await metrics_answer(request, autorecovery.metrics.registry)

    async def ledger_metrics(request: Request) -> Response:
        return await metrics_answer(request, autorecovery.client.metrics.registry)

    return admin_application(
        {
            "/healthz": {"GET": healthz},
            "/readyz": {"GET": readyz},
            "/metrics": {"GET": metrics},
            "/metrics/client": {"GET": ledger_metrics},
        },
        _log,
    )


async def _problems(autorecovery: Autorecovery) -> list[str]:
    try:
        async with asyncio.timeout(_STORE_S):
            await autorecovery.marks.is_enabled()
    except TimeoutError:
        return [f"the metadata store does not answer within {_STORE_S:g} s"]
    except QuireError as error:
        return [str(error)]
    return []
