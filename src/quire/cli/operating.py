"""What operators' commands have in common: which cluster is meant, how they are asked, and how they run."""

import re
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, Final, TypeVar

import typer

from quire.cli.default_uri import metadata_uri
from quire.cli.output import err, run
from quire.errors import InvalidArgument

if TYPE_CHECKING:
    from quire.app.inventory import Operations, Target

T = TypeVar("T")

_BYTES: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.IGNORECASE)
_UNITS: Final[dict[str, int]] = {"": 1, "b": 1} | {
    f"{letter}{ending}": base ** (power + 1)
    for power, letter in enumerate("kmgt")
    for ending, base in (("ib", 1024), ("b", 1000), ("", 1000))
}

Metadata = Annotated[
    str | None,
    typer.Option(
        "--metadata",
        envvar="QUIRE_METADATA",
        metavar="URI",
        help="Where the cluster's metadata is. Default: $QUIRE_METADATA, else that of the cluster in ./quire-data.",
        show_default=False,
    ),
]
Namespaces = Annotated[
    list[str] | None,
    typer.Option(
        "--uri",
        metavar="URI",
        help="A namespace of streams of this cluster. Repeat for each. Default: all, if it is in a local file.",
        show_default=False,
    ),
]
Racks = Annotated[
    str | None, typer.Option("--racks", metavar="FILE", help="Which bookie is in which rack, as clients have it.")
]
HttpHost = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Another name, in DNS or of a proxy in front, by which HTTP is asked for here. Repeat. Requests by names "
        "that are not known are refused.",
        show_default=False,
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Timeout = Annotated[
    float, typer.Option("--timeout", metavar="SECONDS", help="Give up on any one step after this long.")
]


def target(
    metadata: str | None, namespaces: list[str] | None, *, timeout_s: float, racks: str | None = None
) -> "Target":
    """What is meant. Raises `NotRunning` and `InvalidArgument`, as `metadata_uri` does."""
    from quire.app.inventory import Target  # And with it all of streams, which a bookie that is started does not need.

    for uri in namespaces or ():
        if uri.partition(":")[0].lower() in ("file", "quire", "quires"):
            raise InvalidArgument(
                f"{uri!r} does not name a namespace in a metadata store",
                hint="Write distributedlog://zk1:2181/ns, or distributedlog+sqlite:./data/metadata.db/ns.",
                uri=uri,
            )
    if metadata is None and not namespaces:
        metadata = metadata_uri(None)
    return Target(metadata, tuple(namespaces or ()), timeout_s, racks)


def on_cluster(
    work: "Callable[[Operations], Awaitable[T]]",
    *,
    metadata: str | None,
    namespaces: list[str] | None = None,
    json: bool,
    timeout_s: float,
    racks: str | None = None,
) -> T:
    """Run a command's work on an open cluster."""
    from quire.app.inventory import open_operations

    async def opened() -> T:
        async with open_operations(target(metadata, namespaces, timeout_s=timeout_s, racks=racks)) as operations:
            return await work(operations)

    return run(opened(), as_json=json)


def agreed(question: str, *, yes: bool, json: bool) -> bool:
    """Whether to go on. Programs say so beforehand: there is nobody to ask."""
    if yes:
        return True
    if json or not err().is_terminal:
        raise InvalidArgument(
            f"this would change something: {question}", hint="Say --yes if that is what you want; nothing was changed."
        )
    return typer.confirm(question, err=True)


def bytes_of(text: str) -> int:
    """A number of bytes, such as 4096, 16MiB or 2GB. Raises `InvalidArgument`."""
    match = _BYTES.fullmatch(text.strip())
    unit = _UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise InvalidArgument(f"{text!r} is no number of bytes", hint="Write 4096, 16MiB or 2GB.")
    return round(float(match[1]) * unit)
