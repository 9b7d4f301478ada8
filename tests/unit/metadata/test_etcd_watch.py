"""The bookkeeping of the etcd driver's watch stream: which answer belongs to which watch, and who is woken when."""

import asyncio
from typing import Any, cast

import pytest

from quire.errors import Refused
from quire.metadata.driver import Target
from quire.metadata.drivers._etcd_watch import _Line, _Watch
from quire.metadata.drivers.etcd_pb import etcd_pb2 as pb


class Woken:
    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> None:
        self.times += 1


class Sent:
    """The far end of a stream: keeps what was sent."""

    def __init__(self) -> None:
        self.requests: list[pb.WatchRequest] = []

    async def send(self, request: pb.WatchRequest) -> None:
        self.requests.append(request)


@pytest.fixture
def sent() -> Sent:
    return Sent()


@pytest.fixture
def line(sent: Sent) -> _Line:
    return _Line(cast(Any, sent))


async def flush(line: _Line) -> None:
    """Let the line send what it has to send."""
    sending = asyncio.create_task(line.send_all())
    await asyncio.sleep(0)
    sending.cancel()
    await asyncio.wait([sending])


def watch(path: str, target: Target) -> tuple[_Watch, Woken]:
    woken = Woken()
    return _Watch(path, target, woken, asyncio.get_running_loop().create_future()), woken


def confirm(line: _Line, watch_id: int) -> None:
    line._on_answer(pb.WatchResponse(watch_id=watch_id, created=True))


def tell(line: _Line, watch_id: int, key: bytes, *, version: int = 1, deleted: bool = False) -> None:
    event = pb.Event(type=pb.Event.DELETE if deleted else pb.Event.PUT, kv=pb.KeyValue(key=key, version=version))
    line._on_answer(pb.WatchResponse(watch_id=watch_id, events=[event]))


async def test_a_watch_stands_when_all_its_ranges_are_confirmed(line: _Line, sent: Sent) -> None:
    children, _ = watch("/a", Target.CHILDREN)
    node, _ = watch("/b", Target.NODE)
    line.create(children)
    line.create(node)
    await flush(line)
    asked = [(request.create_request.key, request.create_request.range_end) for request in sent.requests]
    assert asked == [(b"/a", b""), (b"/a/", b"/a0"), (b"/b", b"")]
    confirm(line, 7)
    assert not children.established.done()
    confirm(line, 8)
    assert children.established.done()
    assert not node.established.done()
    confirm(line, 9)
    assert node.established.done()


async def test_answers_wake_the_watch_they_belong_to(line: _Line) -> None:
    first, first_woken = watch("/a", Target.NODE)
    second, second_woken = watch("/b", Target.NODE)
    line.create(first)
    line.create(second)
    confirm(line, 0)
    confirm(line, 1)
    tell(line, 1, b"/b", version=5)
    assert (first_woken.times, second_woken.times) == (0, 1)
    tell(line, 0, b"/a", deleted=True)
    assert (first_woken.times, second_woken.times) == (1, 1)


async def test_a_watch_of_children_wakes_for_names_that_come_and_go_and_for_nothing_else(line: _Line) -> None:
    children, woken = watch("/a", Target.CHILDREN)
    line.create(children)
    confirm(line, 0)
    confirm(line, 1)
    tell(line, 1, b"/a/b/c")
    tell(line, 1, b"/a/b", version=2)
    tell(line, 0, b"/a", version=2)
    tell(line, 1, b"/a/b/c", deleted=True)
    assert woken.times == 0
    for watch_id, key, deleted in ((1, b"/a/b", False), (1, b"/a/b", True), (0, b"/a", True), (0, b"/a", False)):
        tell(line, watch_id, key, deleted=deleted)
    assert woken.times == 4


async def test_a_watch_that_the_server_gave_up_is_created_anew_and_then_woken(line: _Line, sent: Sent) -> None:
    """It was too slow for the server's history: what it missed is only read if its owner is told to read."""
    node, woken = watch("/a", Target.NODE)
    line.create(node)
    confirm(line, 0)
    line._on_answer(pb.WatchResponse(watch_id=0, canceled=True, compact_revision=100))
    assert woken.times == 0, "before the new watch stands, a change could fall between reading and watching"
    await flush(line)
    assert [request.create_request.key for request in sent.requests] == [b"/a", b"/a"]
    confirm(line, 1)
    assert woken.times == 1
    tell(line, 1, b"/a")
    assert woken.times == 2


async def test_a_watch_that_ended_is_cancelled_and_never_woken(line: _Line, sent: Sent) -> None:
    """Method: one ends before etcd confirmed it, the other after; events for both are still under way."""
    early, early_woken = watch("/a", Target.NODE)
    late, late_woken = watch("/b", Target.NODE)
    line.create(early)
    line.create(late)
    early.ended = True
    line.cancel(early)
    confirm(line, 0)
    confirm(line, 1)
    late.ended = True
    line.cancel(late)
    tell(line, 0, b"/a")
    tell(line, 1, b"/b")
    assert (early_woken.times, late_woken.times) == (0, 0)
    await flush(line)
    cancelled = [request.cancel_request.watch_id for request in sent.requests if request.HasField("cancel_request")]
    assert cancelled == [0, 1]


async def test_a_refusal_reaches_who_asked_and_leaves_the_other_watches_alone(line: _Line) -> None:
    refused, _ = watch("/secret", Target.NODE)
    other, woken = watch("/b", Target.NODE)
    line.create(refused)
    line.create(other)
    line._on_answer(pb.WatchResponse(watch_id=-1, created=True, canceled=True, cancel_reason="permission denied"))
    with pytest.raises(Refused, match="permission denied"):
        await refused.established
    confirm(line, 0)
    tell(line, 0, b"/b")
    assert woken.times == 1


async def test_a_refusal_after_a_break_breaks_the_stream_again(line: _Line) -> None:
    """Its owner has a watch already and waits; only trying again can keep the promise."""
    node, _ = watch("/a", Target.NODE)
    node.established.set_result(None)
    line.create(node)
    with pytest.raises(Refused):
        line._on_answer(pb.WatchResponse(watch_id=-1, created=True, canceled=True))
