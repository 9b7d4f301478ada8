"""Calls are counted once each, by how they ended, and handlers know nothing of it."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from quire.codec.pb import quire_v1_pb2 as pb
from quire.errors import NoSuchStream
from quire.proxy.counted_calls import counted
from quire.rpc.serving import methods
from quire.rpc.serving.transport import Caller

CALLER = Caller("test")
Ends = list[tuple[str, str]]


def handler(method: methods.Method, handle: Any, ends: Ends) -> Any:
    return counted({method: handle}, lambda rpc, code: ends.append((rpc, code)))[method]


@pytest.mark.parametrize(
    ("raised", "code"),
    [(None, "OK"), (NoSuchStream("gone"), "LOG_NOT_FOUND"), (ZeroDivisionError(), "INTERNAL")],
    ids=["answered", "refused", "a bug"],
)
def test_a_call_with_one_answer_is_counted_by_its_code(raised: Exception | None, code: str) -> None:
    async def answer(request: Any, caller: Caller) -> pb.StreamResponse:
        if raised is not None:
            raise raised
        return pb.StreamResponse()

    async def check() -> None:
        ends: Ends = []
        call = handler(methods.SEAL, answer, ends)
        if raised is None:
            assert await call(pb.StreamRequest(), CALLER) == pb.StreamResponse()
        else:
            with pytest.raises(type(raised)):
                await call(pb.StreamRequest(), CALLER)
        assert ends == [("Seal", code)]

    asyncio.run(check())


async def pages(request: pb.ListStreamsRequest, caller: Caller) -> AsyncIterator[pb.ListStreamsResponse]:
    yield pb.ListStreamsResponse(streams=["a"])
    if request.prefix:
        raise NoSuchStream("gone")
    yield pb.ListStreamsResponse(streams=["b"])


@pytest.mark.parametrize(("prefix", "code"), [("", "OK"), ("x", "LOG_NOT_FOUND")], ids=["to its end", "refused"])
def test_a_call_with_many_answers_is_counted_when_it_ends(prefix: str, code: str) -> None:
    async def check() -> None:
        ends: Ends = []
        responses = handler(methods.LIST_STREAMS, pages, ends)(pb.ListStreamsRequest(prefix=prefix), CALLER)
        assert (await anext(responses)).streams == ["a"]
        assert ends == []
        if prefix:
            with pytest.raises(NoSuchStream):
                await anext(responses)
        else:
            assert [list(each.streams) async for each in responses] == [["b"]]
        await responses.aclose()
        assert ends == [("ListStreams", code)], "once"

    asyncio.run(check())


def test_a_caller_that_leaves_is_counted_and_its_handler_is_closed() -> None:
    closed: list[bool] = []

    async def watching(request: Any, caller: Caller) -> AsyncIterator[pb.OwnershipChange]:
        try:
            yield pb.OwnershipChange()
            await asyncio.Event().wait()
        finally:
            closed.append(True)

    async def check() -> None:
        ends: Ends = []
        call = handler(methods.WATCH_OWNERSHIP, watching, ends)
        responses = call(pb.WatchOwnershipRequest(), CALLER)
        await anext(responses)
        await responses.aclose()
        waiting = call(pb.WatchOwnershipRequest(), CALLER)
        await anext(waiting)
        task = asyncio.ensure_future(waiting.__anext__())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        await waiting.aclose()
        assert ends == [("WatchOwnership", "CANCELLED")] * 2
        assert closed == [True, True]

    asyncio.run(check())
