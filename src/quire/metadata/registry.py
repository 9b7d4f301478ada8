"""From a URI to a store: drivers are found by scheme through package entry points and loaded when first used."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Final, cast

from quire.errors import MissingExtra, UnknownScheme
from quire.metadata.api import MetadataStore
from quire.metadata.driver import Driver
from quire.metadata.settings import StoreSettings
from quire.metadata.uri import MetadataUri, parse_uri
from quire.runtime import Runtime, real_runtime

ENTRY_POINT_GROUP: Final = "quire.metadata"

_EXTRA_OF_MODULE: Final = {"kazoo": "zookeeper", "grpc": "etcd"}

OpenDriver = Callable[[MetadataUri, StoreSettings, Runtime], Awaitable[Driver]]


@asynccontextmanager
async def open_store(
    uri: str | MetadataUri, *, settings: StoreSettings | None = None, runtime: Runtime | None = None
) -> AsyncIterator[MetadataStore]:
    """Open the metadata store that `uri` names, with a session of its own that ends with the block.

    Raises `InvalidUri`, `UnknownScheme`, `MissingExtra`, and `MetadataUnavailable` when the store does not answer
    within the operation timeout.
    """
    parsed = parse_uri(uri) if isinstance(uri, str) else uri
    open_driver = load_driver(parsed.backend)
    runtime = runtime or real_runtime()
    driver = await open_driver(parsed, settings or StoreSettings(), runtime)
    async with MetadataStore(driver, runtime.clock) as store:
        yield store


def load_driver(scheme: str) -> OpenDriver:
    """The driver registered for `scheme`. Raises `UnknownScheme` or `MissingExtra`, each saying what to do."""
    found = _registered()
    if scheme not in found:
        known = ", ".join(sorted(found)) or "none"
        raise UnknownScheme(
            f"no metadata driver is installed for {scheme!r}",
            hint=f"Known schemes: {known}. Packages add theirs as entry points of the group {ENTRY_POINT_GROUP!r}.",
            scheme=scheme,
        )
    return _load(found[scheme])


@cache
def _registered() -> dict[str, EntryPoint]:
    """What the installed packages offer. Looking through their metadata takes milliseconds: once is enough."""
    return {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}


def _load(point: EntryPoint) -> OpenDriver:
    try:
        return cast(OpenDriver, point.load())
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module in ("", "quire"):
            raise  # Our own module is missing: a broken installation, not a missing extra.
        extra = _EXTRA_OF_MODULE.get(module)
        install = f"quirelog[{extra}]" if extra else module
        raise MissingExtra(
            f"the metadata driver {point.name!r} needs the module {module!r}, which is not installed",
            hint=f"Run: pip install '{install}'",
            scheme=point.name,
            module=module,
        ) from error
