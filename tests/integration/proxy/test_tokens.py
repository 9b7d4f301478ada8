"""Proxies that ask for tokens, as processes: stale ones are refused and counted, and others are not concerned."""

import asyncio
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from quire.errors import NotAuthenticated, QuireError
from quire.rpc.serving.tokens import parse_tokens
from tests.integration.proxy.authors import Author
from tests.support.quire_command import quire_output
from tests.support.servers.served_cluster import ProxyProcess, Served, ServedCluster
from tests.support.streams.served_history import History
from tests.support.waiting import eventually

pytestmark = [pytest.mark.extended, pytest.mark.xdist_group("served"), pytest.mark.timeout(300)]


def new_token(file: Path, principal: str, *, days: float = 1.0) -> str:
    """As an operator makes one."""
    return quire_output("proxy", "token", principal, "--file", str(file), "--days", str(days)).strip()


def revoke(file: Path, principal: str) -> None:
    kept = [known.line() for known in parse_tokens(file.read_text()).values() if known.principal != principal]
    file.write_text("".join(f"{line}\n" for line in kept))


async def refused(proxies: list[ProxyProcess], cause: str) -> float:
    return sum([await asyncio.to_thread(each.counted, "quire_serving_refused_total", cause=cause) for each in proxies])


def status_of(proxy: ProxyProcess, namespace: str, token: str | None) -> int:
    headers = {} if token is None else {"authorization": f"Bearer {token}"}
    request = urllib.request.Request(
        f"http://127.0.0.1:{proxy.gateway_port}/v1/{namespace}/streams/orders", headers=headers
    )
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


async def read_on(reader: Any) -> None:
    async with asyncio.timeout(30):
        while True:
            await anext(reader)


async def test_stale_tokens_are_refused_and_counted_while_others_go_on(cluster: ServedCluster, tmp_path: Path) -> None:
    """Method: who has no token, or one that has expired, is refused. One client's is revoked while it writes and reads:
    its calls end, and those of the other go on. It is the same at the gateway."""
    file = tmp_path / "tokens.jsonl"
    own, good, revoked = (new_token(file, each) for each in ("proxy", "good", "revoked"))
    stale = new_token(file, "stale", days=0.5 / 86_400)
    (tmp_path / "token").write_text(f"{own}\n")
    options = ("--tokens", str(file), "--token-file", str(tmp_path / "token"))
    served = await asyncio.to_thread(Served.start, cluster, "guarded", writers=1, readers=1, options=options)
    proxies, history = [*served.writers, *served.readers], History()
    (writing,) = served.writers

    for token, cause in ((None, "no_token"), (stale, "stale_token"), (f"{good}0", "unknown_token")):
        before = await refused([writing], cause)
        with pytest.raises(NotAuthenticated):
            async with served.connect(token=token):
                raise AssertionError
        assert await refused([writing], cause) > before, cause
    async with (
        served.connect(token=good) as kept,
        kept.open_writer("orders") as writer,
        served.connect(token=revoked) as gone,
        gone.open_writer("orders") as last,
        gone.open_reader("orders") as reader,
    ):
        author, other = Author(history, "orders"), Author(history, "orders")
        await author.append(writer)
        await other.append(last)
        assert len([await anext(reader) for _ in range(2)]) == 2
        async with author.writing(writer):
            revoke(file, "revoked")

            async def is_shut_out() -> bool:
                try:
                    await other.append(last)
                except QuireError:
                    return True
                return False

            await eventually(is_shut_out, within_s=30, what="the writer whose token was revoked is refused")
            with pytest.raises(QuireError):
                await read_on(reader)
        assert await refused(proxies, "revoked_call") >= 2
        statuses = [
            await asyncio.to_thread(status_of, served.readers[0], "guarded", token) for token in (good, None, revoked)
        ]
        assert statuses == [200, 401, 401]
        await kept.seal_stream("orders")
    async with served.direct() as direct, direct.open_reader("orders") as reader:
        history.prove("orders", [record async for record in reader])


async def test_a_proxy_does_not_start_without_the_tokens_it_was_told_of(cluster: ServedCluster, tmp_path: Path) -> None:
    command = ["write-proxy", "run", "--uri", cluster.uri_of("ns"), "--listen", "127.0.0.1:0"]
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "quire", *command, "--tokens", str(tmp_path / "nothing")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "cannot be read" in done.stderr
    assert NotAuthenticated.__name__ not in done.stderr
