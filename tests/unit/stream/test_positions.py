"""Positions as text: every form, what is refused, and readers that take them."""

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.streams.namespace_world import World, in_namespace

from quire.codec.stream.limits import TXID_MAX
from quire.errors import InvalidArgument
from quire.stream.positions import FORMS, parse_position
from quire.stream.start import Time, Txid
from quire.types import DLSN, EntryId, Lssn, SlotId

PLACES = st.builds(
    lambda lssn, entry, slot: DLSN(Lssn(lssn), EntryId(entry), SlotId(slot)),
    st.integers(0, 2**62),
    st.integers(-1, 2**62),
    st.integers(-1, 2**62),
)
MIN, MAX = datetime(1, 1, 2), datetime(9999, 12, 30)  # noqa: DTZ001 - Hypothesis adds the zone
OFFSETS = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))


def place(lssn: int, entry_id: int, slot_id: int) -> DLSN:
    return DLSN(Lssn(lssn), EntryId(entry_id), SlotId(slot_id))


def test_every_form_that_is_documented_is_understood() -> None:
    assert parse_position("earliest") == "earliest"
    assert parse_position("latest") == "latest"
    assert parse_position("3:17:0") == place(3, 17, 0)
    assert parse_position(">3:17:0") == place(3, 17, 1)
    assert parse_position("tx:1700000000000") == Txid(1_700_000_000_000)
    begin = Time(datetime(2026, 1, 1, tzinfo=UTC))
    assert parse_position("t:2026-01-01T00:00:00Z") == begin
    assert parse_position("t:2026-01-01") == begin
    for form in FORMS.replace(" or ", ", ").split(", "):
        parse_position(form)


@given(PLACES)
def test_a_place_is_what_its_text_says_and_behind_it_is_the_next_one(at: DLSN) -> None:
    assert parse_position(str(at)) == at
    behind = parse_position(f">{at}")
    assert isinstance(behind, DLSN)
    assert at < behind <= at.next_entry()
    assert behind == at.next_slot()


@given(st.integers(-TXID_MAX - 1, TXID_MAX))
def test_a_txid_is_any_number_of_64_bits(txid: int) -> None:
    assert parse_position(f"tx:{txid}") == Txid(txid)


@given(st.datetimes(MIN, MAX, timezones=OFFSETS), st.sampled_from("T "))
def test_a_moment_is_the_same_in_every_zone(moment: datetime, between: str) -> None:
    moment = moment.replace(microsecond=moment.microsecond // 1000 * 1000)
    found = parse_position(f"t:{moment.isoformat(sep=between)}")
    in_utc = parse_position(f"t:{moment.astimezone(UTC).isoformat().replace('+00:00', 'Z')}")
    assert isinstance(found, Time)
    assert isinstance(in_utc, Time)
    assert found.ms == in_utc.ms
    assert datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=found.ms) == moment, "to the millisecond"


@given(st.dates())
def test_a_day_begins_at_midnight_in_utc(day: object) -> None:
    found = parse_position(f"t:{day}")
    assert isinstance(found, Time)
    assert found.ms % 86_400_000 == 0
    assert found == parse_position(f"t:{day}T00:00Z")


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            " ",
            "end",
            "LATEST",
            "earliest ",
            "0",
            "3",
            "3:17",
            "3:17:0:1",
            "3:17:x",
            ">",
            ">latest",
            ">>3:17:0",
            "> 3:17:0",
        ),
        *("tx", "tx:", "tx:x", "tx:1.5", "tx: 5", "tx:+5", "tx:٣", f"tx:{TXID_MAX + 1}", "tx:99999999999999999999"),
        *(
            "t:",
            "t:now",
            "t:12:00",
            "t:2026",
            "t:20260101",
            "t:2026-W01-1",
            "t:2026-13-01",
            "t:2026-02-30",
            "t:2026-1-1",
        ),
        *("t:2026-01-01T", "t:2026-01-01T25:00Z", "t:2026-01-01T00:00Zebra", "t:2026-01-01T00Z", "T:2026-01-01"),
        *("t:1700000000000", "t:1700000000", "TX:5", "3:17:0\n", "t:2026-01-01\n", "tx:5\n"),
    ],
)
def test_what_is_no_position_is_refused_with_all_forms(text: str) -> None:
    with pytest.raises(InvalidArgument, match="no position in a stream") as caught:
        parse_position(text)
    assert caught.value.hint == f"Write {FORMS}."
    assert repr(text) in str(caught.value)


def test_a_moment_without_a_zone_is_refused_with_the_reason() -> None:
    with pytest.raises(InvalidArgument, match="no time zone") as caught:
        parse_position("t:2026-01-01T00:00:00")
    assert "Z" in caught.value.hint


@given(st.text(max_size=40))
def test_no_text_is_anything_but_a_position_or_refused(text: str) -> None:
    for form in (text, f">{text}", f"tx:{text}", f"t:{text}"):
        try:
            found = parse_position(form)
        except InvalidArgument:
            continue
        assert isinstance(found, DLSN | Txid | Time) or found in ("earliest", "latest")


def test_readers_begin_where_the_text_says() -> None:
    async def check(world: World) -> None:
        namespace = world.namespace
        async with namespace.open_writer("s") as writer:
            dlsns = await writer.append_many([b"a", b"b", b"c"], txids=[10, 20, 30])
        for start, wanted in (
            ("earliest", b"abc"),
            (str(dlsns[1]), b"bc"),
            (f">{dlsns[1]}", b"c"),
            ("tx:11", b"bc"),
            ("t:1970-01-01T00:00:00.030Z", b"c"),
        ):
            async with namespace.open_reader("s", start=start) as reader:
                got = [record.payload for record in await reader.read_many(len(wanted), timeout_s=10)]
                assert b"".join(got) == wanted, start
        async with namespace.open_reader("s", start="latest") as reader:
            assert reader.position > dlsns[-1]
        with pytest.raises(InvalidArgument, match="no position"):
            namespace.open_reader("s", start="3:17")

    in_namespace(check, bookies=3)
