"""What `import quire` promises: these names and no others, and that it does not take long."""

import ast
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

import quire
import quire.errors

NAMES = [
    "DLSN",
    "Client",
    "LedgerClient",
    "LedgerEntry",
    "LedgerReader",
    "LedgerSettings",
    "LedgerWriter",
    "LogRecord",
    "StreamInfo",
    "StreamReader",
    "StreamSettings",
    "StreamWriter",
    "__version__",
    "connect",
    "errors",
    "ledgers",
    "sync",
    "time",
    "txid",
]
SYNC_NAMES = [
    "AdvancedWriter",
    "Client",
    "LedgerClient",
    "LedgerReader",
    "LedgerWriter",
    "StreamReader",
    "StreamWriter",
    "connect",
    "ledgers",
]


def test_these_names_are_public_and_lead_somewhere() -> None:
    assert quire.__all__ == NAMES
    assert set(NAMES) <= set(dir(quire))
    assert [name for name in NAMES if getattr(quire, name) is None] == []
    assert quire.sync.__all__ == SYNC_NAMES
    assert [name for name in SYNC_NAMES if not callable(getattr(quire.sync, name))] == []


def test_type_checkers_are_told_the_same_homes() -> None:
    tree = ast.parse(Path(quire.__file__).read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    told: dict[str, str] = {}
    for statement in block.body:
        assert isinstance(statement, ast.ImportFrom)
        for name in statement.names:
            is_module = statement.module == "quire"
            told[name.asname or name.name] = f"{statement.module}{'.' if is_module else ':'}{name.name}"
    assert told == quire._HOMES
    assert sorted(told) == sorted(set(NAMES) - {"__version__"})


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'conect'"):
        quire.conect  # noqa: B018


def test_starts_read_as_functions() -> None:
    assert quire.txid(5).value == 5
    assert quire.time(1000).ms == quire.time(datetime.fromtimestamp(1, UTC)).ms == 1000
    with pytest.raises(quire.errors.InvalidArgument, match="time zone"):
        quire.time(datetime(2026, 1, 1))  # noqa: DTZ001 - that is the mistake


def test_importing_the_package_imports_nothing_that_is_heavy() -> None:
    """Parts are loaded when they are used: a command that only needs one does not wait for all."""
    program = "import sys, quire; print(*[name for name in sys.modules if name.split('.')[0] in sys.argv[1:]])"
    heavy = ("asyncio", "google", "lz4", "structlog", "uvloop", "threading")
    loaded = subprocess.run(
        [sys.executable, "-c", program, "quire", *heavy], check=True, capture_output=True, text=True
    ).stdout.split()
    assert loaded == ["quire"]
