"""Bearer tokens: what is known of them, and what becomes stale."""

import os

import pytest

from quire.errors import InvalidArgument, NotAuthenticated, RequestDenied
from quire.rpc.serving.tokens import KnownToken, Tokens, new_token, parse_tokens


def made(*, expires_s: float | None = None) -> tuple[str, KnownToken]:
    return new_token("billing", draw=os.urandom, expires_s=expires_s)


def refused(tokens: Tokens, header: str) -> str:
    with pytest.raises(NotAuthenticated) as raised:
        tokens.check(header)
    return str(raised.value.facts["cause"])


def test_the_file_says_whose_a_token_is_without_having_it() -> None:
    token, known = made(expires_s=2000.0)
    assert token.rpartition(".")[2] not in known.line()
    found = parse_tokens(f"\n{known.line()}\n")
    assert found == {known.id: known}
    assert Tokens(found.values(), lambda: 1000.0).check(f"Bearer {token}").principal == "billing"


def test_what_is_missing_foreign_or_nearly_right_is_not_known() -> None:
    token, known = made()
    tokens = Tokens([known], lambda: 0.0)
    assert refused(tokens, "") == refused(tokens, "Bearer") == "no_token"
    wrong = (made()[0], f"{token}0", token[:-1], f"quire-2{token[7:]}", "x" * 10_000, f"quire-1.{known.id}.")
    for each in wrong:
        assert refused(tokens, f"Bearer {each}") == "unknown_token", each
    assert refused(tokens, f"Basic {token}") == "unknown_token"


def test_a_token_is_stale_from_its_expiry_on() -> None:
    token, known = made(expires_s=100.0)
    now_s = 99.0
    tokens = Tokens([known], lambda: now_s)
    assert tokens.check(f"Bearer {token}") == known
    assert tokens.problem_of(known) is None
    now_s = 100.0
    assert refused(tokens, f"bearer {token}") == "stale_token"
    assert isinstance(tokens.problem_of(known), NotAuthenticated)


def test_a_token_that_is_taken_out_of_the_file_is_revoked() -> None:
    token, known = made()
    tokens = Tokens([known], lambda: 0.0)
    tokens.replace({})
    assert refused(tokens, f"Bearer {token}") == "unknown_token"
    assert isinstance(tokens.problem_of(known), RequestDenied)


@pytest.mark.parametrize("line", ["no json", "[]", "{}", '{"id": "a", "principal": "b", "salt": "zz", "sha256": ""}'])
def test_a_line_that_is_none_is_told(line: str) -> None:
    with pytest.raises(InvalidArgument, match="line 2"):
        parse_tokens(f"{made()[1].line()}\n{line}")
