"""What a local cluster shows of itself: a list of what runs where, then a line for whatever happens; or JSON lines.

Whoever reads the output may go away, with its terminal or its pipe, while the cluster runs or stops. That is no reason
for the cluster to fail, so from then on nothing is shown.
"""

import os
import shlex
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from quire.app.cluster_events import (
    BookieMode,
    ClusterEvent,
    Noted,
    ServiceEnded,
    ServiceFailing,
    ServiceKilled,
    ServiceRestarted,
    ServiceShown,
    Started,
    Stopped,
    Stopping,
)
from quire.cli.default_uri import FOLDER
from quire.cli.output import erase_ctrl_c, out, print_json, report
from quire.errors import QuireError

STATE_COLOURS: Final = {
    "up": "green",
    "readonly": "yellow",
    "busy": "yellow",
    "starting": "yellow",
    "restarting": "yellow",
}
_SIGNALS: Final = {"SIGINT": "Ctrl-C", "SIGTERM": "SIGTERM", "SIGHUP": "the terminal was closed"}


def coloured_state(state: str) -> str:
    return f"[{STATE_COLOURS.get(state, 'red')}]{state}[/]"


def shown_path(path: str) -> str:
    """As seen from here, if that is shorter."""
    try:
        relative = os.path.relpath(path)
    except OSError:  # The folder we are in is gone.
        return path
    return relative if len(relative) < len(path) and not relative.startswith("..") else path


class _Output:
    """Standard output, as long as somebody reads it."""

    def __init__(self) -> None:
        self._is_open = True

    def write(self, show: Callable[[], None]) -> None:
        if not self._is_open:
            return
        try:
            show()
            sys.stdout.flush()
        except OSError:
            self._is_open = False
            # What is left in the buffer would fail again when the process ends, and change its exit code.
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, sys.stdout.fileno())
            os.close(nowhere)


class JsonLines:
    """For programs: each event, and the error that ends it all, as one line of JSON."""

    def __init__(self) -> None:
        self._output = _Output()

    def tell(self, event: ClusterEvent) -> None:
        self._output.write(lambda: print_json(event.to_json(), in_one_line=True))

    def fail(self, error: QuireError) -> None:
        self._output.write(lambda: report(error, as_json=True, in_one_line=True))


class Lines:
    """For people."""

    def __init__(self) -> None:
        self._output = _Output()
        self._console = out()

    def fail(self, error: QuireError) -> None:
        report(error, as_json=False)

    def tell(self, event: ClusterEvent) -> None:
        self._output.write(lambda: self._show(event))

    def _line(self, text: str) -> None:
        self._console.print(text, soft_wrap=True)

    def _show(self, event: ClusterEvent) -> None:
        match event:
            case Started():
                self._show_started(event)
            case Noted(message, hint):
                self._line(f"[yellow]note:[/] {escape(message)}")
                if hint:
                    self._line(f"[bold]hint:[/] {escape(hint)}")
            case ServiceEnded(service, why, again_in_s):
                self._line(f"[red]{service} is down:[/] {escape(why)}; starting it again in {again_in_s:g} s")
            case ServiceFailing():
                self._show_failing(event)
            case ServiceRestarted(service, address, pid):
                self._line(f"[green]{service} is back:[/] {address}, process {pid}")
            case BookieMode(bookie, readonly, reasons):
                mode = "takes nothing new" if readonly else "takes entries again"
                self._line(f"[yellow]{bookie} {mode}[/]" + escape("".join(f": {reason}" for reason in reasons)))
            case Stopping(signal):
                if signal == "SIGINT":
                    erase_ctrl_c()
                self._line(f"Stopping ({_SIGNALS.get(signal, signal)}) …")
            case ServiceKilled(service, pid, waited_s):
                self._line(
                    f"[yellow]{service} (process {pid}) had not stopped after {waited_s:.1f} s and was killed;[/] "
                    "nothing that was acknowledged is lost"
                )
            case Stopped(data):
                self._line(f"Stopped. Everything is in {escape(shown_path(data))}.")

    def _show_started(self, event: Started) -> None:
        self._line(f"[bold]{counted(event.services)}[/] in {escape(shown_path(event.data))} after {event.took_s:.1f} s")
        self._console.print(service_table(event.services))
        for service in event.services:
            if service.problem is not None:
                self._line(f"[yellow]{service.name}:[/] {escape(service.problem)}")
        self._line(f"URI       [bold]{escape(event.uri)}[/]")
        if event.direct_uri != event.uri:
            self._line(f"Direct    {escape(event.direct_uri)}   [dim]past the proxies[/]")
        for service in event.services:
            if service.gateway is not None:
                self._line(f"Gateway   {service.gateway}")
        # Commands find the cluster in the folder that has its data folder, and nowhere else.
        is_default = os.path.realpath(event.data) == os.path.realpath(FOLDER)
        uri, data = ("", "") if is_default else (f" --uri {event.uri}", f" --data {shlex.quote(event.data)}")
        where = "in another terminal, in this folder" if is_default else "in another terminal"
        self._line(f"Try it    echo hello | quire write orders{escape(uri)}   [dim]{where}[/]")
        self._line(f"          quire tail orders{escape(uri)}")
        self._line(f"Stop it   Ctrl-C, or quire down{escape(data)}")

    def _show_failing(self, event: ServiceFailing) -> None:
        self._line(
            f"[red]{event.service} has failed to start {event.failed_starts} times:[/] {escape(event.why)}; "
            f"trying every {event.again_in_s:g} s or so from now on"
        )
        hint = event.hint or "Its log may say more."
        self._line(f"[bold]hint:[/] {escape(hint)} [dim]({escape(shown_path(event.log))})[/]")


def counted(services: Sequence[ServiceShown]) -> str:
    """For people: 3 bookies, 1 write proxy and 1 read proxy run."""
    running = Counter(service.kind for service in services if service.state in ("up", "readonly"))
    parts = []
    for kind in dict.fromkeys(service.kind for service in services):
        noun = kind.replace("-", " ")
        many = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
        parts.append(f"{running[kind]} {noun if running[kind] == 1 else many}")
    *first, last = parts
    return f"{', '.join(first)} and {last} run" if first else f"{last} run"


def service_table(services: Sequence[ServiceShown]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="dim", show_edge=False)
    for heading in ("service", "state", "address", "http", "process", "log"):
        table.add_column(heading, justify="right" if heading == "process" else "left", overflow="fold")
    for each in services:
        process = "" if each.pid is None else str(each.pid)
        log = escape(shown_path(each.log))
        table.add_row(each.name, coloured_state(each.state), each.address or "", each.admin or "", process, log)
    return table
