"""Blocking code on a real cluster: writers and readers in threads, errors, interruptions, closing, forks."""

import asyncio
import threading
from collections.abc import Iterator, Sequence
from functools import partial

import pytest

import quire
from quire import sync
from quire.errors import (
    HandleClosed,
    InvalidArgument,
    LockLost,
    NoSuchLedger,
    NoSuchStream,
    StreamOwned,
    StreamSealed,
    TxidOutOfOrder,
)
from quire.metadata import HeldLock
from quire.stream.namespace import Namespace
from quire.sync.handles import Handle
from tests.support.servers.one_bookie import LEDGERS, ONE, SETTINGS, STORE, OneBookie, one_bookie
from tests.support.things import Worker, announced, in_fork, interrupt_when
from tests.support.waiting import eventually

pytestmark = pytest.mark.timeout(120)
STREAMS = iter(f"stream-{number}" for number in range(1000))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OneBookie]:
    with one_bookie(tmp_path_factory.mktemp("cluster")) as found:
        yield found


@pytest.fixture
def client(cluster: OneBookie) -> Iterator[sync.Client]:
    with sync.connect(cluster.streams, settings=SETTINGS, store_settings=STORE) as opened:
        yield opened


@pytest.fixture
def stream() -> str:
    return next(STREAMS)


def write(client: sync.Client, stream: str, txids: range, *, seal: bool = False) -> Sequence[quire.DLSN]:
    with client.open_writer(stream) as writer:
        dlsns = writer.append_many([b"%d" % txid for txid in txids], txids=txids)
        if seal:
            writer.seal()
    return dlsns


# --- Writing and reading


def test_records_go_in_and_come_out(client: sync.Client, stream: str) -> None:
    client.create_stream(stream)
    with client.open_writer(stream) as writer:
        first = writer.append(b"1", txid=1)
        many = writer.append_many([b"2", b"3"], txids=[2, 3])
        a_set = writer.append_set([b"4", b"5"], txid=4, compression="lz4")
        writer.flush()
        assert writer.stream == stream
        assert writer.last_txid == 4
        assert writer.statistics().last_dlsn == a_set[-1]
        writer.seal()
        with pytest.raises(StreamSealed):
            writer.append(b"6")
    with client.open_reader(stream) as reader:
        records = list(reader)
        assert [record.payload for record in records] == [b"1", b"2", b"3", b"4", b"5"]
        assert [record.dlsn for record in records] == [first, *many, *a_set]
        assert list(reader) == [], "the end is the end"
        with pytest.raises(StreamSealed):
            reader.read_many(1)
    with client.open_reader(stream, start=quire.txid(3)) as reader:
        assert [record.payload for batch in reader.batches() for record in batch] == [b"3", b"4", b"5"]
    info = client.stream_info(stream)
    assert (info.record_count, info.is_sealed) == (5, True)


def test_iteration_takes_whole_batches_over(client: sync.Client, stream: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write(client, stream, range(20_000), seal=True)
    crossings, call = [0], Handle._call

    def counting(self: Handle, *arguments: object, **options: object) -> object:
        crossings[0] += 1
        return call(self, *arguments, **options)  # type: ignore[arg-type]

    with client.open_reader(stream) as reader:
        monkeypatch.setattr(Handle, "_call", counting)
        assert [record.txid for record in reader] == list(range(20_000))
        assert crossings[0] < 100


def test_the_position_is_that_of_what_was_given(client: sync.Client, stream: str) -> None:
    """Though records of the same batch have come over already: none of them may be skipped later."""
    dlsns = write(client, stream, range(100), seal=True)
    with client.open_reader(stream, subscription="s") as reader:
        assert reader.position == dlsns[0]
        reader._fill(10.0)  # All that an interrupted call does.
        assert reader.position == dlsns[0]
        assert reader.statistics().records == 0
        assert next(reader).txid == 0
        assert reader.position == dlsns[0].next_slot()
        assert [record.txid for record in reader.read_many(4)] == [1, 2, 3, 4]
        assert reader.position == dlsns[4].next_slot()
        assert (reader.statistics().records, reader.statistics().position) == (5, dlsns[4].next_slot())
        assert not reader.statistics().at_tail
        assert reader.commit() == dlsns[4].next_slot()
        batches = reader.batches()
        assert [record.txid for record in next(batches)] == list(range(5, 100))
        assert reader.position >= dlsns[-1].next_slot()
        assert reader.statistics().records == 100
    assert client.subscriptions(stream) == {"s": dlsns[4].next_slot()}
    with client.open_reader(stream, subscription="s") as reader:
        assert next(reader).txid == 5
    client.delete_subscription(stream, "s")


def test_a_reader_follows_a_writer_in_another_thread(client: sync.Client, stream: str) -> None:
    client.create_stream(stream)

    def follow() -> list[bytes]:
        with client.open_reader(stream) as reader:
            return [record.payload for record in reader]

    worker = Worker(follow)
    with client.open_writer(stream) as writer:
        for number in range(50):
            writer.append(b"%d" % number)
        writer.seal()
    assert worker.result() == [b"%d" % number for number in range(50)]


def test_many_threads_append_and_readers_take_turns(client: sync.Client, stream: str) -> None:
    with client.open_writer(stream) as writer:

        def append(name: str) -> None:
            for number in range(20):
                writer.append(f"{name} {number}".encode())

        for worker in [Worker(partial(append, name)) for name in "abcd"]:
            assert worker.result() is None
        writer.seal()
    with client.open_reader(stream) as reader:
        workers = [Worker(lambda: [record.payload for record in reader]) for _ in range(3)]
        results = [worker.result() for worker in workers]
    found = [payload for result in results if isinstance(result, list) for payload in result]
    assert sorted(found) == sorted(f"{name} {number}".encode() for name in "abcd" for number in range(20))


# --- Errors


def test_errors_keep_their_types(client: sync.Client, cluster: OneBookie, stream: str) -> None:
    with pytest.raises(NoSuchStream), client.open_reader("missing"):
        pass
    with pytest.raises(NoSuchStream):
        client.delete_stream("missing")
    with client.open_writer(stream) as writer:
        writer.append(b"", txid=5)
        with pytest.raises(TxidOutOfOrder):
            writer.append(b"", txid=4)
        with (
            sync.connect(cluster.streams, settings=SETTINGS, store_settings=STORE) as other,
            pytest.raises(StreamOwned),
            other.open_writer(stream, lock_timeout_s=0),
        ):
            pass
    with client.open_reader(stream) as reader:
        next(reader)
        assert reader.read_many(10, timeout_s=0.1) == []
        with pytest.raises(InvalidArgument):
            reader.read_many(0)
        with pytest.raises(InvalidArgument):
            reader.commit()
    with pytest.raises(ZeroDivisionError), client.open_writer(stream):
        raise ZeroDivisionError
    assert client.stream_info(stream).owner is None


def test_nothing_that_is_ready_is_given_once_the_lock_is_lost(client: sync.Client, stream: str) -> None:
    dlsns = write(client, stream, range(10), seal=True)
    with client.open_reader(stream, exclusive=True) as reader:
        assert next(reader).txid == 0
        held = reader._lock
        assert isinstance(held, HeldLock)
        reader._ask(held._lost.set)  # As the end of a session does.
        with pytest.raises(LockLost):
            next(reader)
        assert reader.position == dlsns[0].next_slot()
        with pytest.raises(LockLost):
            reader.read_many(5)


# --- Interruptions


def test_an_interrupted_reader_goes_on_without_a_gap(
    client: sync.Client, stream: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.create_stream(stream)
    with client.open_writer(stream) as writer, client.open_reader(stream) as reader:
        writer.append(b"0")
        assert next(reader).payload == b"0"
        asked = threading.Event()
        monkeypatch.setattr(reader._thread, "call", announced(reader._thread.call, asked))
        for number in range(1, 6):
            asked.clear()
            with pytest.raises(KeyboardInterrupt), interrupt_when(asked):
                next(reader)
            writer.append(b"%d" % number)
            assert next(reader).payload == b"%d" % number
            assert writer.last_txid > 0


def test_an_interrupted_opening_leaves_the_client_usable(client: sync.Client, stream: str, cluster: OneBookie) -> None:
    with (
        sync.connect(cluster.streams, settings=SETTINGS, store_settings=STORE, client_id="other") as other,
        other.open_writer(stream) as writer,
    ):
        writer.append(b"theirs")
        waits = threading.Event()

        async def is_in_the_queue() -> bool:
            assert isinstance(other._namespace, Namespace)
            context = other._namespace.context
            members = other._call(lambda: context.store.children(context.paths(stream).lock))
            return len(members.names) == 2

        def tell() -> None:
            asyncio.run(eventually(is_in_the_queue, what="the client waits for the lock"))
            waits.set()

        teller = Worker(tell)
        with (
            pytest.raises(KeyboardInterrupt),
            interrupt_when(waits),
            client.open_writer(stream, lock_timeout_s=30.0),
        ):
            pass
        teller.result()
        writer.append(b"still theirs")
    with client.open_writer(stream) as writer:
        writer.append(b"ours")
        writer.seal()
    with client.open_reader(stream) as reader:
        assert [record.payload for record in reader] == [b"theirs", b"still theirs", b"ours"]


# --- Closing


def test_closing_a_client_ends_what_waits(cluster: OneBookie, stream: str) -> None:
    with sync.connect(cluster.streams, settings=SETTINGS, store_settings=STORE) as client:
        client.create_stream(stream)
        begun = threading.Barrier(4)

        def tail(read: str) -> object:
            with client.open_reader(stream) as reader:
                begun.wait(20)
                return next(reader) if read == "next" else next(reader.batches())

        def watch() -> object:
            names = client.watch_streams()
            next(names)
            begun.wait(20)
            return next(names)

        workers = [Worker(lambda: tail("next")), Worker(lambda: tail("batches")), Worker(watch)]
        begun.wait(20)
    assert [type(worker.result()) for worker in workers] == [HandleClosed] * 3
    assert [thread.name for thread in threading.enumerate() if thread.name == "quire-sync"] == []


def test_a_client_that_closes_has_appends_of_other_threads_acknowledged(cluster: OneBookie, stream: str) -> None:
    with sync.connect(cluster.streams, settings=SETTINGS, store_settings=STORE) as client:
        writer = client.open_writer(stream, transmit="periodic", flush_interval_s=10.0)
        worker = Worker(lambda: writer.append(b"x"))

        async def is_queued() -> bool:
            return writer.statistics().waiting_records == 1

        asyncio.run(eventually(is_queued, what="the record waits to be sent"))
    assert isinstance(worker.result(), quire.DLSN)
    with sync.connect(cluster.streams, settings=SETTINGS, store_settings=STORE) as client:
        assert client.stream_info(stream).record_count == 1


def test_a_closed_reader_gives_nothing_more(client: sync.Client, stream: str) -> None:
    dlsns = write(client, stream, range(10))
    with client.open_reader(stream) as reader:
        next(reader)
        reader.close()
        with pytest.raises(HandleClosed):
            next(reader)
    with client.open_reader(stream) as reader:
        next(reader)
    with pytest.raises(HandleClosed):
        next(reader)
    assert reader.position == dlsns[0].next_slot()


# --- Forks


def test_a_fork_opens_a_client_of_its_own(cluster: OneBookie, client: sync.Client, stream: str) -> None:
    write(client, stream, range(10), seal=True)
    with client.open_reader(stream) as reader:
        assert next(reader).txid == 0

        def in_child() -> bool:
            with pytest.raises(HandleClosed, match="fork"):
                next(reader)
            with pytest.raises(HandleClosed, match="fork"):
                client.list_streams()
            with (
                sync.connect(cluster.streams, settings=SETTINGS, store_settings=STORE) as own,
                own.open_reader(stream) as again,
            ):
                return [record.txid for record in again] == list(range(10))

        assert in_fork(in_child)
        assert [record.txid for record in reader] == list(range(1, 10))


# --- Ledgers


def test_ledgers_are_written_and_read(cluster: OneBookie) -> None:
    payloads = [b"%d" % number for number in range(3000)]
    with sync.ledgers(cluster.ledgers, settings=LEDGERS) as ledgers:
        with ledgers.create(**ONE, password=b"p", custom={"k": b"v"}) as ledger:
            assert ledger.append(payloads[0]) == 0
            assert ledger.append_many(payloads[1:2000])[-1] == 1999
            assert len(ledger.enqueue(payloads[2000:])) == 1000
            assert ledger.flush() == ledger.last_add_confirmed == 2999
            assert ledger.is_idle
            assert ledger.statistics().confirmed == 2999
        with ledgers.open(ledger.id, password=b"p") as reader:
            assert reader.is_closed
            assert [entry.payload for entry in reader.read()] == payloads
            assert [entry.entry_id for entry in reader.read(10, 12)] == [10, 11, 12]
            assert [entry.payload for entry in reader.follow(2990)] == payloads[2990:]
            assert sum(map(len, reader.follow_windows())) == 3000
            assert reader.read_entry(ledger.last_add_confirmed).payload == b"2999"
            with pytest.raises(InvalidArgument):
                reader.read(0, 3000)
            assert reader.metadata.metadata.custom == {"k": b"v"}
        assert ledger.id in set(ledgers.scan())
        ledgers.delete(ledger.id)
        with pytest.raises(NoSuchLedger), ledgers.open(ledger.id):
            pass


def test_a_ledger_is_followed_from_another_thread(cluster: OneBookie) -> None:
    with sync.ledgers(cluster.ledgers, settings=LEDGERS) as ledgers:
        with ledgers.create_advanced(**ONE) as ledger:

            def follow() -> list[bytes]:
                with ledgers.open(ledger.id, recover=False) as reader:
                    entry = reader.wait_entry(0, timeout_s=30.0)
                    assert entry is not None
                    return [entry.payload, *(entry.payload for entry in reader.follow(1))]

            worker = Worker(follow)
            later = Worker(lambda: ledger.append(1, b"b"))
            assert ledger.append(0, b"a") == 0
            assert later.result() == 1
            assert ledger.append_many([(3, b"d"), (2, b"c")]) == [3, 2]
        assert worker.result() == [b"a", b"b", b"c", b"d"]
        assert ledgers.recover(ledger.id).metadata.last_entry_id == 3
        assert ledgers.statistics() is not None
        assert ledgers.id_of(3) == 3
