"""Settings that change while a program runs: what a file may say, what counts, and what a broken one does."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import fields

import pytest

from quire.errors import InvalidArgument, InvalidName
from quire.runtime import Runtime, replace_file
from quire.stream.dynamic_settings import (
    ADOPTED,
    FILE_BYTES_MAX,
    DynamicSettings,
    adopted,
    follow_settings,
    parse_settings,
)
from quire.stream.settings import StreamSettings
from quire.testing import Simulation, simulate

BASE = StreamSettings(retention_s=1000.0)
PATH = "/etc/streams.toml"
INTERVAL_S = 10.0


def settings(text: str) -> DynamicSettings:
    return DynamicSettings(BASE, parse_settings(text.encode(), BASE))


# --- What counts


def test_without_a_file_the_settings_of_the_namespace_count() -> None:
    assert DynamicSettings(BASE).of("orders") == BASE
    assert DynamicSettings(BASE).of("orders", ack_quorum=3).ack_quorum == 3


def test_a_name_counts_before_patterns_and_those_before_the_default() -> None:
    found = settings(
        """
        [orders]
        retention_s = 1
        [default]
        retention_s = 4
        compression = "lz4"
        ["o*"]
        retention_s = 3
        keepalive_s = 3
        ["*s"]
        retention_s = 2
        """
    )
    assert found.of("orders").retention_s == 1
    assert found.of("oranges").retention_s == 2, "of two patterns that fit the later one"
    assert found.of("oranges").keepalive_s == 3
    assert found.of("other").retention_s == 3
    assert found.of("nested/order").retention_s == 4
    assert found.of("orders").compression == "lz4"
    assert found.of("orders", retention_s=7.5).retention_s == 7.5, "the program's own word comes first"


def test_a_pattern_reaches_across_slashes_and_tells_upper_from_lower_case() -> None:
    found = settings('["metrics/*"]\nretention_s = 1')
    assert found.of("metrics/a/b").retention_s == 1
    assert found.of("Metrics/a").retention_s == 1000


def test_every_field_but_secrets_may_be_given() -> None:
    given = {
        field.name: getattr(BASE, field.name) for field in fields(BASE) if field.name not in ("digest", "password")
    }
    lines = [
        f"{name} = {str(value).lower() if isinstance(value, bool) else repr(value)}" for name, value in given.items()
    ]
    assert settings("[default]\n" + "\n".join(lines)).of("orders") == BASE


def test_what_is_open_adopts_only_what_can_change_in_the_middle() -> None:
    running = StreamSettings(password=b"secret", window_records_max=7)
    newest = StreamSettings(ack_quorum=3, transmit="periodic", flush_interval_s=2.0, window_records_max=9, idle_s=1.0)
    after = adopted(running, newest)
    assert {name: getattr(after, name) for name in ADOPTED} == {name: getattr(newest, name) for name in ADOPTED}
    assert (after.password, after.window_records_max, after.idle_s) == (b"secret", 7, running.idle_s)


# --- What is refused


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[orders", "not TOML"),
        ("retention_s = 1", "not in a table"),
        ("[orders]\nretension_s = 1", "retension_s"),
        ("[orders]\npassword = 'x'", "password"),
        ("[orders]\nretention_s = '1'", "takes a number"),
        ("[orders]\nack_quorum = 1.5", "takes a whole number"),
        ("[orders]\nack_quorum = true", "takes a whole number"),
        ("[orders]\ntruncated_only = 1", "takes true or false"),
        ("[orders]\ncompression = 'zip'", "zip"),
        ("[orders]\nack_quorum = 4", r"\[orders\]"),
        ("[default]\nretention_s = -1", r"\[default\]"),
        ("['*']\nentry_bytes = 0", r"\[\*\]"),
        ("[default]\nwrite_quorum = 2\n[orders]\nack_quorum = 3", r"\[orders\]"),
    ],
)
def test_a_wrong_file_is_refused_with_the_place_that_is_wrong(text: str, problem: str) -> None:
    with pytest.raises(InvalidArgument, match=problem):
        settings(text)


def test_an_unknown_name_is_told_what_there_is() -> None:
    with pytest.raises(InvalidArgument) as refused:
        settings("[orders]\nretension_s = 1")
    assert "Did you mean retention_s?" in refused.value.hint
    assert "roll_interval_s" in refused.value.hint
    with pytest.raises(InvalidArgument) as refused:
        DynamicSettings(BASE).of("orders", retension_s=1)  # type: ignore[call-arg]
    assert "retention_s" in refused.value.hint


def test_bytes_that_are_no_text_and_names_that_name_no_stream_are_refused() -> None:
    with pytest.raises(InvalidArgument, match="not TOML"):
        parse_settings(b"\xff", BASE)
    with pytest.raises(InvalidName):
        settings("['a b']\nretention_s = 1")


def test_patterns_that_do_not_fit_together_leave_the_stream_as_it_was(caplog: pytest.LogCaptureFixture) -> None:
    found = settings('["a*"]\nack_quorum = 3\n["*b"]\nwrite_quorum = 2')
    with caplog.at_level(logging.WARNING, "quire.stream"):
        assert found.of("ab") == BASE
    assert "settings.unfit" in caplog.text
    with pytest.raises(InvalidArgument):
        found.of("ab", ack_quorum=9)


# --- Following a file


Check = Callable[["Followed"], Awaitable[None]]


class Followed:
    def __init__(self, runtime: Runtime, settings: DynamicSettings) -> None:
        self.runtime, self.settings = runtime, settings

    async def write(self, text: str) -> None:
        await replace_file(self.runtime.disk, PATH, text.encode())

    async def pass_time(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    @property
    def retention_s(self) -> float:
        return self.settings.of("orders").retention_s


def followed(check: Check, text: str = "[default]\nretention_s = 1") -> None:
    async def main(sim: Simulation) -> None:
        runtime = sim.host("client").runtime
        await runtime.disk.makedirs("/etc")
        await replace_file(runtime.disk, PATH, text.encode())
        async with follow_settings(runtime, BASE, PATH, reload_interval_s=INTERVAL_S) as settings:
            await check(Followed(runtime, settings))

    simulate(0, main)


def test_a_change_counts_after_the_interval_and_not_before() -> None:
    async def check(at: Followed) -> None:
        assert at.retention_s == 1
        await at.write("[orders]\nretention_s = 2")
        await at.pass_time(INTERVAL_S * 0.9)
        assert at.retention_s == 1
        await at.pass_time(INTERVAL_S * 0.2)
        assert at.retention_s == 2

    followed(check)


def test_a_broken_file_changes_nothing_and_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    async def check(at: Followed) -> None:
        with caplog.at_level(logging.INFO, "quire.stream"):
            await at.write("[orders]\nretention_s = 'long'")
            await at.pass_time(INTERVAL_S * 5.5)
            assert at.retention_s == 1
            refusals = [record for record in caplog.records if record.__dict__["event"] == "settings.refused"]
            assert len(refusals) == 1
            assert "retention_s" in refusals[0].getMessage()
            await at.write("[orders]\nretention_s = 3")
            await at.pass_time(INTERVAL_S)
            assert at.retention_s == 3

    followed(check)


def test_a_file_that_is_gone_for_a_while_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def check(at: Followed) -> None:
        await at.runtime.disk.unlink(PATH)
        with caplog.at_level(logging.WARNING, "quire.stream"):
            await at.pass_time(INTERVAL_S * 1.5)
        assert at.retention_s == 1
        assert "settings.refused" in caplog.text
        await at.write("[default]\nretention_s = 1\n[orders]\nretention_s = 4")
        await at.pass_time(INTERVAL_S)
        assert at.retention_s == 4

    followed(check)


def test_a_file_of_any_size_is_not_read() -> None:
    async def check(at: Followed) -> None:
        await at.write("#" * (FILE_BYTES_MAX + 1))
        await at.pass_time(INTERVAL_S * 1.5)
        assert at.retention_s == 1

    followed(check)


@pytest.mark.parametrize("text", [None, "[orders"])
def test_at_the_beginning_a_missing_or_wrong_file_is_an_error(text: str | None) -> None:
    async def main(sim: Simulation) -> None:
        runtime = sim.host("client").runtime
        if text is not None:
            await runtime.disk.makedirs("/etc")
            await replace_file(runtime.disk, PATH, text.encode())
        with pytest.raises(InvalidArgument, match=PATH):
            async with follow_settings(runtime, BASE, PATH):
                raise AssertionError("open")

    simulate(0, main)


def test_an_interval_has_some_length() -> None:
    async def main(sim: Simulation) -> None:
        with pytest.raises(InvalidArgument):
            async with follow_settings(sim.host("client").runtime, BASE, PATH, reload_interval_s=0):
                raise AssertionError("open")

    simulate(0, main)
