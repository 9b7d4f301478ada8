"""Cookies: the proof that a bookie's directories belong to it, kept in the metadata store and in each directory.

    layout version LF body

    version 3        three lines: bookie id, journal directories, ledger directories
    version 4        a message in protobuf's text format
    version 5        the same, with index directories

Journal directories are joined with commas; ledger and index directories are a count and the directories, separated by
tabs. Every version from 4 on is read as text format, so that a cookie of a later release still says whose it is.
"""

from typing import Final

from quire.codec.damage import INT32_MAX, check_text, decimal, reading, shown, utf8
from quire.codec.text_writer import quote
from quire.errors import DamagedMetadata, InvalidArgument
from quire.types import BookieId, bookie_id
from quire.values import dataclass

LAYOUT_VERSION: Final = 5  # What Apache BookKeeper writes since 4.16, and we with it.

_WHAT: Final = "cookie"
_JOURNAL_SEPARATOR: Final = ","
_SEPARATOR: Final = "\t"


@dataclass(frozen=True, slots=True)
class Cookie:
    """Whose directories these are. `index_dirs` is None where the index lives in the ledger directories.

    `instance_id` tells clusters apart; it is None where the cluster had none when the cookie was made.
    """

    bookie_id: BookieId
    journal_dirs: tuple[str, ...]
    ledger_dirs: tuple[str, ...]
    index_dirs: tuple[str, ...] | None = None
    instance_id: str | None = None
    layout_version: int = LAYOUT_VERSION

    def __post_init__(self) -> None:
        bookie_id(self.bookie_id)
        if not 3 <= self.layout_version <= INT32_MAX:
            raise InvalidArgument(f"cookies of layout version {self.layout_version} carry nothing to compare")
        if self.instance_id == "":
            raise InvalidArgument("an instance id is not empty; None means that there is none")
        check_text(self.instance_id or "")
        for separator, directories in (
            (_JOURNAL_SEPARATOR, self.journal_dirs),
            (_SEPARATOR, (*self.ledger_dirs, *(self.index_dirs or ()))),
        ):
            for directory in directories:
                if not directory or separator in directory:
                    raise InvalidArgument(f"{shown(directory)} cannot be a directory in a cookie")
                check_text(directory)

    def differences(self, stored: "Cookie", *, expansion: bool = False) -> list[str]:
        """What keeps a bookie configured like this one from using the directories of `stored`, in words.

        Empty when they match. With `expansion`, ledger and index directories may have been added. The layout version
        does not matter: a bookie rewrites the cookie of an older release.
        """
        found = []
        if self.bookie_id != stored.bookie_id:
            found.append(f"the bookie id is {self.bookie_id!r} here and {stored.bookie_id!r} in the cookie")
        found += _directory_differences("journal", self.journal_dirs, stored.journal_dirs, expansion=False)
        found += _directory_differences("ledger", self.ledger_dirs, stored.ledger_dirs, expansion=expansion)
        if self.index_dirs is not None or stored.index_dirs is not None:
            here = self.ledger_dirs if self.index_dirs is None else self.index_dirs
            there = stored.ledger_dirs if stored.index_dirs is None else stored.index_dirs
            found += _directory_differences("index", here, there, expansion=expansion)
        if self.instance_id != stored.instance_id:
            found.append(f"the instance id is {self.instance_id} here and {stored.instance_id} in the cookie")
        return found


def encode_cookie(cookie: Cookie) -> bytes:
    """The bytes to store, in `cookie.layout_version`. Raises `InvalidArgument` if that version cannot hold it all."""
    if cookie.index_dirs is not None and cookie.layout_version < 5:
        raise InvalidArgument(f"a cookie of layout version {cookie.layout_version} cannot name index directories")
    journal_dirs, ledger_dirs = _JOURNAL_SEPARATOR.join(cookie.journal_dirs), _join(cookie.ledger_dirs)
    header = f"{cookie.layout_version}\n"
    if cookie.layout_version == 3:
        body = [cookie.bookie_id, journal_dirs, ledger_dirs]
        if cookie.instance_id is not None or any("\n" in line for line in body):
            raise InvalidArgument("a cookie of layout version 3 cannot hold an instance id, or a line break in a name")
        return "".join([header, *(f"{line}\n" for line in body)]).encode()
    fields = {
        "bookieHost": cookie.bookie_id,
        "journalDir": journal_dirs,
        "ledgerDirs": ledger_dirs,
        "instanceId": cookie.instance_id,
        "indexDirs": None if cookie.index_dirs is None else _join(cookie.index_dirs),
    }
    lines = [f"{name}: {quote(text.encode())}\n" for name, text in fields.items() if text is not None]
    return "".join([header, *lines]).encode()


def decode_cookie(data: bytes) -> Cookie:
    """Raises `DamagedMetadata`, also for layout versions 1 and 2, which hold nothing that could be compared."""
    first, _, body = data.partition(b"\n")
    version = decimal(utf8(first, _WHAT).strip(), f"{_WHAT}: the layout version on line 1", low=1, high=INT32_MAX)
    if version < 3:
        raise DamagedMetadata(
            f"{_WHAT}: layout version {version} is too old to say whose directories these are",
            hint="Let Apache BookKeeper 4.2 or later upgrade the bookie's directories first.",
        )
    with reading(_WHAT):
        return _decode_lines(body) if version == 3 else _decode_text(body, version)


def _decode_lines(body: bytes) -> Cookie:
    lines = utf8(body, f"{_WHAT}, after the first line").split("\n")
    if len(lines) < 3:
        raise DamagedMetadata(f"{_WHAT}: bookie id, journal and ledger directories should stand on lines 2 to 4")
    return Cookie(
        BookieId(lines[0]), _split_journal(lines[1]), _split(lines[2], "the ledger directories"), layout_version=3
    )


def _decode_text(body: bytes, version: int) -> Cookie:
    from quire.codec.messages import read_text  # Google's library, which who makes a cookie does not need.
    from quire.codec.pb import bookkeeper_metadata_pb2 as pb

    message = read_text(body, pb.CookieFormat, _WHAT, first_line=2)
    return Cookie(
        bookie_id=BookieId(message.bookieHost),
        journal_dirs=_split_journal(message.journalDir),
        ledger_dirs=_split(message.ledgerDirs, "ledgerDirs"),
        index_dirs=_split(message.indexDirs, "indexDirs") if message.indexDirs else None,
        instance_id=message.instanceId or None,
        layout_version=version,
    )


def _join(directories: tuple[str, ...]) -> str:
    return _SEPARATOR.join([str(len(directories)), *directories])


def _split(text: str, name: str) -> tuple[str, ...]:
    count, *directories = text.split(_SEPARATOR)
    if decimal(count, f"{_WHAT}: the count in {name}", low=0, high=INT32_MAX) != len(directories):
        raise DamagedMetadata(f"{_WHAT}: {name} should be {count} directories, but there are {len(directories)}")
    return tuple(directories)


def _split_journal(text: str) -> tuple[str, ...]:
    return tuple(text.split(_JOURNAL_SEPARATOR)) if text else ()


def _directory_differences(kind: str, here: tuple[str, ...], stored: tuple[str, ...], *, expansion: bool) -> list[str]:
    added = [directory for directory in here if directory not in stored]
    removed = [directory for directory in stored if directory not in here]
    found = []
    if removed:
        found.append(f"{kind} directories of the cookie are not configured: {', '.join(removed)}")
    if added and not expansion:
        found.append(f"{kind} directories are not in the cookie: {', '.join(added)}")
    if not added and not removed and not expansion and here != stored:
        found.append(
            f"the {kind} directories are listed differently: {', '.join(here)} here, {', '.join(stored)} there"
        )
    return found
