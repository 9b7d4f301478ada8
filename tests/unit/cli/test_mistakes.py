"""Mistakes that commands about streams notice before they open anything: a sentence, a hint and an exit code."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from quire.cli.main import app


@pytest.fixture(autouse=True)
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.delenv("QUIRE_URI", raising=False)
    monkeypatch.setenv("QUIRE_TOKEN_FILE", "nothing")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("read s --from yesterday", "hint: Write earliest, latest, 3:17:0, >3:17:0, tx:1700000000000, t:2026"),
        ("read s --to t:1700000000", "error: 't:1700000000' is no position in a stream: '1700000000' is no moment"),
        ("tail s --from t:2026-01-01T00:00", "hint: Put Z behind it"),
        ("stream truncate s --before latest", "hint: Give a place such as 3:17:0"),
        ("stream truncate s --before 3", "error: '3' is no position"),
        ("stream purge s --before 3:17:0", "hint: Give a txid"),
        ("write s --jsonl --whole", "hint: Give one of these"),
        ("write s --jsonl --txid 7", "hint: Leave --txid away"),
        ("write s --txid 9223372036854775807", "hint: Txids run from 0 to 9223372036854775806"),
        ("stream list --uri zk://x/ledgers", "names a ledger cluster"),
        ("stream list --uri nonsense", "is no URI of a namespace"),
        ("stream list --uri file:", "hint: Write file:./data"),
        ("read s --uri distributedlog+sqlite:./no.db/ns", "no.db"),
        ("stream list --uri distributedlog+sqlite:./no.db/ns --timeout -1", "error: "),
        ("stream list", "there is no log in"),
        ("proxy list --uri quire://x:1/ns", "error: the token in nothing cannot be read"),
        ("ledger list", "hint: Give --metadata URI, set QUIRE_METADATA, or start a local cluster"),
        ("bookie status", "hint: Give --metadata URI, set QUIRE_METADATA, or start a local cluster"),
    ],
)
def test_a_mistake_is_a_sentence_and_a_hint(words: str, said: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, words.split())
    assert done.exit_code == 1
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert said in done.stderr
    failed = json.loads(CliRunner().invoke(app, [*words.split(), "--json"]).stdout)["error"]
    assert failed["message"] in done.stderr
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


@pytest.mark.parametrize(
    "words",
    [
        "read",
        "read s --limit -1",
        "stream truncate s",
        "write s --txid x",
        "stream create",
        "stream show a b",
        "nothing",
    ],
)
def test_what_is_no_command_is_told_with_its_usage(words: str) -> None:
    done = CliRunner().invoke(app, words.split())
    assert done.exit_code == 2
    assert "Usage: " in done.stderr
