"""What `quire proxy` and `quire ring` ask of proxies, as plain facts."""

import asyncio
from typing import Any

from google.protobuf.message import Message

from quire.cli.proxy_calls import Proxies, address_of, reached
from quire.codec.pb import quire_v1_pb2 as pb
from quire.errors import InvalidArgument, NotOwner, ProxyUnreachable, QuireError
from quire.protocol.ring import HashRing
from quire.proxy.client.uri import ProxyUri
from quire.rpc.serving.methods import BALANCE, GET_LOAD, GET_OWNER, HEARTBEAT, LIST_OWNED, RELEASE, Method

_HOPS_MAX = 5
_ROLES = {pb.WRITE_PROXY: "write", pb.READ_PROXY: "read"}


async def listed(uri: ProxyUri, *, timeout_s: float) -> list[dict[str, Any]]:
    """Every proxy that is alive, with what write proxies say of their load."""
    async with reached(uri, timeout_s=timeout_s) as proxies:
        members = sorted(proxies.members, key=lambda member: (member.role, address_of(member)))
        return list(await asyncio.gather(*(_listed(proxies, member) for member in members)))


async def _listed(proxies: Proxies, member: pb.Member) -> dict[str, Any]:
    address = address_of(member)
    row: dict[str, Any] = {"proxy": address, "role": _ROLES.get(member.role, "?"), "region": member.address.region}
    if member.role != pb.WRITE_PROXY:
        return row | {"status": "ALIVE"}
    try:
        load = await proxies.call(address, GET_LOAD, pb.GetLoadRequest())
    except QuireError as error:
        return row | {"status": "SILENT", "problem": str(error)}
    return row | {
        "status": pb.ServerStatus.Name(load.status),
        "streams": load.streams,
        "requests_per_s": load.requests_per_s,
        "bytes_per_s": load.bytes_per_s,
    }


async def owned_streams(uri: ProxyUri, proxy: str | None, *, timeout_s: float) -> list[dict[str, Any]]:
    """What one write proxy owns, or all of them do."""
    async with reached(uri, timeout_s=timeout_s) as proxies:
        addresses = [proxy] if proxy else sorted(map(address_of, proxies.of_role(pb.WRITE_PROXY)))
        rows: list[dict[str, Any]] = []
        for address in addresses:
            answer = await proxies.call(address, LIST_OWNED, pb.ListOwnedRequest())
            rows += [
                {
                    "stream": each.stream,
                    "proxy": address,
                    "state": each.state,
                    "epoch": each.epoch,
                    "requests_per_s": each.requests_per_s,
                    "bytes_per_s": each.bytes_per_s,
                    "waiting": each.waiting,
                    "last_error": each.last_error or None,
                }
                for each in answer.streams
            ]
        return sorted(rows, key=lambda row: row["stream"])


async def asked(uri: ProxyUri, proxy: str, method: Method, request: Message, *, timeout_s: float) -> Any:
    """One question to one proxy."""
    async with reached(uri, timeout_s=timeout_s) as proxies:
        return await proxies.call(proxy, method, request)


async def moved(uri: ProxyUri, stream: str, to: str, *, timeout_s: float) -> dict[str, Any]:
    """Let the owner give a stream up, and the other one take it. Raises what they say."""
    async with reached(uri, timeout_s=timeout_s) as proxies:
        target = _member(proxies, to)
        name = pb.StreamRequest(namespace=proxies.namespace, stream=stream)
        owner = await proxies.call(to, GET_OWNER, name)
        before = f"{owner.owner.host}:{owner.owner.port}" if owner.is_owned else None
        if before is not None and before != to:
            request = pb.ReleaseRequest(namespace=proxies.namespace, stream=stream, suggested_owner=target.address)
            await proxies.call(before, RELEASE, request)
        take = pb.HeartbeatRequest(namespace=proxies.namespace, stream=stream, handed_over=True)
        taken = await proxies.call(to, HEARTBEAT, take)
        return {"stream": stream, "from": before, "to": to, "epoch": taken.epoch}


async def balance_asked(uri: ProxyUri, request: pb.BalanceRequest, *, timeout_s: float) -> pb.BalanceResponse:
    """What the balancer says, whichever of the write proxies that is. Raises what they say."""
    async with reached(uri, timeout_s=timeout_s) as proxies:
        writers = proxies.of_role(pb.WRITE_PROXY)
        if not writers:
            raise ProxyUnreachable("no write proxy is alive", hint="Start one with `quire write-proxy run`.")
        asked = address_of(writers[0])
        for _ in range(_HOPS_MAX):
            try:
                answer: pb.BalanceResponse = await proxies.call(asked, BALANCE, request)
                return answer
            except NotOwner as error:
                told = error.facts.get("proxy")
                if not isinstance(told, pb.Owner):
                    raise
                asked = f"{told.host}:{told.port}"
        raise ProxyUnreachable("the write proxies do not agree on who balances", hint="Try again in a moment.")


async def ring_shown(uri: ProxyUri, role: pb.Role, *, timeout_s: float) -> list[dict[str, Any]]:
    """The proxies of a kind, and which part of all streams belongs to each."""
    async with reached(uri, timeout_s=timeout_s) as proxies:
        hosts = sorted(map(address_of, proxies.of_role(role)))
        shares = HashRing(hosts).shares()
        return [{"proxy": host, "share": shares[host]} for host in hosts]


async def ring_lookup(uri: ProxyUri, streams: list[str], role: pb.Role, *, timeout_s: float) -> list[dict[str, Any]]:
    """Where each stream belongs, first choice first; and who owns it now, if it is about writing."""
    async with reached(uri, timeout_s=timeout_s) as proxies:
        ring, rows = HashRing(map(address_of, proxies.of_role(role))), []
        for stream in streams:
            candidates = list(ring.candidates(f"{proxies.namespace}/{stream}"))
            row: dict[str, Any] = {"stream": stream, "candidates": candidates}
            if role == pb.WRITE_PROXY and candidates:
                request = pb.StreamRequest(namespace=proxies.namespace, stream=stream)
                owner = await proxies.call(candidates[0], GET_OWNER, request)
                row["owner"] = f"{owner.owner.host}:{owner.owner.port}" if owner.is_owned else None
            rows.append(row)
        return rows


def _member(proxies: Proxies, address: str) -> pb.Member:
    writers = proxies.of_role(pb.WRITE_PROXY)
    for member in writers:
        if address_of(member) == address:
            return member
    listed = ", ".join(map(address_of, writers)) or "none"
    raise InvalidArgument(f"no write proxy is alive at {address!r}", hint=f"There are: {listed}.")
