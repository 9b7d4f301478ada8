"""Which log a command works on if nobody says: the one that a person in this folder would mean.

A command about streams takes `--uri`, else `$QUIRE_URI`, else the local cluster that runs, else the folder
`./quire-data`, which is served inside the command itself. A command about ledgers or bookies takes `--metadata`, else
`$QUIRE_METADATA`, else the metadata of the local cluster that runs.

Of several running clusters it is the one whose data is in `./quire-data`. If it is none of them, nobody guesses.
"""

import os
from typing import Final
from urllib.parse import quote

from quire.app.running import RunningCluster, running_clusters
from quire.errors import InvalidArgument, NotInitialised, NotRunning

FOLDER: Final = "./quire-data"

_METADATA: Final = "metadata.db"  # Of a data folder: see `quire.embedded.folder`.


def stream_uri(given: str | None, *, creating: bool) -> str:
    """Where the streams are. Raises `NotInitialised` where a folder would have to be made and `creating` is false."""
    if given:
        uri = given
    else:
        running = _running("--uri")
        if running is not None:
            return running.uri
        uri = f"file:{FOLDER}"
    if not creating and is_folder(uri):
        _check_folder(uri, is_named=bool(given))
    return uri


def metadata_uri(given: str | None, *, named_by: str = "--metadata URI") -> str:
    """Where the metadata of the ledgers is. Raises `NotRunning` if nothing says so: `named_by` says what could."""
    if given:
        return given
    running = _running("--metadata")
    if running is None:
        raise NotRunning(
            "no cluster is named, and none runs on this machine",
            hint=f"Give {named_by}, set QUIRE_METADATA, or start a local cluster with `quire up`.",
        )
    return f"sqlite:{quote(os.path.join(running.data, _METADATA))}"


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
    try:
        running = _running("--uri")
    except InvalidArgument:
        return None
    if running is None:
        return None
    from quire.embedded.folder import DataFolder

    return DataFolder(running.data).streams().text


def _running(option: str) -> RunningCluster | None:
    clusters = running_clusters()
    if len(clusters) < 2:
        return clusters[0] if clusters else None
    here = os.path.realpath(FOLDER)
    for cluster in clusters:
        if os.path.realpath(cluster.data) == here:
            return cluster
    listed = ", ".join(cluster.data for cluster in clusters)
    raise InvalidArgument(
        f"{len(clusters)} local clusters run, and none of them in {FOLDER}: {listed}",
        hint=f"Say which one with {option}: " + ", ".join(_shown(cluster, option) for cluster in clusters) + ".",
    )


def _shown(cluster: RunningCluster, option: str) -> str:
    return cluster.uri if option == "--uri" else f"sqlite:{quote(os.path.join(cluster.data, _METADATA))}"


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
