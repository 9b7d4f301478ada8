"""`quire.sync` is the async API method for method: same names, same arguments, and answers that correspond."""

import inspect
import types
import typing
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator
from typing import Any

import pytest

import quire
from quire import sync
from quire.client import connect, ledgers
from quire.ledger.client import LedgerClient
from quire.ledger.context import LedgerContext
from quire.ledger.reading.reader import LedgerReader
from quire.ledger.reading.view import LedgerView
from quire.ledger.writing.advanced import AdvancedWriter
from quire.ledger.writing.writer import LedgerWriter
from quire.runtime.opening import Opening
from quire.stream import client_api
from quire.stream.namespace import Namespace
from quire.stream.reader import StreamReader
from quire.stream.writer import StreamWriter
from quire.sync.mirror import OTHER_NAMES

MIRRORS: dict[type, type] = {
    Namespace: sync.Client,
    StreamWriter: sync.StreamWriter,
    StreamReader: sync.StreamReader,
    LedgerClient: sync.LedgerClient,
    LedgerWriter: sync.LedgerWriter,
    AdvancedWriter: sync.AdvancedWriter,
    LedgerReader: sync.LedgerReader,
}

# What a program has in its hands, whatever stands behind it, and what blocking code has instead.
TYPES: dict[type, type] = {client_api.Client: sync.Client, client_api.StreamWriter: sync.StreamWriter}

# What is public for other parts of Quire only, and so not for users. A new method is mirrored, or named here.
FOR_THE_PARTS: dict[type, set[str]] = {
    Namespace: set(),
    StreamWriter: {
        *("on_lock_taken", "is_closed"),
        *("append_tracked", "append_control", "epoch", "give_up", "problem"),  # For write proxies.
    },
    StreamReader: {"on_lock_lost", "lock", "has_reached", "stop"},
    LedgerClient: {
        "replacement",
        "keeps_placement",
        "read_order",
        "on_bookie_error",
        "on_bookie_slow",
        "on_bookie_answer",
        "mark_lacking",
    },
    LedgerWriter: {"enqueue_nowait", "checked", "check_open", "queue", "error_for", "poison"},
    AdvancedWriter: set(),
    LedgerReader: {
        *("read_from", "adopt", "raise_lac", "on_entries", "on_bad_copy", "tell_news", "news"),
        *("refresh", "has_moved", "fragment_of", "replicas_of"),
    },
}
SPECIAL = {"__aiter__": "__iter__", "__anext__": "__next__"}
PAIRS = pytest.mark.parametrize(("original", "mirror"), MIRRORS.items(), ids=lambda each: each.__name__)


def members(cls: type) -> dict[str, Any]:
    """Its methods and properties that are public, by the names that blocking code has for them."""
    special = {*SPECIAL, *SPECIAL.values()}
    shared = [base for base in cls.__mro__[1:] if base in (LedgerContext, LedgerView)]
    members = {name: member for each in (*shared, cls) for name, member in vars(each).items()}
    found = {name: member for name, member in members.items() if not name.startswith("_") or name in special}
    return {SPECIAL.get(name, "close" if name == "aclose" else name): member for name, member in found.items()}


def signature(member: Any) -> inspect.Signature:
    function: Any = member.fget if isinstance(member, property) else member
    function = function.__func__ if isinstance(function, staticmethod) else function
    return inspect.signature(function, eval_str=True)


def answer(member: Any) -> Any:
    """What blocking code should get where the async API says this."""
    told = signature(member).return_annotation
    arguments = [(MIRRORS | TYPES).get(each, each) for each in typing.get_args(told)]
    origin = typing.get_origin(told)
    if inspect.isasyncgenfunction(getattr(member, "__wrapped__", None)) or origin is Opening:  # The former by `opens`.
        return arguments[0]
    if origin in (AsyncIterator, AsyncGenerator):
        return Generator[arguments[0]]  # type: ignore[valid-type]
    return MIRRORS.get(told, told)


@PAIRS
def test_every_public_method_has_its_twin(original: type, mirror: type) -> None:
    twins = {name for name, member in members(mirror).items() if isinstance(member, property) or callable(member)}
    wanted = set(members(original)) - FOR_THE_PARTS[original]
    assert wanted - twins == set(), "missing in quire.sync"
    attributes = {"stream", "uri", "settings", "metrics"}  # Which the original sets when it is made.
    assert twins - wanted - attributes - {"id_of"} == set(), "there is nothing like it in the async API"
    assert set(members(original)) >= FOR_THE_PARTS[original], "an exception for what does not exist"


@PAIRS
def test_twins_take_the_same_arguments_and_answer_alike(original: type, mirror: type) -> None:
    twins = members(mirror)
    for name, member in members(original).items():
        if name in FOR_THE_PARTS[original]:
            continue
        twin = twins[name]
        assert isinstance(twin, property) == isinstance(member, property), name
        assert signature(twin).parameters == signature(member).parameters, name
        assert signature(twin).return_annotation == answer(member), name


@PAIRS
def test_twins_are_documented_alike(original: type, mirror: type) -> None:
    for name, member in members(mirror).items():
        assert not inspect.iscoroutinefunction(member), name
        twin = getattr(original, OTHER_NAMES.get(name, name), None) or getattr(original, name, None)
        if twin is not None and name != "__next__":  # Which ends otherwise.
            assert member.__doc__ == twin.__doc__, name


@pytest.mark.parametrize(("original", "mirror"), [(connect, sync.connect), (ledgers, sync.ledgers)])
def test_both_doors_take_the_same_arguments(original: Callable[..., Any], mirror: Callable[..., Any]) -> None:
    assert inspect.signature(mirror, eval_str=True).parameters == inspect.signature(original, eval_str=True).parameters
    assert inspect.signature(mirror, eval_str=True).return_annotation == answer(original)
    assert isinstance(quire.sync, types.ModuleType)


def test_a_method_that_differs_would_be_noticed() -> None:
    """The comparison itself: another default, another name, another answer."""

    class Original:
        async def read(self, first: int = 0) -> list[int]:
            return [first]

        def scan(self) -> AsyncIterator[int]:
            raise NotImplementedError

    class Mirror:
        def read(self, first: int = 1) -> list[int]:
            return [first]

        def scan(self) -> Generator[str]:
            raise NotImplementedError

    original, mirror = members(Original), members(Mirror)
    assert signature(original["read"]).parameters != signature(mirror["read"]).parameters
    assert signature(mirror["scan"]).return_annotation != answer(original["scan"])
