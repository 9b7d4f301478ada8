"""The gateway's paths over streams in a dictionary, without sockets and on simulated time."""

import asyncio
import json
from base64 import b64encode
from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import Any

import pytest
from tests.unit.proxy.gateway.small_streams import Call, DeduplicatingStreams, SmallGateway, SmallStreams
from tests.unit.proxy.gateway.test_events import parsed

from quire.errors import DamagedEntry, InvariantBroken
from quire.proxy.gateway import GatewaySettings
from quire.proxy.gateway.app import gateway_app, paths
from quire.proxy.gateway.handlers import Handlers
from quire.proxy.gateway.limits import BODY_BYTES_MAX, RECORD_BYTES_MAX
from quire.proxy.gateway.openapi import description
from quire.testing import Simulation, simulate

Work = Callable[[SmallGateway], Awaitable[None]]


def run(work: Work, *, client: Callable[..., SmallStreams] = SmallStreams, **settings: float) -> None:
    async def main(_: Simulation) -> None:
        gateway = SmallGateway(client("orders"), GatewaySettings(**settings))  # type: ignore[arg-type]
        try:
            await work(gateway)
        finally:
            await gateway.gateway.aclose()
        statistics = gateway.gateway.statistics()
        assert statistics["under_way"] == {"calls": 0, "fetches": 0, "tails": 0}
        assert statistics["body_bytes"] == 0

    simulate(0, main)


def refused(body: Any, code: str) -> None:
    assert body["code"] == code
    assert set(body) >= {"code", "message", "hint", "applied", "retry_after_ms"}


# --- Strangers


def test_the_application_for_other_servers_takes_no_requests_of_strangers_either() -> None:
    async def work(call: SmallGateway) -> None:
        application = gateway_app({"default": call.client}, hosts=["streams.example"])
        for host, status in (("streams.example", 200), ("10.0.0.5:80", 200), ("evil.example", 403)):
            request = Call(application, "GET", "/v1/default/streams", {"host": host})
            request.send(b"")
            answer = await request.answer()
            assert answer.status == status, host
        refused(answer.json, "HOST_NOT_ALLOWED")

    run(work)


# --- The description


def test_the_description_is_the_committed_file() -> None:
    """If this fails: python -m quire.proxy.gateway.openapi > src/quire/proxy/gateway/openapi.json"""
    committed = (files("quire.proxy.gateway") / "openapi.json").read_text()
    assert json.loads(committed) == description()


def test_every_path_and_method_is_described() -> None:
    served = {path: set(map(str.lower, methods)) for path, methods in paths(Handlers({}, GatewaySettings())).items()}
    described = {path: set(item) - {"parameters"} for path, item in description()["paths"].items()}
    assert served == described


def test_the_description_is_served() -> None:
    async def work(call: SmallGateway) -> None:
        request = Call(call.gateway.application, "GET", "/v1/openapi.json", {})
        request.send(b"")
        assert (await request.answer()).json == description()

    run(work)


# --- Records


def test_records_come_in_three_forms_and_go_out_in_two() -> None:
    async def work(call: SmallGateway) -> None:
        assert (await call("POST", "/orders/records", b"raw")).json == {
            "dlsn": "1:0:0",
            "last_dlsn": "1:0:0",
            "count": 1,
            "duplicate": False,
        }
        body = {"records": [{"text": "ü"}, {"b64": b64encode(b"\xff").decode()}]}
        assert (await call("POST", "/orders/records", body)).json["last_dlsn"] == "1:2:0"
        lines = await call("POST", "/orders/records", b'{"a":1}\n{"b":2}\n', content_type="application/x-ndjson")
        assert lines.json["count"] == 2
        read = (await call("GET", "/orders/records?as=text")).json
        assert [record.get("text") for record in read["records"]] == ["raw", "ü", None, '{"a":1}', '{"b":2}']
        assert read["records"][2]["b64"] == "/w=="
        assert (read["next"], read["end"]) == ("1:5:0", False)
        read = (await call("GET", "/orders/records?from=1:1:0&limit=1")).json
        assert read == {"records": [{"dlsn": "1:1:0", "txid": 1, "b64": "w7w="}], "next": "1:2:0", "end": False}

    run(work)


def test_a_read_waits_for_its_first_record_and_no_longer_than_it_wants() -> None:
    async def work(call: SmallGateway) -> None:
        loop = asyncio.get_running_loop()
        begun_s, waiting = loop.time(), call.begin("GET", "/orders/records?from=latest&wait_ms=20000")
        await asyncio.sleep(7)
        call.client.streams["orders"].add(b"a")
        assert len((await waiting.answer()).json["records"]) == 1
        assert loop.time() - begun_s < 7.1
        begun_s = loop.time()
        assert (await call("GET", "/orders/records?from=latest&wait_ms=2000")).json["records"] == []
        assert 2 <= loop.time() - begun_s < 2.1

    run(work)


def test_a_read_is_bounded_in_bytes_but_gives_one_record_at_least() -> None:
    async def work(call: SmallGateway) -> None:
        call.client.streams["orders"].add(b"x" * 100, b"y" * 100, b"z")
        read = (await call("GET", "/orders/records?max_bytes=10")).json
        assert [len(read["records"]), read["next"]] == [1, "1:0:1"]
        read = (await call("GET", f"/orders/records?max_bytes=101&from={read['next']}")).json
        assert [len(read["records"]), read["next"]] == [2, "1:3:0"]

    run(work)


def test_a_sealed_stream_says_where_it_ends() -> None:
    async def work(call: SmallGateway) -> None:
        await call("POST", "/orders/records", b"a")
        assert (await call("POST", "/orders:seal")).json == {"stream": "orders", "sealed": True}
        assert (await call("GET", "/orders/records")).json["end"]
        answer = await call("POST", "/orders/records", b"b")
        assert answer.status == 410
        refused(answer.json, "END_OF_STREAM")
        assert (await call("POST", "/orders:seal")).status == 200

    run(work)


def test_truncated_records_are_refused_or_skipped() -> None:
    async def work(call: SmallGateway) -> None:
        call.client.streams["orders"].add(b"a", b"b", b"c")
        assert (await call("POST", "/orders:truncate", {"dlsn": "1:2:0"})).json["first_dlsn"] == "1:2:0"
        answer = await call("GET", "/orders/records?from=1:0:0")
        assert (answer.status, answer.json["earliest"]) == (416, "1:2:0")
        assert len((await call("GET", "/orders/records?from=1:0:0&truncated=skip")).json["records"]) == 1

    run(work)


# --- Sending again


def test_a_key_that_nobody_could_honour_is_refused_and_nothing_is_written() -> None:
    async def work(call: SmallGateway) -> None:
        answer = await call("POST", "/orders/records", b"a", idempotency_key="billing/1")
        assert answer.status == 501
        refused(answer.json, "NOT_IMPLEMENTED")
        assert call.client.streams["orders"].records == []

    run(work)


def test_a_key_keeps_records_from_being_there_twice() -> None:
    async def work(call: SmallGateway) -> None:
        body = {"records": [{"text": "a"}, {"text": "b"}]}
        first = (await call("POST", "/orders/records", body, idempotency_key="billing/1")).json
        again = (await call("POST", "/orders/records", body, idempotency_key="billing/1")).json
        assert (first["duplicate"], again["duplicate"]) == (False, True)
        assert first["dlsn"] == again["dlsn"]
        assert call.client.streams["orders"].records == [b"a", b"b"]
        assert (await call("POST", "/orders/records", b"c", idempotency_key="billing")).status == 400

    run(work, client=DeduplicatingStreams)


# --- Event streams


def test_an_event_stream_has_what_comes_and_pings_between() -> None:
    async def work(call: SmallGateway) -> None:
        stream = call.client.streams["orders"]
        stream.add(b"before")
        tail = call.begin("GET", "/orders/tail?as=text")
        await asyncio.sleep(31)
        assert tail.headers["content-type"] == "text/event-stream"
        assert tail.body.count(b": ping\n\n") == 2
        stream.add(b"a", b"b")
        await asyncio.sleep(1)
        assert [(event.id, event.data) for event in parsed(tail.body)] == [("1:1:0", "a"), ("1:2:0", "b")]
        tail.leave()
        await tail.task
        assert not tail.is_complete

    run(work)


def test_a_client_that_comes_back_misses_nothing_and_gets_nothing_twice() -> None:
    async def work(call: SmallGateway) -> None:
        call.client.streams["orders"].add(b"a", b"b", b"c")
        tail = call.begin("GET", "/orders/tail?from=earliest", last_event_id="1:0:0")
        await asyncio.sleep(1)
        assert [event.id for event in parsed(tail.body)] == ["1:1:0", "1:2:0"]
        tail.leave()
        await tail.task

    run(work)


def test_gaps_are_told_at_the_beginning_and_in_between() -> None:
    async def work(call: SmallGateway) -> None:
        stream = call.client.streams["orders"]
        stream.add(b"a", b"b", b"c")
        stream.first = 1
        tail = call.begin("GET", "/orders/tail?from=1:0:0&as=text")
        await asyncio.sleep(1)
        stream.first = 5
        stream.add(b"d", b"e", b"f")
        await asyncio.sleep(1)
        events = [(event.kind, event.data) for event in parsed(tail.body)]
        assert events == [
            ("gap", '{"from": "1:0:0", "to": "1:1:0"}'),
            ("message", "b"),
            ("message", "c"),
            ("gap", '{"from": "1:3:0", "to": "1:5:0"}'),
            ("message", "f"),
        ]
        tail.leave()
        await tail.task
        assert (await call("GET", "/orders/tail?from=1:0:0&truncated=fail")).status == 416

    run(work)


def test_an_event_stream_ends_with_its_stream() -> None:
    async def work(call: SmallGateway) -> None:
        tail = call.begin("GET", "/orders/tail")
        await call("POST", "/orders/records", b"a")
        await call("POST", "/orders:seal")
        events = parsed((await tail.answer()).body)
        assert [(event.kind, event.data) for event in events] == [("message", "YQ=="), ("end", '{"next": "1:1:0"}')]

    run(work)


def test_errors_before_the_first_event_are_answers_and_later_ones_events() -> None:
    async def work(call: SmallGateway) -> None:
        missing = call.begin("GET", "/nothing/tail")
        assert (await missing.answer()).status == 404
        tail = call.begin("GET", "/orders/tail")
        await asyncio.sleep(1)
        stream = call.client.streams["orders"]
        stream.first = _Raising(DamagedEntry("no replica is intact"))  # type: ignore[assignment]
        stream.add(b"a")
        (event,) = parsed((await tail.answer()).body)
        assert event.kind == "failure"
        refused(json.loads(event.data), "LOG_READ_ERROR")

    run(work)


class _Raising:
    """A number that cannot be compared."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def __gt__(self, other: object) -> bool:
        raise self._error


def test_stopping_ends_event_streams_and_waiting_reads() -> None:
    async def work(call: SmallGateway) -> None:
        tail, waiting = call.begin("GET", "/orders/tail"), call.begin("GET", "/orders/records?wait_ms=30000")
        await asyncio.sleep(1)
        call.gateway.stop_reading()
        assert (await tail.answer()).status == 200
        assert (await waiting.answer()).status == 503

    run(work)


def test_an_old_event_stream_is_ended_in_good_order() -> None:
    async def work(call: SmallGateway) -> None:
        assert (await call.begin("GET", "/orders/tail").answer()).status == 200
        assert asyncio.get_running_loop().time() >= 100

    run(work, tail_age_s=100.0)


# --- Streams, owners, subscriptions


def test_streams_come_and_go() -> None:
    async def work(call: SmallGateway) -> None:
        created = await call("PUT", "/eu%2Forders")
        assert (created.status, created.json) == (201, {"stream": "eu/orders", "created": True})
        assert (await call("PUT", "/eu%2Forders", {})).status == 200
        assert (await call("POST", "/eu%2Forders/records", b"a")).status == 200
        assert (await call("GET", "/eu%2Forders")).json["owner"] == "gateway"
        assert (await call("DELETE", "/eu%2Forders")).status == 204
        answer = await call("GET", "/eu%2Forders")
        assert answer.status == 404
        refused(answer.json, "LOG_NOT_FOUND")

    run(work)


def test_pages_follow_one_another() -> None:
    async def work(call: SmallGateway) -> None:
        names = ["a", "a/b", "a/c", "a-", "b", "orders"]
        for name in names[:-1]:
            await call.client.create_stream(name)
        found = list[str]()
        answer: Any = {"next_page": ""}
        while answer["next_page"] is not None:
            answer = (await call("GET", f"?limit=2&page={answer['next_page']}")).json
            found += answer["streams"]
        assert found == names
        assert (await call("GET", "?prefix=a/")).json == {"streams": ["a/b", "a/c"], "next_page": None}
        await call.client.delete_stream("a/b")
        assert (await call("GET", "?limit=1&page=a/b")).json["streams"] == ["a/c"]

    run(work)


def test_the_gateway_owns_what_it_writes_until_it_is_asked_to_give_it_up() -> None:
    async def work(call: SmallGateway) -> None:
        assert (await call("GET", "/orders/owner")).json == {"stream": "orders", "owner": None}
        assert (await call("POST", "/orders:heartbeat")).json == {"stream": "orders", "owner": "gateway"}
        assert (await call("POST", "/orders:release")).status == 200
        assert call.client.open_writers == []
        call.client.streams["orders"].owner = "somebody"
        answer = await call("POST", "/orders/records", b"a")
        assert (answer.status, answer.json["owner"]) == (409, "somebody")
        refused(answer.json, "LOCK_HELD")
        for action in ("heartbeat", "release", "seal"):
            assert (await call("POST", f"/missing:{action}")).status == 404

    run(work)


def test_positions_are_kept_under_names() -> None:
    async def work(call: SmallGateway) -> None:
        path = "/orders/subscriptions/billing"
        assert (await call("GET", path)).json["position"] is None
        assert (await call("PUT", path, {"position": "1:2:0"})).json["position"] == "1:2:0"
        assert (await call("PUT", path, {"position": "1:1:0"})).json["position"] == "1:2:0"
        assert (await call("PUT", path, {"position": "1:1:0", "reset": True})).json["position"] == "1:1:0"
        assert (await call("DELETE", path)).status == 204
        assert (await call("GET", path)).json["position"] is None
        assert (await call("PUT", "/orders/subscriptions/a%2Fb", {"position": "1:1:0"})).status == 400

    run(work)


# --- What is refused


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1", 404),
        ("GET", "/v1/default", 404),
        ("GET", "/v1/other/streams", 404),
        ("GET", "/v1/default/streams/", 404),
        ("GET", "/v1/default/streams/a/b", 404),
        ("GET", "/v1/default/streams/orders/records/", 404),
        ("PATCH", "/v1/default/streams/orders", 405),
        ("POST", "/v1/default/streams/orders", 405),
        ("HEAD", "/v1/default/streams/orders", 405),
        ("POST", "/v1/default/streams/orders/tail", 405),
        ("PUT", "/v1/default/streams/.hidden", 400),
        ("PUT", "/v1/default/streams/%ff", 400),
        ("PUT", "/v1/default/streams/a%2F%2Fb", 400),
        ("PUT", "/v1/default/streams/orders?force=1", 400),
        ("GET", "/v1/default/streams/orders/tail?from=tomorrow", 400),
        ("GET", "/v1/default/streams/missing/records", 404),
    ],
)
def test_what_is_not_there_or_malformed_is_told_in_one_form(method: str, path: str, status: int) -> None:
    async def work(call: SmallGateway) -> None:
        request = Call(call.gateway.application, method, path, {})
        request.send(b"")
        answer = await request.answer()
        assert answer.status == status
        assert set(answer.json) >= {"code", "message", "hint", "applied", "retry_after_ms"}
        assert answer.json["applied"] == "NO"
        assert ("allow" in answer.headers) == (status == 405)

    run(work)


def test_a_body_that_is_too_large_is_refused_before_it_is_there() -> None:
    """By what the client says of it, or, where it says nothing, as soon as too much has come."""

    async def work(call: SmallGateway) -> None:
        said = call.begin("POST", "/orders/records", content_length=str(RECORD_BYTES_MAX + 1))
        answer = await said.answer()
        assert (answer.status, answer.headers["connection"]) == (413, "close")
        refused(answer.json, "TOO_LARGE_RECORD")
        endless = call.begin("POST", "/orders/records", content_type="application/json")
        for _ in range(BODY_BYTES_MAX // (1 << 20) + 1):
            endless.send(b" " * (1 << 20), more=True)
        answer = await endless.answer()
        assert answer.status == 413
        refused(answer.json, "BODY_TOO_LARGE")

    run(work)


def test_a_body_that_never_ends_is_not_waited_for() -> None:
    async def work(call: SmallGateway) -> None:
        slow = call.begin("POST", "/orders/records")
        slow.send(b"a", more=True)
        answer = await slow.answer()
        assert answer.status == 408
        assert asyncio.get_running_loop().time() >= 30
        leaving = call.begin("POST", "/orders/records")
        leaving.send(b"a", more=True)
        leaving.leave()
        await leaving.task
        assert call.client.streams["orders"].records == []

    run(work)


def test_bodies_that_are_encoded_or_no_json_are_refused() -> None:
    async def work(call: SmallGateway) -> None:
        assert (await call("POST", "/orders/records", b"a", content_encoding="gzip")).status == 415
        assert (await call("POST", "/orders:truncate", b"<a/>", content_type="text/xml")).status == 415
        assert (await call("POST", "/orders:truncate", b'{"dlsn":"1:0:0"}')).status == 200
        assert (await call("POST", "/orders:seal", {"now": True})).status == 400

    run(work)


def test_a_bug_is_an_answer_without_its_traceback() -> None:
    async def work(call: SmallGateway) -> None:
        call.client.append_errors = [InvariantBroken("secret")]
        answer = await call("POST", "/orders/records", b"a")
        assert answer.status == 500
        refused(answer.json, "INTERNAL")
        assert b"secret" not in answer.body

    run(work)


# --- Too much at once


def test_more_than_enough_at_once_is_refused_and_counted() -> None:
    async def work(call: SmallGateway) -> None:
        call.client.append_s = 5.0
        under_way = [
            call.begin("GET", "/orders/tail"),
            call.begin("GET", "/orders/records?from=latest"),
            call.begin("POST", "/orders/records"),
        ]
        under_way[2].send(b"12345")
        await asyncio.sleep(0.5)
        for method, path in (("GET", "/orders/tail"), ("GET", "/orders/records"), ("GET", "")):
            answer = await call(method, path)
            assert (answer.status, answer.headers["retry-after"]) == (429, "1")
            refused(answer.json, "OVER_CAPACITY")
        assert call.gateway.statistics()["refused"] == {"calls": 1, "fetches": 1, "tails": 1, "bodies": 0}
        under_way[0].leave()
        await asyncio.gather(*(each.task for each in under_way))

    run(work, calls_max=1, fetches_max=1, tails_max=1)


def test_bodies_together_are_bounded() -> None:
    async def work(call: SmallGateway) -> None:
        first = call.begin("POST", "/orders/records")
        first.send(b"x" * 8, more=True)
        await asyncio.sleep(0.5)
        assert (await call("POST", "/orders/records", b"123")).status == 429
        first.send(b"")
        assert (await first.answer()).status == 200
        assert (await call("POST", "/orders/records", b"123")).status == 200

    run(work, body_bytes_max=10)


def test_slow_bodies_take_no_room_from_others() -> None:
    """Method: many more clients than there may be requests send a byte a second. Another one appends all the while."""

    async def work(call: SmallGateway) -> None:
        slow = [call.begin("POST", "/orders/records") for _ in range(50)]
        for _ in range(20):
            for each in slow:
                each.send(b"x", more=True)
            await asyncio.sleep(1)
            assert (await call("POST", "/orders/records", b"paid")).status == 200
        assert call.client.streams["orders"].records == [b"paid"] * 20
        for each in slow:
            each.leave()
            await each.task

    run(work, calls_max=2)


def test_slow_bodies_give_way_when_there_is_no_room_for_bytes() -> None:
    """Method: large bodies that stall fill the room for bodies. Others go on as soon as they are slow, and only so many
    of them go as have to."""

    async def work(call: SmallGateway) -> None:
        stalled = [call.begin("POST", "/orders/records") for _ in range(5)]
        for each in stalled:
            each.send(b"x" * 10_000, more=True)
        await asyncio.sleep(0.1)
        assert (await call("POST", "/orders/records", b"too soon")).status == 429
        await asyncio.sleep(2)
        assert (await call("POST", "/orders/records", b"paid")).status == 200
        gone = [each for each in stalled if each.task.done()]
        assert len(gone) == 1
        answer = await gone[0].answer()
        refused(answer.json, "BODY_TIMEOUT")
        assert (answer.status, answer.headers["connection"]) == (408, "close")
        for each in stalled:
            each.send(b"")
        answers = [await each.answer() for each in stalled if each not in gone]
        assert [answer.status for answer in answers] == [200] * 4

    run(work, body_bytes_max=50_000)


def test_a_body_that_arrives_when_too_much_is_under_way_is_refused() -> None:
    async def work(call: SmallGateway) -> None:
        call.client.append_s = 5.0
        late, first = call.begin("POST", "/orders/records"), call.begin("POST", "/orders/records")
        late.send(b"a", more=True)
        first.send(b"b")
        await asyncio.sleep(0.5)
        late.send(b"c")
        answer = await late.answer()
        assert answer.status == 429
        assert answer.json["applied"] == "NO"
        assert (await first.answer()).status == 200
        assert call.client.streams["orders"].records == [b"b"]

    run(work, calls_max=1)


def test_a_client_that_leaves_makes_room_at_once() -> None:
    async def work(call: SmallGateway) -> None:
        waiting = call.begin("GET", "/orders/records?from=latest&wait_ms=30000")
        await asyncio.sleep(1)
        waiting.leave()
        await waiting.task
        assert asyncio.get_running_loop().time() < 2

    run(work)
