"""Which clients the gateway can stand on. The functions without a test are for the type checker."""

from quire.proxy.client.client import ProxyClient
from quire.proxy.gateway.clients import DeduplicatingClient, OwningClient, StreamClient, deduplicating, owning
from quire.stream.namespace import Namespace


def a_namespace_is_one(client: Namespace) -> StreamClient:
    return client


def a_client_of_proxies_is_one(client: ProxyClient) -> tuple[StreamClient, DeduplicatingClient, OwningClient]:
    return client, client, client


def test_only_a_client_of_proxies_knows_producers_and_owners() -> None:
    over_proxies, direct = ProxyClient.__new__(ProxyClient), Namespace.__new__(Namespace)
    assert deduplicating(over_proxies) is over_proxies
    assert owning(over_proxies) is over_proxies
    assert deduplicating(direct) is None
    assert owning(direct) is None
