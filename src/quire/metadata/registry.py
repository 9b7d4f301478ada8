"""From a URI to a store: drivers are found by scheme and loaded when first used.

Other packages add drivers of their own as entry points. Ours are listed here: looking through the metadata of all
installed packages is a good part of the time that a small program takes to start.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Final, cast

from quire.errors import MissingExtra, UnknownScheme
from quire.metadata.api import MetadataStore
from quire.metadata.driver import Driver
from quire.metadata.settings import StoreSettings
from quire.metadata.uri import MetadataUri, parse_uri
from quire.runtime import Runtime, real_runtime

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENTRY_POINT_GROUP: Final = "quire.metadata"

_OURS: Final = {
    "memory": "quire.metadata.drivers.memory",
    "sqlite": "quire.metadata.drivers.sqlite",
    "zk": "quire.metadata.drivers.zookeeper",
    "etcd": "quire.metadata.drivers.etcd",
}

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
    """The driver for `scheme`. Raises `UnknownScheme` or `MissingExtra`, each saying what to do."""
    if scheme in _OURS:
        return _load(scheme, lambda: import_module(_OURS[scheme]).open_driver)
    found = _registered()
    if scheme not in found:
        known = ", ".join(sorted({*_OURS, *found}))
        raise UnknownScheme(
            f"no metadata driver is installed for {scheme!r}",
            hint=f"Known schemes: {known}. Packages add theirs as entry points of the group {ENTRY_POINT_GROUP!r}.",
            scheme=scheme,
        )
    return _load(scheme, found[scheme].load)


@cache
def _registered() -> dict[str, "EntryPoint"]:
    """What other packages offer."""
    from importlib.metadata import entry_points

    return {point.name: point for point in entry_points(group=ENTRY_POINT_GROUP)}


def _load(scheme: str, load: Callable[[], object]) -> OpenDriver:
    try:
        return cast(OpenDriver, load())
    except ModuleNotFoundError as error:
        module = (error.name or "").partition(".")[0]
        if module in ("", "quire"):
            raise  # Our own module is missing: a broken installation, not a missing extra.
        extra = _EXTRA_OF_MODULE.get(module)
        install = f"quirelog[{extra}]" if extra else module
        raise MissingExtra(
            f"the metadata driver {scheme!r} needs the module {module!r}, which is not installed",
            hint=f"Run: pip install '{install}'",
            scheme=scheme,
            module=module,
        ) from error
