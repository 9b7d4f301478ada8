"""The admin port of a proxy over real sockets: what it answers, what it refuses, and to whom."""

import asyncio
import http.client
import json
import logging
import os
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from quire.app.proxy import ProxyOptions
from quire.proxy.admin.server import ProxyAdmin
from quire.proxy.loop_lag import LoopLag
from quire.rpc.serving.tokens import Tokens, new_token
from quire.runtime.clock import AsyncioClock
from quire.telemetry.metrics import Registry
from tests.support.waiting import eventually

OPTIONS = ProxyOptions(
    "read", "distributedlog://zk/ns", "127.0.0.1:0", token="secret", overrides=("read.readers_max=7",)
)


class SmallProxy:
    """What the admin port needs of a proxy, and nothing else."""

    def __init__(self) -> None:
        self.metrics = Registry(time.monotonic)
        self.not_ready: list[str] = []
        self.drains = 0

    def debug(self) -> dict[str, Any]:
        return {"streams": {"orders": {"readers": 3}}, "ring": ["a:1"]}

    def ask_to_drain(self) -> None:
        self.drains += 1


class SlowClock(AsyncioClock):
    """By which every wait takes so much longer."""

    def __init__(self, late_s: float) -> None:
        self._late_s, self._waited_s = late_s, 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self._waited_s

    async def sleep(self, seconds: float) -> None:
        await super().sleep(seconds)
        self._waited_s += self._late_s


async def ask(
    admin: ProxyAdmin, path: str, method: str = "GET", body: Any = None, token: str = "", **others: str
) -> tuple[int, Any]:
    def talk() -> tuple[int, Any]:
        connection = http.client.HTTPConnection(*admin.address, timeout=20)
        headers = others | ({"authorization": f"Bearer {token}"} if token else {})
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        answer = connection.getresponse()
        said = answer.read()
        connection.close()
        return answer.status, said.decode() if path == "/metrics" else json.loads(said)

    return await asyncio.to_thread(talk)


async def test_a_proxy_says_whether_it_lives_and_whether_clients_should_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LoopLag, "late_s_max", 60.0)  # However busy the machine is.
    source = SmallProxy()
    async with ProxyAdmin(source, AsyncioClock()) as admin:
        assert await ask(admin, "/healthz") == (200, {"ok": True})
        assert await ask(admin, "/readyz") == (200, {"ok": True, "state": "up", "reasons": []})
        source.not_ready = ["it is being stopped"]
        said = {"ok": False, "state": "not ready", "reasons": ["it is being stopped"]}
        assert await ask(admin, "/readyz") == (503, said)
        assert (await ask(admin, "/healthz"))[0] == 200


async def test_a_page_of_another_site_cannot_have_a_proxy_drained() -> None:
    source = SmallProxy()
    async with ProxyAdmin(source, AsyncioClock(), hosts=["proxy.example"]) as admin:
        for strange in ({"host": "evil.example"}, {"origin": "https://evil.example"}):
            for path in ("/admin/drain", "/admin/loglevel"):
                assert (await ask(admin, path, "POST", **strange))[0] == 403
        assert source.drains == 0
        assert (await ask(admin, "/healthz", host="proxy.example:8080"))[0] == 200


async def test_while_the_loop_is_late_clients_should_go_elsewhere_and_the_metric_says_why() -> None:
    async with ProxyAdmin(SmallProxy(), SlowClock(late_s=0.5)) as admin:

        async def is_late() -> bool:
            return (await ask(admin, "/readyz"))[0] == 503

        await eventually(is_late, what="the first measurement of the loop")
        _, said = await ask(admin, "/readyz")
        (seconds,) = re.findall(r"the event loop was ([0-9.]+)", said["reasons"][0])
        assert 0.5 <= float(seconds) < 10
        assert said["state"] == "busy"
        assert (await ask(admin, "/healthz"))[0] == 200
        _, metrics = await ask(admin, "/metrics")
        (line,) = [each for each in metrics.splitlines() if each.startswith("quire_proxy_loop_lag_s ")]
        assert 0.5 <= float(line.split()[1]) < 10


async def test_what_kept_the_loop_is_found_line_by_line() -> None:
    async with ProxyAdmin(SmallProxy(), AsyncioClock()) as admin:

        def keep_the_loop() -> None:
            while not admin._lag.slow:
                threading.Event().wait(0.01)

        asyncio.get_running_loop().call_soon(keep_the_loop)

        async def is_told() -> bool:
            return bool((await ask(admin, "/debug/tasks"))[1]["slow_callbacks"])

        await eventually(is_told, what="a slow callback")
        _, said = await ask(admin, "/debug/tasks")
        assert said["count"] == len(said["names"]) > 0
        assert "measure the loop's lag" in said["names"]
        slow = said["slow_callbacks"][0]
        assert slow["late_s"] >= LoopLag.late_s_max
        assert any("keep_the_loop" in line and os.path.basename(__file__) in line for line in slow["stack"])


async def test_it_tells_its_settings_with_their_origin_and_no_secret() -> None:
    async with ProxyAdmin(SmallProxy(), AsyncioClock(), config=OPTIONS.shown()) as admin:
        _, config = await ask(admin, "/debug/config")
        assert config["read.readers_max"] == {"value": 7, "origin": "--set"}
        assert config["read.session_streams_max"] == {"value": 256, "origin": "default"}
        assert config["read.tail_bytes_per_s_max"] == {"value": "inf", "origin": "default"}
        assert config["uri"] == {"value": "distributedlog://zk/ns", "origin": "option"}
        assert config["region"] == {"value": "", "origin": "default"}
        assert config["token"] == {"value": "…", "origin": "option"}
        assert await ask(admin, "/debug") == (200, {"names": ["config", "loop", "ring", "streams", "tasks"]})
        assert await ask(admin, "/debug/streams/orders") == (200, {"readers": 3})
        assert await ask(admin, "/debug/ring") == (200, ["a:1"])
        assert (await ask(admin, "/debug/nothing"))[0] == 404


async def test_draining_over_http_is_asked_for_once_and_not_by_a_get() -> None:
    source = SmallProxy()
    async with ProxyAdmin(source, AsyncioClock()) as admin:
        assert (await ask(admin, "/admin/drain"))[0] == 405
        assert source.drains == 0
        assert await ask(admin, "/admin/drain", "POST") == (202, {"draining": True})
        assert source.drains == 1


async def test_where_calls_need_a_token_whoever_changes_something_needs_one_too() -> None:
    token, known = new_token("operator", draw=os.urandom, expires_s=None)
    stale, past = new_token("yesterday's", draw=os.urandom, expires_s=1.0)
    source, tokens = SmallProxy(), Tokens([known, past], time.time)
    async with ProxyAdmin(source, AsyncioClock(), tokens=tokens) as admin:
        for shown in ("", "quire-1.none.none", stale):
            for path, body in (("/admin/drain", None), ("/admin/loglevel", {"level": "DEBUG"})):
                status, said = await ask(admin, path, "POST", body, token=shown)
                assert status == 401
                assert "token" in said["error"]
        assert source.drains == 0
        assert (await ask(admin, "/readyz"))[0] == 200, "looking is free"
        assert (await ask(admin, "/admin/drain", "POST", token=token))[0] == 202
        assert source.drains == 1


@contextmanager
def levels_kept(*names: str) -> Iterator[None]:
    kept = {name: logging.getLogger(name).level for name in names}
    try:
        yield
    finally:
        for name, level in kept.items():
            logging.getLogger(name).setLevel(level)


async def test_the_level_of_logging_is_changed_while_it_runs() -> None:
    with levels_kept("quire", "quire.proxy.read"):
        async with ProxyAdmin(SmallProxy(), AsyncioClock()) as admin:
            said = await ask(admin, "/admin/loglevel", "POST", {"level": "error"})
            assert said == (200, {"logger": "quire", "level": "ERROR"})
            assert logging.getLogger("quire").level == logging.ERROR
            said = await ask(admin, "/admin/loglevel", "POST", {"level": "DEBUG", "logger": "proxy.read"})
            assert said == (200, {"logger": "quire.proxy.read", "level": "DEBUG"})
            assert logging.getLogger("quire.proxy.read").isEnabledFor(logging.DEBUG)
            assert not logging.getLogger("quire.proxy.write").isEnabledFor(logging.INFO)
            for wrong in ({}, {"level": "LOUD"}, {"level": 3}, {"levels": "INFO"}):
                assert (await ask(admin, "/admin/loglevel", "POST", wrong))[0] == 400
