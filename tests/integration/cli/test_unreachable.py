"""Proxies that nobody runs: a command says so when its time is up, and not later."""

from typer.testing import CliRunner

from quire.cli.main import app
from tests.support.servers.ports import free_port


def test_a_command_asks_proxies_that_are_not_there_for_as_long_as_it_was_told() -> None:
    uri = f"quire://127.0.0.1:{free_port()}/ns"
    done = CliRunner().invoke(app, ["read", "orders", "--uri", uri, "--timeout", "0.5"])
    assert done.exit_code == 1
    assert "answered within 0.5 s" in done.output
    assert "quire write-proxy run" in done.output
