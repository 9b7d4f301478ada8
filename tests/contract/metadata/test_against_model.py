"""Random operations on every backend do exactly what the in-memory tree does: the same answers, the same refusals.

The tree in memory is the plainest reading of the contract, and itself goes through the hand-written tests. Versions
differ between stores, so operations name them by age: the newest version of a node, or one before it.
"""

import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from quire.errors import QuireError
from quire.metadata import ANY_VERSION, Check, Create, Delete, MetadataStore, Set, Version
from quire.metadata.driver import Op
from tests.contract.metadata.backends import Backend, MemoryBackend
from tests.contract.metadata.test_tree import tree_of

LONG = bool(os.environ.get("QUIRE_TEST_LONG"))

NAMES = st.sampled_from(["a", "a/b", "a/b/c", "a-b", "a/d", "e", "e/f"])
AGES = st.sampled_from(["newest", "older", "any"])
DATA = st.binary(max_size=3)


@dataclass(frozen=True)
class Plan:
    """An operation before paths and versions are filled in."""

    kind: str
    name: str
    data: bytes = b""
    age: str = "any"
    ephemeral: bool = False


PLANS = st.one_of(
    st.builds(Plan, st.just("create"), NAMES, DATA, ephemeral=st.booleans()),
    st.builds(Plan, st.just("set"), NAMES, DATA, AGES),
    st.builds(Plan, st.just("delete"), NAMES, age=AGES),
    st.builds(Plan, st.just("check"), NAMES, age=AGES),
)
TRANSACTIONS = st.lists(st.lists(PLANS, min_size=1, max_size=4, unique_by=lambda plan: plan.name), max_size=12)


@dataclass
class Side:
    """One store, and the versions it has given each node."""

    store: MetadataStore
    root: str
    versions: dict[str, list[Version]] = field(default_factory=dict)

    def fill_in(self, plan: Plan) -> Op:
        path = f"{self.root}/{plan.name}"
        if plan.kind == "create":
            return Create(path, plan.data, ephemeral=plan.ephemeral)
        known = self.versions.get(plan.name, [])
        expected = ANY_VERSION
        if plan.age == "newest" and known:
            expected = known[-1]
        elif plan.age == "older" and len(known) > 1:
            expected = known[-2]
        if plan.kind == "set":
            return Set(path, plan.data, expected)
        return Delete(path, expected) if plan.kind == "delete" else Check(path, expected)

    async def carry_out(self, plans: list[Plan]) -> object:
        try:
            results = await self.store.transaction(*(self.fill_in(plan) for plan in plans))
        except QuireError as error:
            path = str(error.facts["path"]).removeprefix(self.root)
            return type(error).__name__, path
        for plan, written in zip(plans, results, strict=True):
            if plan.kind == "delete":
                self.versions.pop(plan.name, None)
            elif written is not None:
                self.versions.setdefault(plan.name, []).append(written.version)
        return [
            None if written is None else (written.path.removeprefix(self.root), written.writes) for written in results
        ]

    async def tree(self) -> dict[str, bytes]:
        return {path.removeprefix(self.root): data for path, data in (await tree_of(self.store, self.root)).items()}


@pytest.fixture
async def model() -> AsyncIterator[MemoryBackend]:
    async with AsyncExitStack() as stack:
        yield MemoryBackend(stack)


# kazoo's thread draws numbers for its pings while Hypothesis makes examples, and is taken for a strategy that does.
@pytest.mark.filterwarnings("ignore:Do not use the `random` module")
@given(transactions=TRANSACTIONS)
@settings(
    max_examples=500 if LONG else 40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
async def test_random_transactions_do_what_the_model_does(
    backend: Backend, model: MemoryBackend, transactions: list[list[Plan]]
) -> None:
    store, model_store = await backend.open(), await model.open()
    number = len((await store.children(backend.root)).names)
    real = Side(store, f"{backend.root}/run-{number}")
    modelled = Side(model_store, f"/run-{number}")
    for side in (real, modelled):
        await side.store.create(side.root)
    for plans in transactions:
        assert await real.carry_out(plans) == await modelled.carry_out(plans)
        assert await real.tree() == await modelled.tree()
    await store.aclose()
    await model_store.aclose()
