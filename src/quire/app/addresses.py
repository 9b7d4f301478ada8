"""Addresses as operators write them."""

from typing import Final

from quire.errors import InvalidArgument

_EVERYWHERE: Final = ("0.0.0.0", "::")  # noqa: S104 - to recognise it, not to bind it


def parse_address(text: str | None, *, example: str = "127.0.0.1:3181") -> tuple[str, int]:
    """HOST:PORT. Raises `InvalidArgument`."""
    host, _, port = (text or "").rpartition(":")
    if not port.isdecimal() or int(port) > 65535 or not host:
        raise InvalidArgument(f"{text!r} is not HOST:PORT", hint=f"Write, for example, {example}.")
    return host.strip("[]"), int(port)


def advertised_host(listen: str, advertise: str | None) -> str:
    """The name under which others reach what listens there. Raises `InvalidArgument` if nobody said it."""
    host, _ = parse_address(listen)
    if host in _EVERYWHERE and advertise is None:
        raise InvalidArgument(
            f"{listen!r} listens everywhere, which is no address to connect to",
            hint="Say with --advertise under which name clients reach this machine.",
        )
    return advertise or host
