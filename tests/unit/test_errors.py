"""Every error answers its three questions, and the tree that the docstring draws is the real one."""

import inspect
import re
from collections.abc import Iterator

import pytest

from quire import errors
from quire.errors import InvariantBroken, Outcome, QuireError, invariant

_LINE = re.compile(r"    (?P<indent>(?:[│ ]   )*)(?P<branch>[├└]── )?(?P<names>\w+(?:, \w+)*)(?:\s{2,}.*)?")


def is_ours(kind: type) -> bool:
    return kind.__module__.startswith(f"{errors.__name__}.")


def subclasses(root: type[QuireError]) -> Iterator[type[QuireError]]:
    for child in root.__subclasses__():
        if is_ours(child):
            yield child
            yield from subclasses(child)


def drawn_tree() -> dict[str, str | None]:
    """Name to parent's name, as the module docstring draws it."""
    parents: dict[str, str | None] = {}
    above: list[str] = []  # The name last drawn at each depth.
    for line in (errors.__doc__ or "").split("\n\n")[1].splitlines():
        match = _LINE.fullmatch(line)
        assert match is not None, f"the docstring draws a line that this test cannot read: {line!r}"
        depth = len(match["indent"]) // 4 + bool(match["branch"])
        for name in match["names"].split(", "):
            assert name not in parents, f"{name} is drawn twice"
            parents[name] = above[depth - 1] if depth else None
        above[depth:] = [name]
    return parents


ERRORS: list[type[QuireError]] = [QuireError, *subclasses(QuireError)]


def test_the_tree_in_the_docstring_is_the_real_one() -> None:
    real = {error.__name__: error.__base__.__name__ for error in ERRORS if error.__base__ is not None}
    assert drawn_tree() == {**real, "QuireError": None}


def test_every_public_class_of_the_module_is_in_the_tree_or_beside_it_on_purpose() -> None:
    public = {name for name, value in vars(errors).items() if inspect.isclass(value) and is_ours(value)}
    assert public - {error.__name__ for error in ERRORS} == {"Outcome", "InvariantBroken"}


@pytest.mark.parametrize("error", ERRORS)
def test_every_error_answers_the_three_questions(error: type[QuireError]) -> None:
    assert isinstance(error.retryable, bool)
    assert isinstance(error.outcome, Outcome)
    assert isinstance(error.hint, str)
    assert error.__doc__


@pytest.mark.parametrize("error", ERRORS)
def test_every_error_carries_its_message_and_facts(error: type[QuireError]) -> None:
    raised = error("it broke", path="/x", count=3)
    assert str(raised) == "it broke"
    assert raised.facts == {"path": "/x", "count": 3}
    assert raised.hint == error.hint


@pytest.mark.parametrize("error", ERRORS)
def test_a_hint_for_one_case_does_not_change_the_others(error: type[QuireError]) -> None:
    general = error.hint
    assert error("it broke", hint="Do this.").hint == "Do this."
    assert error("it broke").hint == general


@pytest.mark.parametrize("error", [errors.CallerMistake, *subclasses(errors.CallerMistake)])
def test_a_callers_mistake_is_never_worth_a_retry(error: type[QuireError]) -> None:
    assert not error.retryable
    assert error.outcome is Outcome.NOT_APPLIED


@pytest.mark.parametrize("error", [errors.Unavailable, *subclasses(errors.Unavailable)])
def test_what_is_unavailable_may_come_back(error: type[QuireError]) -> None:
    assert error.retryable


@pytest.mark.parametrize("error", [error for error in ERRORS if error.outcome is Outcome.UNKNOWN])
def test_where_the_outcome_is_unknown_the_hint_says_how_to_find_out(error: type[QuireError]) -> None:
    assert error.hint


def test_a_broken_invariant_is_no_error_that_a_retry_loop_catches() -> None:
    assert not issubclass(InvariantBroken, QuireError)
    invariant(True, "all is well")
    with pytest.raises(InvariantBroken, match=r"^the LAC moved back \(old=5, new=3\)$"):
        invariant(False, "the LAC moved back", old=5, new=3)
    with pytest.raises(InvariantBroken, match=r"^no facts$"):
        invariant(False, "no facts")
