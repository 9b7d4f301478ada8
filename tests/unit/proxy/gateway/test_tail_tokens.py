"""An event stream ends when the token that it was opened with does not count any more."""

import asyncio

import pytest
from tests.unit.proxy.gateway.small_streams import SmallGateway, SmallStreams
from tests.unit.proxy.gateway.test_events import parsed

from quire.proxy.gateway import GatewaySettings
from quire.rpc.serving.tokens import Tokens, new_token
from quire.testing import Simulation, simulate


@pytest.mark.parametrize(("is_revoked", "is_idle"), [(True, True), (True, False), (False, True), (False, False)])
def test_an_event_stream_ends_with_its_token(is_revoked: bool, is_idle: bool) -> None:
    """Method: a record that comes while the token counts is sent. Behind its end nothing is, but a failure."""

    async def main(sim: Simulation) -> None:
        clock = sim.host("proxy").clock
        begun_s = clock.wall_ms() / 1000
        token, known = new_token("billing", draw=bytes, expires_s=None if is_revoked else begun_s + 5)
        tokens = Tokens([known], lambda: clock.wall_ms() / 1000)
        call = SmallGateway(SmallStreams("orders"), GatewaySettings(ping_s=2.0), tokens=tokens)
        assert (await call("GET", "/orders/tail")).status == 401
        tail = call.begin("GET", "/orders/tail?as=text", authorization=f"Bearer {token}")
        await asyncio.sleep(1)
        call.client.streams["orders"].add(b"a")
        await asyncio.sleep(3.5)
        if is_revoked:
            tokens.replace({})
        await asyncio.sleep(1)
        if not is_idle:
            call.client.streams["orders"].add(b"b")
        await asyncio.sleep(3)
        assert tail.is_complete
        record, failure = parsed((await tail.answer()).body)
        assert (record.data, failure.kind) == ("a", "failure")
        assert ("taken back" if is_revoked else "has expired") in failure.data
        await call.gateway.aclose()

    simulate(0, main)
