"""HTTP, JSON and server-sent events for streams: what curl and browsers speak.

server                                  `serve_gateway`: a gateway that listens
app, handlers                           paths, and what each of them does
writers, reading, tail                  shared writers, reads, event streams
connection, admission                   slow clients, and too many of them
bodies, queries, positions              what clients send, as values
answers, events, problems               values, as clients read them
openapi                                 the description of it all, which is in openapi.json
"""

from quire.proxy.gateway.app import Gateway, gateway_app
from quire.proxy.gateway.server import ServedGateway, serve_gateway
from quire.proxy.gateway.settings import GatewaySettings

__all__ = ["Gateway", "GatewaySettings", "ServedGateway", "gateway_app", "serve_gateway"]
