"""What `quire status` and `quire down` print for people."""

from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from quire.app.local_status import ClusterStatus
from quire.app.local_stop import StoppedCluster
from quire.cli.local_output import coloured_state, shown_path
from quire.cli.output import out
from quire.errors import NotRunning
from quire.protocol.space import shown_bytes


def show_stopped(stopped: StoppedCluster) -> None:
    what = [] if stopped.supervisor is None else [f"the local cluster (process {stopped.supervisor})"]
    what += [f"the left-over {each}" for each in stopped.left_overs]
    out().print(f"Stopped {escape(' and '.join(what))} in {escape(shown_path(stopped.data))}.", soft_wrap=True)


def show_not_running(absent: NotRunning) -> None:
    console = out()
    console.print(f"{escape(str(absent)[:1].upper() + str(absent)[1:])}.", soft_wrap=True)
    console.print(f"[bold]hint:[/] {escape(absent.hint)}", soft_wrap=True)


def show_status(status: ClusterStatus) -> None:
    console = out()
    running = f"process {status.pid}, for {shown_span(status.uptime_s)}" if status.running else "[red]not running[/]"
    console.print(f"[bold]{escape(shown_path(status.data))}[/]  {running}", soft_wrap=True)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, header_style="dim", show_edge=False)
    for heading in ("service", "state", "address", "process", "up for", "restarts", "disk used"):
        is_figure = heading in ("process", "up for", "restarts", "disk used")
        table.add_column(heading, justify="right" if is_figure else "left", overflow="fold")
    for each in status.services:
        process, span = "" if each.pid is None else str(each.pid), shown_span(each.uptime_s)
        used = "" if each.used_bytes is None else shown_bytes(each.used_bytes)
        state = coloured_state(each.state)
        table.add_row(each.name, state, each.address or "", process, span, str(each.restarts), used)
    console.print(table)
    for each in status.services:
        if each.problem is not None:
            console.print(f"[yellow]{each.name}:[/] {escape(each.problem)}", soft_wrap=True)
    console.print(f"Disk      {shown_bytes(status.free_bytes)} free of {shown_bytes(status.total_bytes)}")
    console.print(f"Streams   {'unknown' if status.streams is None else status.streams}")
    console.print(f"URI       [bold]{escape(status.uri)}[/]", soft_wrap=True)
    if not status.running:
        hint = f"`quire down --data {status.data}` stops what is left."
        console.print(f"[bold]hint:[/] {escape(hint)}", soft_wrap=True)


def shown_span(seconds: float | None) -> str:
    """For people: 2 h 5 min."""
    if seconds is None:
        return ""
    minutes, hours, days = int(seconds // 60), int(seconds // 3600), int(seconds // 86_400)
    if days:
        return f"{days} d {hours % 24} h"
    if hours:
        return f"{hours} h {minutes % 60} min"
    return f"{minutes} min {int(seconds % 60)} s" if minutes else f"{int(seconds)} s"
