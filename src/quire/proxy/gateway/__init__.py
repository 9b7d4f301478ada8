"""HTTP, JSON and server-sent events for streams: what curl and programs without a client speak.

server                                  `serve_gateway`: a gateway that listens
app, handlers                           paths, and what each of them does
writers, reading, tail                  shared writers, reads, event streams
connection, admission                   slow clients, and too many of them
bodies, queries, positions              what clients send, as values
answers, events, problems               values, as clients read them
openapi                                 the description of it all, which is in openapi.json
"""

from importlib import import_module
from typing import TYPE_CHECKING

from quire.proxy.gateway.settings import GatewaySettings

if TYPE_CHECKING:
    from quire.proxy.gateway.app import Gateway, gateway_app
    from quire.proxy.gateway.server import ServedGateway, serve_gateway

__all__ = ["Gateway", "GatewaySettings", "ServedGateway", "gateway_app", "serve_gateway"]

# Imported when they are used: every proxy knows the settings of a gateway, and few load all of HTTP for one.
_HOMES = {"Gateway": "app", "gateway_app": "app", "ServedGateway": "server", "serve_gateway": "server"}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    return found
