"""The admin API over real sockets: what it answers, what it refuses, and how it goes."""

import asyncio
import http.client
import json
import logging
import signal
import socket
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, NamedTuple

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from quire.bookie.admin import server as admin_module
from quire.bookie.admin.server import AdminServer
from quire.bookie.admin.source import BookieStatus, Health
from quire.bookie.metrics import WRITABLE, BookieMetrics
from quire.errors import BookieReadOnly, MetadataUnavailable
from quire.runtime import http_answers
from quire.runtime.http_server import CONNECTIONS_MAX
from quire.telemetry.metrics import Registry
from tests.support.waiting import eventually

BOOKIE = "/api/v1/bookie"


class SmallBookie:
    """What an admin server needs of a bookie, and nothing else."""

    def __init__(self) -> None:
        self.bookie_metrics = BookieMetrics(time.monotonic)
        self.told: list[tuple[str, object]] = []
        self.error: Exception | None = None
        self.answering = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.now = Health(ok=True, state="writable")
        self.readonly = False
        self.suspended = {"major": False, "minor": False}
        self.details: dict[str, Any] = {"version": "1"}

    @property
    def metrics(self) -> Registry:
        return self.bookie_metrics.registry

    def health(self) -> Health:
        return self.now

    def status(self) -> BookieStatus:
        if self.error is not None:
            raise self.error
        return {
            "bookie_id": "bookie-1:3181",
            "running": self.now.state != "starting",
            "readonly": self.readonly,
            "stopping": False,
            "high_priority_writes": True,
            "free_bytes": 700,
            "total_bytes": 1000,
            "journals": [
                {"file": "j0/000a.journal", "file_id": 10, "offset": 512},
                {"file": "j1/000a.journal", "file_id": 10, "offset": 1024},
            ],
            "gc": {
                "forced": False,
                "major_running": False,
                "minor_running": True,
                "major_suspended": self.suspended["major"],
                "minor_suspended": self.suspended["minor"],
                "last_major_ms": 0,
                "last_minor_ms": 1_600_000_000_000,
                "major_count": 0,
                "minor_count": 3,
            },
            "details": self.details,
        }

    async def trigger_gc(self, *, major: bool, minor: bool) -> None:
        self.answering.set()
        await self.may_answer.wait()
        self.told.append(("gc", (major, minor)))

    async def set_readonly(self, readonly: bool) -> None:
        if self.error is not None:
            raise self.error
        self.readonly = readonly
        self.told.append(("readonly", readonly))

    def suspend_compaction(self, *, major: bool, minor: bool) -> None:
        self.suspended = {"major": self.suspended["major"] or major, "minor": self.suspended["minor"] or minor}

    def resume_compaction(self, *, major: bool, minor: bool) -> None:
        self.suspended = {
            "major": self.suspended["major"] and not major,
            "minor": self.suspended["minor"] and not minor,
        }


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    text: str

    @property
    def json(self) -> Any:
        assert self.headers["content-type"] == "application/json"
        return json.loads(self.text)


class Client:
    """One keep-alive connection of the standard library's client; its calls block on a thread."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._connection = http.client.HTTPConnection(*address, timeout=20)

    async def __call__(self, method: str, path: str, body: object = None, **headers: str) -> Answer:
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        return await asyncio.to_thread(self._call, method, path, data, headers)

    def _call(self, method: str, path: str, data: bytes | None, headers: dict[str, str]) -> Answer:
        self._connection.request(method, path, data, headers)
        response = self._connection.getresponse()
        named = {name.lower(): value for name, value in response.getheaders()}
        return Answer(response.status, named, response.read().decode())

    def close(self) -> None:
        self._connection.close()


async def hang_up(*writers: asyncio.StreamWriter) -> None:
    for writer in writers:
        writer.close()
        try:
            await writer.wait_closed()
        except ConnectionError:
            pass  # The server hung up first, and hard.


@pytest.fixture
async def bookie() -> SmallBookie:
    return SmallBookie()


@pytest.fixture
async def call(bookie: SmallBookie) -> AsyncIterator[Client]:
    async with AdminServer(bookie) as admin:
        assert admin.address[0] == "127.0.0.1"
        client = Client(admin.address)
        yield client
        client.close()


# --- What it tells


async def test_health_is_a_status_code_with_reasons(call: Client, bookie: SmallBookie) -> None:
    healthy = await call("GET", "/healthz")
    assert (healthy.status, healthy.json) == (200, {"ok": True, "state": "writable", "reasons": []})
    bookie.now = Health(ok=False, state="failed", reasons=["the journal's disk refused a write"])
    failed = await call("GET", "/healthz")
    assert failed.status == 503
    assert failed.json == {"ok": False, "state": "failed", "reasons": ["the journal's disk refused a write"]}
    assert (await call("GET", "/heartbeat")).text == "OK\n"


async def test_the_paths_of_apache_have_its_field_names(call: Client, bookie: SmallBookie) -> None:
    state = {"running": True, "readOnly": False, "shuttingDown": False, "availableForHighPriorityWrites": True}
    assert (await call("GET", f"{BOOKIE}/state")).json == state
    assert (await call("GET", f"{BOOKIE}/info")).json == {"freeSpace": 700, "totalSpace": 1000}
    assert (await call("GET", f"{BOOKIE}/state/readonly")).json == {"readOnly": False}
    assert (await call("GET", f"{BOOKIE}/gc")).json == {"is_in_force_gc": "false"}
    details = (await call("GET", f"{BOOKIE}/gc_details")).json
    assert details == [
        {
            "forceCompacting": False,
            "majorCompacting": False,
            "minorCompacting": True,
            "lastMajorCompactionTime": 0,
            "lastMinorCompactionTime": 1_600_000_000_000,
            "majorCompactionCounter": 0,
            "minorCompactionCounter": 3,
        }
    ]
    assert (await call("GET", f"{BOOKIE}/last_log_mark")).json == {
        "LastLogMark: Journal Id - 10(j0/000a.journal)": "Pos - 512",
        "LastLogMark: Journal Id - 10(j1/000a.journal)": "Pos - 1024",
    }


async def test_a_bookie_is_ready_once_it_runs(call: Client, bookie: SmallBookie) -> None:
    ready = await call("GET", f"{BOOKIE}/is_ready")
    assert (ready.status, ready.text) == (200, "OK")
    bookie.now = Health(ok=False, state="starting")
    starting = await call("GET", f"{BOOKIE}/is_ready")
    assert starting.status == 503
    assert "not started" in starting.json["error"]


async def test_status_tells_everything_at_once(call: Client, bookie: SmallBookie) -> None:
    status = (await call("GET", f"{BOOKIE}/status")).json
    assert status == {"ok": True, "state": "writable", "reasons": [], **bookie.status()}


async def test_a_scrape_parses_in_both_formats(call: Client, bookie: SmallBookie) -> None:
    """Prometheus asks for OpenMetrics; a person with a browser gets the plain text."""
    bookie.bookie_metrics.status.value = WRITABLE
    bookie.bookie_metrics.storage.write_bytes.value += 1024
    bookie.bookie_metrics.requests.add_entry.ok.observe(0.002, 64)
    plain = await call("GET", "/metrics")
    assert plain.headers["content-type"].startswith("text/plain")
    accept = "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"
    open_metrics = await call("GET", "/metrics", Accept=accept)
    assert open_metrics.headers["content-type"].startswith("application/openmetrics-text")
    modern = list(parse_openmetrics(open_metrics.text))  # type: ignore[no-untyped-call]
    for families in (list(parse_text(plain.text)), modern):
        samples = {
            (sample.name, *sorted(sample.labels.items())): sample.value for each in families for sample in each.samples
        }
        assert samples[("bookie_SERVER_STATUS",)] == 1
        assert samples[("bookie_WRITE_BYTES",)] == 1024
        assert samples[("bookkeeper_server_ADD_ENTRY_REQUEST_count", ("success", "true"))] == 64


# --- What it changes


async def test_the_readonly_switch(call: Client, bookie: SmallBookie) -> None:
    for wanted, sent in ((True, True), (False, "false"), (False, False)):
        answer = await call("PUT", f"{BOOKIE}/state/readonly", {"readOnly": sent})
        assert (answer.status, answer.json) == (200, {"readOnly": wanted})
    assert bookie.told == [("readonly", True), ("readonly", False), ("readonly", False)]


async def test_a_forced_run_leaves_out_what_is_suspended_unless_told(call: Client, bookie: SmallBookie) -> None:
    answer = await call("PUT", f"{BOOKIE}/gc")
    assert (answer.status, answer.json) == (200, "Triggered GC on BookieServer: bookie-1:3181")
    await call("PUT", f"{BOOKIE}/gc", {"forceMajor": False})
    await call("PUT", f"{BOOKIE}/gc/suspend_compaction", {"suspendMajor": True})
    await call("PUT", f"{BOOKIE}/gc", b"")
    await call("PUT", f"{BOOKIE}/gc", {"forceMajor": "true", "forceMinor": "false"})
    assert bookie.told == [("gc", (True, True)), ("gc", (False, True)), ("gc", (False, True)), ("gc", (True, False))]


async def test_compaction_is_suspended_and_resumed_one_kind_at_a_time(call: Client) -> None:
    path = f"{BOOKIE}/gc/suspend_compaction"
    assert (await call("GET", path)).json == {"isMajorGcSuspended": "false", "isMinorGcSuspended": "false"}
    both = await call("PUT", path, {"suspendMajor": True, "suspendMinor": True})
    assert both.json == {"isMajorGcSuspended": "true", "isMinorGcSuspended": "true"}
    await call("PUT", f"{BOOKIE}/gc/resume_compaction", {"resumeMinor": True, "resumeMajor": False})
    assert (await call("GET", path)).json == {"isMajorGcSuspended": "true", "isMinorGcSuspended": "false"}


# --- What it refuses


@pytest.mark.parametrize(
    ("path", "body", "complaint"),
    [
        ("state/readonly", b"{", "not JSON"),
        ("state/readonly", b"\xff\xfe", "not JSON"),
        ("state/readonly", b"[" * 10_000, "not JSON"),
        ("state/readonly", b"[true]", "JSON object"),
        ("state/readonly", b"", "readOnly"),
        ("state/readonly", b'{"readOnly": 1}', "true or false"),
        ("state/readonly", b'{"readonly": true}', "possible: readOnly"),
        ("gc", b'{"forceMajor": "yes"}', "true or false"),
        ("gc", b'{"major": true}', "possible: forceMajor, forceMinor"),
        ("gc/suspend_compaction", b"{}", "suspendMajor, suspendMinor"),
        ("gc/resume_compaction", b'{"resumeMajor": null}', "resumeMajor, resumeMinor"),
    ],
)
async def test_bad_input_is_told_what_is_wrong(
    call: Client, bookie: SmallBookie, path: str, body: bytes, complaint: str
) -> None:
    answer = await call("PUT", f"{BOOKIE}/{path}", body)
    assert answer.status == 400
    assert complaint in answer.json["error"]
    assert (bookie.told, bookie.suspended) == ([], {"major": False, "minor": False})
    assert (await call("GET", "/healthz")).status == 200, "the connection is still good"


async def test_a_body_is_bounded(call: Client, bookie: SmallBookie) -> None:
    answer = await call("PUT", f"{BOOKIE}/state/readonly", b'{"readOnly": true}' + b" " * 20_000)
    assert answer.status == 413
    assert "16384" in answer.json["error"]
    assert bookie.told == []


async def test_a_body_that_never_arrives_is_not_waited_for(call: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_answers, "BODY_TIMEOUT_S", 0.05)
    answer = await call("PUT", f"{BOOKIE}/gc", b"{", **{"content-length": "9"})
    assert answer.status == 408
    assert answer.headers["connection"] == "close"


async def test_unknown_paths_and_methods_are_refused_in_json(call: Client) -> None:
    missing = await call("GET", "/api/v1/nothing")
    assert (missing.status, missing.json) == (404, {"error": "There is no /api/v1/nothing here."})
    wrong = await call("DELETE", f"{BOOKIE}/gc")
    assert wrong.status == 405
    assert "DELETE" in wrong.json["error"]
    assert set(wrong.headers["allow"].split(", ")) == {"GET", "HEAD", "PUT"}
    assert (await call("HEAD", "/metrics")).text == ""


async def test_errors_of_the_bookie_are_sentences(
    call: Client, bookie: SmallBookie, caplog: pytest.LogCaptureFixture
) -> None:
    """A refusal is 409 with its hint; anything else is 500. The traceback is in the log, and only there."""
    expected = [
        (BookieReadOnly("the disk is full", hint="Free space first."), 409, "the disk is full"),
        (MetadataUnavailable("no answer"), 500, "no answer"),
        (ZeroDivisionError("oh"), 500, "The request could not be answered: ZeroDivisionError: oh"),
    ]
    for error, status, sentence in expected:
        bookie.error = error
        answer = await call("PUT", f"{BOOKIE}/state/readonly", {"readOnly": False})
        assert (answer.status, answer.json["error"]) == (status, sentence)
        assert "Traceback" not in answer.text
    failed = [record for record in caplog.records if getattr(record, "event", "") == "admin.request_failed"]
    assert [record.exc_info[1] for record in failed if record.exc_info] == [expected[1][0], expected[2][0]]


async def test_a_status_that_json_cannot_hold_is_an_error_of_the_bookie(call: Client, bookie: SmallBookie) -> None:
    bookie.details = {"usage": float("nan")}
    answer = await call("GET", f"{BOOKIE}/status")
    assert answer.status == 500
    assert "ValueError" in answer.json["error"]


# --- How it comes and goes


async def test_it_stops_at_once_with_idle_and_half_open_connections(bookie: SmallBookie) -> None:
    """One keep-alive connection, one that never said anything, one in the middle of a header, one of a body."""
    async with AdminServer(bookie) as admin:
        kept = Client(admin.address)
        assert (await kept("GET", "/healthz")).status == 200
        put = f"PUT {BOOKIE}/gc HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n{{".encode()
        silent = [await asyncio.open_connection(*admin.address) for _ in range(3)]
        for (_, writer), sent in zip(silent, (b"", b"GET /healthz HT", put), strict=True):
            writer.write(sent)
            await writer.drain()
        began_s = time.monotonic()
    assert time.monotonic() - began_s < 5
    for reader, writer in silent:
        with suppress(ConnectionError):  # What it had not read when it stopped is reset.
            async with asyncio.timeout(20):
                await reader.read()
        await hang_up(writer)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(*admin.address)
    kept.close()


async def test_a_request_under_way_gets_its_answer_before_the_end(
    bookie: SmallBookie, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin_module, "STOP_TIMEOUT_S", 20)  # However slow the machine is.
    bookie.may_answer.clear()
    async with AdminServer(bookie) as admin:
        client = Client(admin.address)
        pending = asyncio.create_task(client("PUT", f"{BOOKIE}/gc"))
        async with asyncio.timeout(20):
            await bookie.answering.wait()
        answering = asyncio.create_task(answer_once_closed(bookie, admin.address))
    await answering
    assert (await pending).status == 200
    client.close()


async def answer_once_closed(bookie: SmallBookie, address: tuple[str, int]) -> None:
    async def closed() -> bool:
        try:
            _, writer = await asyncio.open_connection(*address)
        except ConnectionError:
            return True
        await hang_up(writer)
        return False

    await eventually(closed, what="the server takes no more connections")
    bookie.may_answer.set()


async def test_a_request_that_never_ends_does_not_keep_the_server(bookie: SmallBookie) -> None:
    bookie.may_answer.clear()
    async with AdminServer(bookie) as admin:
        client = Client(admin.address)
        pending = asyncio.create_task(client("PUT", f"{BOOKIE}/gc"))
        async with asyncio.timeout(20):
            await bookie.answering.wait()
    assert bookie.told == []
    try:
        assert (await pending).status == 500
    except (http.client.HTTPException, OSError):
        pass  # Cut off without an answer is as good.
    client.close()


async def test_a_cancelled_stop_leaves_nothing_behind(bookie: SmallBookie) -> None:
    before = asyncio.all_tasks()
    bookie.may_answer.clear()
    admin = AdminServer(bookie)
    await admin.__aenter__()
    _, writer = await asyncio.open_connection(*admin.address)
    writer.write(f"PUT {BOOKIE}/gc HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n".encode())
    async with asyncio.timeout(20):
        await bookie.answering.wait()
    stopping = asyncio.create_task(admin.__aexit__(None, None, None))
    await asyncio.sleep(0)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert asyncio.all_tasks() == before
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(*admin.address)
    await hang_up(writer)


async def test_a_page_of_another_site_cannot_switch_anything(call: Client, bookie: SmallBookie) -> None:
    for strange in ({"host": "evil.example"}, {"origin": "https://evil.example"}):
        assert (await call("PUT", f"{BOOKIE}/state/readonly", {"readOnly": True}, **strange)).status == 403
        assert (await call("PUT", f"{BOOKIE}/gc", **strange)).status == 403
        assert (await call("GET", "/metrics", **strange)).status == 403
    assert bookie.told == []
    assert (await call("GET", "/metrics")).status == 200


async def test_connections_are_bounded_and_silent_ones_shut_nobody_out(bookie: SmallBookie) -> None:
    """The first of the silent ones makes room for the one too many; who asks now and then is not concerned."""
    async with AdminServer(bookie) as admin:
        client = Client(admin.address)
        assert (await client("GET", "/healthz")).status == 200
        opened = [await asyncio.open_connection(*admin.address) for _ in range(CONNECTIONS_MAX)]
        async with asyncio.timeout(20):
            with suppress(ConnectionError):
                assert await opened[0][0].read() == b""
        assert (await client("GET", "/healthz")).status == 200
        late = Client(admin.address)
        assert (await late("GET", "/healthz")).status == 200
        client.close()
        late.close()
        await hang_up(*(writer for _, writer in opened))


async def test_a_taken_address_is_an_error_and_not_the_end_of_the_process(bookie: SmallBookie) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError, match="in use"):
        async with AdminServer(bookie, "127.0.0.1", taken.getsockname()[1]):
            pass


async def test_the_process_around_it_stays_as_it_was(bookie: SmallBookie) -> None:
    """No signal handlers, no changed loggers: a program may have a web server of its own."""

    def surroundings() -> list[object]:
        loggers = [logging.getLogger(name) for name in ("", "uvicorn", "uvicorn.access", "uvicorn.error")]
        settings = [(each.level, tuple(each.handlers), each.propagate, each.disabled) for each in loggers]
        return [signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM), *settings]

    before = surroundings()
    untouched = (logging.NOTSET, (), True, False)
    assert before[-3:] == [untouched] * 3, "nor did an earlier server of this process"
    async with AdminServer(bookie) as admin:
        client = Client(admin.address)
        assert (await client("GET", "/healthz")).status == 200
        assert surroundings() == before
        client.close()
    assert surroundings() == before
