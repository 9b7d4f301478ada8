"""The etcd driver without etcd: operations become transactions, failures become errors, pages become listings.

`EtcdModel` does what etcd documents about comparisons, ranges and leases. That real etcd does the same is checked by
random transactions in `tests/integration/metadata/test_etcd_driver.py`.
"""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quire.errors import (
    InvariantBroken,
    NodeExists,
    NodeNotEmpty,
    NoSuchNode,
    ParentIsEphemeral,
    QuireError,
    SessionExpired,
    VersionConflict,
)
from quire.metadata import ANY_VERSION, Check, Create, Delete, Set, StoreSettings, Version, Written
from quire.metadata.driver import Op
from quire.metadata.drivers._etcd_keys import ChildScan, counter_key, is_direct_child, range_below, session_key
from quire.metadata.drivers._etcd_requirements import CounterMoved, SessionKey, SessionMoved, gaps
from quire.metadata.drivers._etcd_txn import merge, plan, plan_sequential
from quire.metadata.drivers.etcd_pb import etcd_pb2 as pb
from quire.metadata.drivers.memory import MemoryDriver, MemoryTree
from quire.runtime import real_runtime

LEASE = 0x7A11
SESSION = SessionKey(LEASE, revision=1)

_COMPARISONS: dict[int, Callable[[Any, Any], bool]] = {
    pb.Compare.EQUAL: lambda found, wanted: found == wanted,
    pb.Compare.GREATER: lambda found, wanted: found > wanted,
    pb.Compare.LESS: lambda found, wanted: found < wanted,
}
_FIELDS = {
    pb.Compare.VERSION: "version",
    pb.Compare.CREATE: "create_revision",
    pb.Compare.MOD: "mod_revision",
    pb.Compare.LEASE: "lease",
}


class EtcdModel:
    """One etcd store with one live session."""

    def __init__(self) -> None:
        self.revision = 1
        self.stored: dict[bytes, pb.KeyValue] = {}
        self._put(pb.PutRequest(key=session_key(LEASE), lease=LEASE))
        self.session = SessionKey(LEASE, self.revision)

    def run(self, request: pb.TxnRequest) -> pb.TxnResponse:
        succeeded = all(self._holds(compare) for compare in request.compare)
        chosen = request.success if succeeded else request.failure
        if any(op.HasField("request_put") or op.HasField("request_delete_range") for op in chosen):
            self.revision += 1
        responses = [self._apply(op) for op in chosen]
        return pb.TxnResponse(header={"revision": self.revision}, succeeded=succeeded, responses=responses)

    def commit(self, *ops: Op) -> list[Written | None]:
        prepared = plan(ops, self.session)
        if prepared.look is not None:
            prepared.on_look(self.run(prepared.look))
        return prepared.on_answer(self.run(prepared.request))

    def create_sequential(self, op: Create, *, counter: pb.KeyValue | None, number: int = 0) -> Written | None:
        prepared = plan_sequential(op, self.session, number=number, counter=counter)
        (written,) = prepared.on_answer(self.run(prepared.request))
        return written

    def _holds(self, compare: pb.Compare) -> bool:
        name = _FIELDS[compare.target]
        found = self._range(compare.key, compare.range_end)
        if compare.range_end:
            assert not found, "NoLargeComparisons: etcd would load all of this range"  # Nobody else writes here.
            return True
        found = found or [pb.KeyValue()]  # A key that does not exist compares as zeros.
        return all(_COMPARISONS[compare.result](getattr(each, name), getattr(compare, name)) for each in found)

    def _range(self, start: bytes, end: bytes) -> list[pb.KeyValue]:
        keys = sorted(key for key in self.stored if key == start or start <= key < end)
        return [self.stored[key] for key in keys]

    def _apply(self, op: pb.RequestOp) -> pb.ResponseOp:
        if op.HasField("request_put"):
            return pb.ResponseOp(response_put=self._put(op.request_put))
        if op.HasField("request_delete_range"):
            self.stored.pop(op.request_delete_range.key, None)
            return pb.ResponseOp(response_delete_range=pb.DeleteRangeResponse())
        read = op.request_range
        found = self._range(read.key, read.range_end)
        return pb.ResponseOp(response_range=pb.RangeResponse(kvs=found[: read.limit or None]))

    def _put(self, put: pb.PutRequest) -> pb.PutResponse:
        old = self.stored.get(put.key)
        assert not put.ignore_lease or old is not None
        lease = old.lease if put.ignore_lease and old else put.lease
        self.stored[put.key] = pb.KeyValue(
            key=put.key,
            value=put.value,
            lease=lease,
            mod_revision=self.revision,
            create_revision=old.create_revision if old else self.revision,
            version=old.version + 1 if old else 1,
        )
        return pb.PutResponse(prev_kv=old if put.prev_kv else None)


@pytest.fixture
def etcd() -> EtcdModel:
    return EtcdModel()


# --- Against the in-memory tree, which is the plainest reading of the contract

NAMES = st.sampled_from(["a", "a-", "a.b", "b"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map(lambda names: "/" + "/".join(names))
EXPECTED = st.sampled_from(["any", "right", "wrong", "zero"])


@st.composite
def transactions(draw: st.DrawFn) -> list[tuple[str, str, str, bool]]:
    """Kind, path, expectation and ephemeral of each operation; versions are filled in when it is run."""
    paths = draw(st.lists(PATHS, min_size=1, max_size=5, unique=True))
    kinds = st.sampled_from(["create", "create", "set", "delete", "delete", "check"])
    return [(draw(kinds), path, draw(EXPECTED), draw(st.booleans())) for path in paths]


def as_ops(drawn: list[tuple[str, str, str, bool]], version_of: Callable[[str], int | None]) -> list[Op]:
    ops: list[Op] = []
    for kind, path, expectation, ephemeral in drawn:
        right = version_of(path)
        numbers = {"any": ANY_VERSION, "right": 1 if right is None else right, "wrong": 10**9, "zero": 0}
        expected = Version(numbers[expectation])
        if kind == "create":
            ops.append(Create(path, path.encode(), ephemeral=ephemeral))
        elif kind == "set":
            ops.append(Set(path, b"set", expected))
        else:
            ops.append(Delete(path, expected) if kind == "delete" else Check(path, expected))
    return ops


@given(st.lists(transactions(), min_size=1, max_size=8))
def test_any_transaction_does_what_the_memory_tree_does(drawn: list[list[tuple[str, str, str, bool]]]) -> None:
    """Same answers, same first error, same tree afterwards. Revisions differ, so versions are told apart by role."""
    etcd, tree = EtcdModel(), MemoryTree()
    session = MemoryDriver(tree, StoreSettings(), real_runtime()).session

    def etcd_version(path: str) -> int | None:
        stored = etcd.stored.get(path.encode())
        return stored.mod_revision if stored else None

    def tree_version(path: str) -> int | None:
        entry = tree.find(path)
        return entry.version if entry else None

    paths = {path for each in drawn for _, path, _, _ in each}
    for each in drawn:
        there = _outcome(lambda each=each: tree.commit(as_ops(each, tree_version), session, 0))  # type: ignore[misc]
        here = _outcome(lambda each=each: etcd.commit(*as_ops(each, etcd_version)))  # type: ignore[misc]
        assert here == there
        for path in paths:
            entry, stored = tree.find(path), etcd.stored.get(path.encode())
            assert (entry is None) == (stored is None)
            if entry is not None and stored is not None:
                found = (stored.value, stored.version, bool(stored.lease))
                assert found == (entry.data, entry.writes, entry.owner is not None)


def _outcome(commit: Callable[[], list[Written | None]]) -> object:
    try:
        return [(written.path, written.writes) if written else None for written in commit()]
    except QuireError as error:
        return type(error), error.facts.get("path")


# --- What the strategy would reach only by luck


def test_a_dead_session_outranks_every_other_reason_and_changes_nothing(etcd: EtcdModel) -> None:
    etcd.commit(Create("/a"))
    del etcd.stored[session_key(LEASE)]
    before = dict(etcd.stored)
    for ops in ([Create("/a")], [Create("/b")], [Check("/a", ANY_VERSION)], [Create("/x/y"), Create("/x")]):
        with pytest.raises(SessionExpired):
            etcd.commit(*ops)
    with pytest.raises(SessionExpired):
        etcd.create_sequential(Create("/n-", sequential=True), counter=None)
    assert etcd.stored == before


def test_a_write_that_comes_after_the_sessions_key_moved_is_void(etcd: EtcdModel) -> None:
    """Whatever it is; sent anew it is carried out."""
    etcd.commit(Create("/a"))
    for ops in ([Create("/b")], [Set("/a", b"", ANY_VERSION)], [Delete("/a", ANY_VERSION)]):
        late = plan(ops, etcd.session)
        etcd.session.on_moved(etcd.run(etcd.session.move()))
        with pytest.raises(SessionMoved) as caught:
            late.on_answer(etcd.run(late.request))
        assert caught.value.revision == etcd.session.revision
        etcd.commit(*ops)
    assert [key for key in etcd.stored if key.startswith(b"/")] == [b"/b"]
    late = plan_sequential(Create("/n-", sequential=True), etcd.session, number=0, counter=None)
    etcd.session.on_moved(etcd.run(etcd.session.move()))
    with pytest.raises(SessionMoved):
        late.on_answer(etcd.run(late.request))
    assert etcd.stored[session_key(LEASE)].lease == LEASE


def test_a_move_that_is_repeated_or_comes_late_moves_the_key_once(etcd: EtcdModel) -> None:
    move = etcd.session.move()
    etcd.run(move)
    lost = etcd.stored[session_key(LEASE)].mod_revision
    etcd.session.on_moved(etcd.run(move))
    assert etcd.session.revision == lost
    etcd.commit(Create("/a"))
    etcd.session.on_moved(etcd.run(move))
    etcd.commit(Create("/b"))


def test_an_answer_that_was_overtaken_does_not_take_the_session_back(etcd: EtcdModel) -> None:
    first = etcd.run(etcd.session.move())
    etcd.session.on_moved(etcd.run(etcd.session.move()))
    etcd.session.on_moved(etcd.run(etcd.session.move()))
    newest = etcd.session.revision
    etcd.session.on_moved(first)
    assert etcd.session.revision == newest


def test_the_key_of_a_dead_session_does_not_come_back(etcd: EtcdModel) -> None:
    del etcd.stored[session_key(LEASE)]
    etcd.session.on_moved(etcd.run(etcd.session.move()))
    assert etcd.stored == {}


def test_version_zero_never_matches_not_even_a_missing_node(etcd: EtcdModel) -> None:
    """etcd gives a missing key revision 0: taken literally, a set that expects 0 would create the node."""
    with pytest.raises(NoSuchNode):
        etcd.commit(Set("/a", b"", Version(0)))
    etcd.commit(Create("/a"))
    with pytest.raises(VersionConflict):
        etcd.commit(Set("/a", b"", Version(0)))


def test_a_set_leaves_an_ephemeral_node_with_its_owner(etcd: EtcdModel) -> None:
    etcd.commit(Create("/a", ephemeral=True))
    etcd.commit(Set("/a", b"new", ANY_VERSION))
    assert etcd.stored[b"/a"].lease == LEASE


def test_the_first_impossible_operation_is_reported_even_if_a_later_one_contradicts_itself(etcd: EtcdModel) -> None:
    """Method: the second operation is impossible whatever is stored; the first only because of what is."""
    etcd.commit(Create("/a"))
    with pytest.raises(NodeExists):
        etcd.commit(Create("/a"), Create("/b", ephemeral=True), Create("/b/c"))
    with pytest.raises(ParentIsEphemeral):
        etcd.commit(Create("/b", ephemeral=True), Create("/b/c"), Create("/a"))
    with pytest.raises(NodeNotEmpty):
        etcd.commit(Create("/a/x"), Delete("/a", ANY_VERSION))


def test_a_transaction_that_cannot_succeed_is_refused_by_looking(etcd: EtcdModel) -> None:
    """Then no write is sent, and the outcome is never unknown."""
    for ops in ([Create("/b", ephemeral=True), Create("/b/c")], [Set("/b", b"", Version(0))]):
        prepared = plan(ops, SESSION)
        assert prepared.look is not None
        with pytest.raises(QuireError):
            prepared.on_look(etcd.run(prepared.look))


def test_only_what_compares_ranges_or_cannot_succeed_is_looked_at_first() -> None:
    """A look costs a round trip, and only deletes pay for it."""
    for op in (Create("/a/b"), Set("/a", b"", Version(7)), Check("/a", ANY_VERSION)):
        assert plan([op], SESSION).look is None
    look = plan([Delete("/a", ANY_VERSION)], SESSION).look
    assert look is not None
    assert all(not op.request_range.range_end or 0 < op.request_range.limit <= 2 for op in look.success)


def test_a_child_that_comes_between_the_look_and_the_transaction_is_noticed(etcd: EtcdModel) -> None:
    etcd.commit(Create("/a"))
    prepared = plan([Delete("/a", ANY_VERSION)], SESSION)
    assert prepared.look is not None
    prepared.on_look(etcd.run(prepared.look))
    [emptiness] = [compare for compare in prepared.request.compare if compare.range_end]
    assert (emptiness.key, emptiness.range_end) == range_below("/a")
    assert (emptiness.target, emptiness.result) == (pb.Compare.CREATE, pb.Compare.EQUAL)
    child = pb.RangeResponse(kvs=[pb.KeyValue(key=b"/a/b")])
    session, known = (pb.RangeResponse(kvs=[etcd.stored[key]]) for key in (session_key(LEASE), b"/a"))
    answers = [pb.ResponseOp(response_range=each) for each in (session, known, child)]
    with pytest.raises(NodeNotEmpty):
        prepared.on_answer(pb.TxnResponse(succeeded=False, responses=answers))


def test_a_transaction_of_checks_alone_writes_nothing() -> None:
    """It may be repeated when its answer is lost."""
    assert not plan([Check("/b", ANY_VERSION)], SESSION).writes
    assert plan([Create("/b")], SESSION).writes


def test_a_node_is_deleted_together_with_all_below_it_in_one_transaction(etcd: EtcdModel) -> None:
    tree = ["/a", "/a/b", "/a/b/c", "/a/b-", "/a/b.c", "/a/b0", "/a-"]
    etcd.commit(*(Create(path) for path in tree))
    doomed = ["/a/b/c", "/a/b", "/a/b-", "/a/b0", "/a"]
    with pytest.raises(NodeNotEmpty) as caught:
        etcd.commit(*(Delete(path, ANY_VERSION) for path in doomed))
    assert caught.value.facts["path"] == "/a", "/a/b.c is left"
    etcd.commit(*(Delete(path, ANY_VERSION) for path in ["/a/b.c", *doomed]))
    assert [key for key in etcd.stored if key.startswith(b"/")] == [b"/a-"]


def test_large_transactions_stay_below_the_limit_of_128_comparisons() -> None:
    """Siblings share the comparisons of their parent, and the emptiness of a deleted tree is asked once."""
    creates = plan([Create(f"/a/{number}") for number in range(120)], SESSION).request
    assert max(len(creates.compare), len(creates.success), len(creates.failure)) <= 128
    paths = [*(f"/a/{number}" for number in range(60)), "/a"]
    deletes = plan([Delete(path, ANY_VERSION) for path in paths], SESSION).request
    assert max(len(deletes.compare), len(deletes.success), len(deletes.failure)) <= 128


def test_a_failure_that_nothing_explains_is_a_bug() -> None:
    prepared = plan([Create("/a")], SESSION)
    session = pb.RangeResponse(kvs=[pb.KeyValue(key=session_key(LEASE), mod_revision=SESSION.revision)])
    answers = [pb.ResponseOp(response_range=session), pb.ResponseOp(response_range=pb.RangeResponse())]
    with pytest.raises(InvariantBroken):
        prepared.on_answer(pb.TxnResponse(succeeded=False, responses=answers))


# --- Sequential nodes


def test_sequential_nodes_take_numbers_from_their_parents_counter(etcd: EtcdModel) -> None:
    etcd.commit(Create("/a"))
    op = Create("/a/n-", b"data", ephemeral=True, sequential=True)
    assert etcd.create_sequential(op, counter=None) == Written("/a/n-0000000000", Version(3), writes=1)
    counter = etcd.stored[counter_key("/a")]
    assert counter.value == b"1"
    assert counter.lease == 0, "the counter must outlive the session that raised it"
    etcd.create_sequential(op, counter=counter, number=1)
    assert etcd.stored[b"/a/n-0000000001"].lease == LEASE


def test_a_lost_race_for_a_number_tells_the_counter_and_creates_nothing(etcd: EtcdModel) -> None:
    etcd.commit(Create("/a"))
    op = Create("/a/n-", sequential=True)
    etcd.create_sequential(op, counter=None)
    with pytest.raises(CounterMoved) as lost:
        etcd.create_sequential(op, counter=None)
    assert lost.value.stored == etcd.stored[counter_key("/a")]
    assert b"/a/n-0000000001" not in etcd.stored


def test_a_sequential_node_needs_a_persistent_parent(etcd: EtcdModel) -> None:
    etcd.commit(Create("/e", ephemeral=True))
    with pytest.raises(ParentIsEphemeral):
        etcd.create_sequential(Create("/e/n-", sequential=True), counter=None)
    with pytest.raises(NoSuchNode):
        etcd.create_sequential(Create("/missing/n-", sequential=True), counter=None)
    assert etcd.create_sequential(Create("/n-", sequential=True), counter=None) is not None, "the root always exists"


def test_a_counter_dies_with_its_parent(etcd: EtcdModel) -> None:
    etcd.commit(Create("/a"))
    etcd.create_sequential(Create("/a/n-", sequential=True), counter=None)
    etcd.commit(Delete("/a/n-0000000000", ANY_VERSION), Delete("/a", ANY_VERSION))
    assert set(etcd.stored) == {session_key(LEASE)}


# --- Ranges of keys

KEYS = st.binary(min_size=1, max_size=3)


@given(st.tuples(KEYS, KEYS), st.sets(KEYS), st.sets(KEYS))
def test_gaps_hold_exactly_the_keys_that_were_not_taken_out(
    span: tuple[bytes, bytes], taken: set[bytes], probes: set[bytes]
) -> None:
    start, end = span
    inside = sorted(key for key in taken if start <= key < end)
    left = gaps(span, inside)
    for key in probes | taken | {start, end}:
        assert any(low <= key < high for low, high in left) == (start <= key < end and key not in inside)


@given(st.lists(st.tuples(KEYS, KEYS).filter(lambda span: span[0] < span[1])), st.sets(KEYS))
def test_merged_ranges_hold_the_same_keys_and_touch_nowhere(
    spans: list[tuple[bytes, bytes]], probes: set[bytes]
) -> None:
    merged = merge(spans)
    for key in probes | {edge for span in spans for edge in span}:
        assert any(low <= key < high for low, high in merged) == any(low <= key < high for low, high in spans)
    assert all(earlier[1] < later[0] for earlier, later in itertools.pairwise(merged))


# --- Listing one level

DEEP_PATHS = st.lists(st.text("a-./0é", min_size=1, max_size=3), min_size=1, max_size=4).map("/".join)
RAW_KEYS = st.one_of(
    DEEP_PATHS.map(lambda below: f"/p/{below}".encode()),
    DEEP_PATHS.map(lambda below: f"/p-{below}".encode()),
    st.sampled_from([b"/p", b"/p/", b"/p//x", b"/p/\xff", b"/p0", b"/", b"quire/session/1"]),
)


@given(st.sets(RAW_KEYS, max_size=40), st.sampled_from(["/p", "/"]), st.integers(1, 7), st.integers(1, 3))
def test_a_listing_has_every_direct_child_once_whatever_lies_around_and_below(
    keys: set[bytes], path: str, page_keys_max: int, page_keys_min: int
) -> None:
    """Names may contain `-` and `.`, which sort before the slash: `a`, `a-b`, `a/x` interleave."""
    stored = sorted(keys)
    scan = ChildScan(path, page_keys_max=page_keys_max, page_keys_min=min(page_keys_min, page_keys_max))
    while not scan.finished:
        found = [key for key in stored if scan.start <= key < scan.end]
        scan.on_page(found[: scan.limit], more=len(found) > scan.limit)
    prefix = b"/" if path == "/" else b"/p/"
    below = [key[len(prefix) :] for key in stored if key.startswith(prefix)]
    assert scan.names == [name.decode() for name in below if name and b"/" not in name and name != b"\xff"]
    assert scan.names == sorted(scan.names)


def test_large_subtrees_are_skipped_and_flat_directories_read_in_large_pages() -> None:
    """Method: count pages and keys. Ten children with 5,000 keys each below them, against 10,000 flat children."""
    deep = sorted(
        key for child in range(10) for key in [b"/p/%d" % child, *(b"/p/%d/%04d" % (child, at) for at in range(5000))]
    )
    pages, fetched = _read_all(deep)
    assert pages <= 12
    assert fetched <= 4000
    pages, fetched = _read_all([b"/p/%05d" % at for at in range(10_000)])
    assert (pages, fetched) == (10, 10_000)
    shallow = sorted(key for child in range(3000) for key in (b"/p/%04d" % child, b"/p/%04d/x" % child))
    assert _read_all(shallow)[0] <= 7, "small subtrees are cheaper to read over than to jump"


def _read_all(stored: list[bytes]) -> tuple[int, int]:
    scan = ChildScan("/p")
    pages = fetched = 0
    while not scan.finished:
        found = [key for key in stored if scan.start <= key < scan.end]
        scan.on_page(found[: scan.limit], more=len(found) > scan.limit)
        pages, fetched = pages + 1, fetched + len(found[: scan.limit])
    return pages, fetched


def test_a_page_that_breaks_its_promise_is_a_bug() -> None:
    scan = ChildScan("/p")
    with pytest.raises(InvariantBroken):
        scan.on_page([], more=True)
    scan.on_page([], more=False)
    with pytest.raises(InvariantBroken):
        scan.on_page([], more=False)


@given(st.sets(RAW_KEYS), st.sampled_from(["/p", "/"]))
def test_direct_children_are_told_from_grandchildren_and_neighbours(keys: set[bytes], path: str) -> None:
    start, end = range_below(path)
    for key in keys:
        assert is_direct_child(path, key) == (start < key < end and b"/" not in key[len(start) :])
