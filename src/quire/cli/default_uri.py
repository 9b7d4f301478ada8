"""Which log a command works on if nobody says: that of the folder one stands in.

A command about streams takes `--uri`, else `$QUIRE_URI`, else the log in `./quire-data`: through the local cluster that
runs there, or, if none does, inside the command itself. A command about ledgers or bookies takes `--metadata`, else
`$QUIRE_METADATA`, else the metadata of the local cluster that runs in `./quire-data`.

Invariant:
  NeverElsewhere   a log in another folder is never chosen, also if its cluster is the only one that runs: it may belong
                   to another project of the same user. A command that finds nothing here names it, and stops.
"""

import os
from collections.abc import Callable
from typing import Final
from urllib.parse import quote

from quire.app.running import RunningCluster, cluster_in, running_clusters
from quire.errors import InvalidArgument, NotInitialised, NotRunning

FOLDER: Final = "./quire-data"

_METADATA: Final = "metadata.db"  # Of a data folder: see `quire.embedded.folder`.


def stream_uri(given: str | None, *, creating: bool) -> str:
    """Where the streams are. Raises `NotInitialised` where a folder would have to be made and `creating` is false, and
    `InvalidArgument` if there is no log here and local clusters run elsewhere.
    """
    uri = given or f"file:{FOLDER}"
    if not given:
        cluster = cluster_in(FOLDER)
        if cluster is not None:
            return cluster.uri
        if not os.path.exists(f"{FOLDER}/{_METADATA}"):
            check_none_elsewhere(
                f"no log is named, and none is in {FOLDER}",
                "--uri or QUIRE_URI",
                also=f"or {uri} for a log in this folder",
            )
    if not creating and is_folder(uri):
        _check_folder(uri, is_named=bool(given))
    return uri


def metadata_uri(given: str | None, *, named_by: str = "--metadata URI") -> str:
    """Where the metadata of the ledgers is. Raises `NotRunning` if nothing says so, and `InvalidArgument` if local
    clusters run elsewhere: `named_by` says what could.
    """
    if given:
        return given
    cluster = cluster_in(FOLDER)
    if cluster is not None:
        return _metadata_of(cluster)
    check_none_elsewhere(
        f"no cluster is named, and none runs in {FOLDER}",
        f"{named_by} or QUIRE_METADATA",
        also="or start one here with `quire up`",
        shown=_metadata_of,
    )
    raise NotRunning(
        "no cluster is named, and none runs on this machine",
        hint=f"Give {named_by}, set QUIRE_METADATA, or start a local cluster with `quire up`.",
    )


def check_none_elsewhere(
    problem: str, options: str, *, also: str = "", shown: Callable[[RunningCluster], str] = lambda cluster: cluster.uri
) -> None:
    """For a command that found nothing here. Raises `InvalidArgument` if local clusters run in other folders."""
    clusters = running_clusters()
    if not clusters:
        return
    where = ", ".join(cluster.data for cluster in clusters)
    running = f"a local cluster runs in {where}" if len(clusters) == 1 else f"local clusters run in {where}"
    named = ", ".join(shown(cluster) for cluster in clusters)
    raise InvalidArgument(
        f"{problem}; {running}",
        hint=f"Say which one you mean with {options}: {named}" + (f", {also}." if also else "."),
    )


def is_folder(uri: str) -> bool:
    """Whether the log is one that a single process has open, with its bookies inside."""
    return uri[:5].lower() == "file:"


def is_proxies(uri: str) -> bool:
    """Whether the log is one that proxies serve."""
    return uri.partition(":")[0].lower() in ("quire", "quires")


def known_uri(given: str | None) -> str | None:
    """Where streams can be looked up in passing: nothing is started for it, and nothing is raised. None if nowhere.

    Of a local cluster it is where its metadata is, past the proxies: that is nearer.
    """
    if given:
        return None if is_folder(given) else given
    cluster = cluster_in(FOLDER)
    if cluster is None:
        return None
    from quire.embedded.folder import DataFolder

    return DataFolder(cluster.data).streams().text


def _metadata_of(cluster: RunningCluster) -> str:
    return f"sqlite:{quote(os.path.join(cluster.data, _METADATA))}"


def _check_folder(uri: str, *, is_named: bool) -> None:
    """A command that only looks leaves nothing behind, and does not take a mistyped folder for an empty log."""
    from quire.embedded.folder import parse_file_uri

    folder = parse_file_uri(uri).folder
    if os.path.exists(folder.metadata):
        return
    if is_named:
        raise NotInitialised(
            f"there is no log in {folder.path!r}", hint="`quire write` makes one, and so does `quire up`.", uri=uri
        )
    raise NotInitialised(
        f"no local cluster runs, and there is no log in {folder.path!r}",
        hint="Say where it is with --uri or QUIRE_URI; or begin here: `quire write` makes a log in this folder.",
        uri=uri,
    )
