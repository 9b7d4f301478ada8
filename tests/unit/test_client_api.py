"""A program changes its URI and nothing else: what it has in its hands is the same, member for member."""

import inspect
from typing import Any

import pytest
from tests.unit.test_sync_mirror import FOR_THE_PARTS

from quire.proxy.client.client import ProxyClient
from quire.proxy.client.writer import ProxyWriter
from quire.stream import client_api
from quire.stream.namespace import Namespace
from quire.stream.writer import StreamWriter

KEPT = {"is_closed"}  # Blocking code does without it.
PAIRS = pytest.mark.parametrize(
    ("direct", "thin", "promised"),
    [(Namespace, ProxyClient, client_api.Client), (StreamWriter, ProxyWriter, client_api.StreamWriter)],
    ids=["clients", "writers"],
)


def members(cls: type) -> dict[str, Any]:
    found = {name: member for name, member in vars(cls).items() if not name.startswith("_")}
    return {name: member for name, member in found.items() if callable(member) or isinstance(member, property)}


def parameters(member: Any) -> Any:
    function: Any = member.fget if isinstance(member, property) else member
    return inspect.signature(function, eval_str=True).parameters


@PAIRS
def test_both_clients_have_the_same_members(direct: type, thin: type, promised: type) -> None:
    wanted = set(members(direct)) - (FOR_THE_PARTS[direct] - KEPT)
    assert set(members(thin)) == wanted
    assert set(members(promised)) - {"uri"} == wanted, "what programs are promised"


@PAIRS
def test_members_take_the_same_arguments(direct: type, thin: type, promised: type) -> None:
    for name, member in members(thin).items():
        twin = members(direct)[name]
        assert isinstance(member, property) == isinstance(twin, property), name
        assert parameters(member) == parameters(twin) == parameters(members(promised)[name]), name


@PAIRS
def test_members_are_told_of_in_the_same_words_or_their_own(direct: type, thin: type, promised: type) -> None:
    for name, member in members(thin).items():
        if name != "statistics":
            assert member.__doc__, name
