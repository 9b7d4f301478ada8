"""Decide what is wrong with the archived segments of streams, and with their files in cold storage. Sans-IO.

Which cold nodes count is `quire.stream.cold_nodes`' to say; this says the same of nodes that were read once.

Invariants:
  FileByFile     a file that is missing or another one is a finding of its own. Without a hot segment its records are
                 lost, with one they are at risk. A file that nothing could be learned of is neither.
  MayBeUnderway  a file that no node names is told only if nobody can publish it any more: somebody may be archiving
                 its segment right now.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Final, TypeAlias

from quire.protocol.findings import Finding, Severity
from quire.values import dataclass

FileKey: TypeAlias = tuple[str, str]
"""The root of cold storage, and the name of a file below it."""

MISSING: Final = "missing cold file"
DAMAGED: Final = "damaged cold file"

_SHOWN_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class ColdFact:
    """What the node of an archived segment says."""

    name: str
    lssn: int
    root: str
    file: str
    is_hot: bool
    is_truncated: bool = False

    @property
    def key(self) -> FileKey:
        return self.root, self.file


@dataclass(frozen=True, slots=True)
class FileProblem:
    """What is wrong with a file: `MISSING` or `DAMAGED`."""

    kind: str
    problem: str


@dataclass(frozen=True, slots=True)
class ColdObject:
    """A file that no node named when it was listed, and the segment that its name tells of."""

    root: str
    name: str
    stream: str
    lssn: int


@dataclass(frozen=True, slots=True)
class ColdLook:
    """What cold storage answered."""

    problems: Mapping[FileKey, FileProblem] = field(default_factory=dict)
    unreachable: Mapping[str, str] = field(default_factory=dict)
    """Roots that could not be asked, and why."""

    objects: Sequence[ColdObject] = ()


@dataclass(frozen=True, slots=True)
class Archive:
    """The archived part of a stream."""

    only_cold: tuple[int, ...]
    """Segments before the first hot one that readers read from files."""

    cut_off: tuple[int, ...] = ()
    """Segments that count for nothing: their neighbours were purged by somebody who knows nothing of cold storage."""

    gap: tuple[int, int] | None = None
    """The first and the last segment that lack between cold ones."""


def archive_of(hot: Collection[int], cold: Mapping[int, ColdFact]) -> Archive:
    """Which cold segments count, by the numbers of the hot ones."""
    first_hot = min(hot, default=None)
    before = {lssn: fact for lssn, fact in cold.items() if first_hot is None or lssn < first_hot}
    lssn = max(before, default=0) if first_hot is None else first_hot - 1
    chain: list[int] = []
    while lssn in before and not before[lssn].is_hot:
        chain.append(lssn)
        lssn -= 1
    only_cold, others = tuple(reversed(chain)), sorted(before.keys() - set(chain))
    if not others:
        return Archive(only_cold)
    if only_cold and not before[others[-1]].is_hot:
        return Archive(only_cold, gap=(others[-1] + 1, only_cold[0] - 1))
    return Archive(only_cold, cut_off=tuple(others))


# --- One stream


def of_archive(
    stream: str, hot: Collection[int], cold: Sequence[ColdFact], look: ColdLook, *, is_whole: bool
) -> Iterable[Finding]:
    """What is wrong with the archived segments of a stream. Unless `is_whole`, some of its nodes cannot be read: then
    nothing is said of what lacks.
    """
    facts = {each.lssn: each for each in cold}
    archive = archive_of(hot, facts)
    if is_whole and archive.gap is not None:
        yield _gap(stream, *archive.gap)
    if is_whole and archive.cut_off:
        yield _cut_off(stream, archive.cut_off)
    for fact in cold:
        problem = look.problems.get(fact.key)
        if problem is not None and fact.lssn not in archive.cut_off:
            yield _of_file(stream, fact, problem, is_hot=fact.lssn in hot)


def _gap(stream: str, first: int, last: int) -> Finding:
    return Finding(
        "broken chain",
        Severity.LOST,
        f"stream {stream}",
        f"cold segments {first} to {last} lack" if first < last else f"cold segment {first} lacks",
        advice="Nobody can read or change what is before it. Restore the nodes from a backup.",
        stream=stream,
    )


def _cut_off(stream: str, lssns: Sequence[int]) -> Finding:
    which = f"segments {lssns[0]} to {lssns[-1]} are" if len(lssns) > 1 else f"segment {lssns[0]} is"
    return Finding(
        "cut-off archive",
        Severity.AT_RISK,
        f"stream {stream}",
        f"{which} in cold storage, and readers begin behind: what follows them has no node any more",
        advice="If a program that knows nothing of cold storage purged the stream, this is right, and `quire stream "
        f"purge {stream.rpartition('/')[2]}` deletes the files. If not, restore the nodes from a backup before anybody "
        "purges it.",
        stream=stream,
    )


def _of_file(stream: str, fact: ColdFact, problem: FileProblem, *, is_hot: bool) -> Finding:
    subject = f"stream {stream}, segment {fact.name}"
    if fact.is_truncated and problem.kind == MISSING:
        return Finding(
            "half purged segment",
            Severity.UNTIDY,
            subject,
            f"its file in {fact.root} is gone, as it should be, and its node is not",
            advice=f"`quire stream purge {stream.rpartition('/')[2]}` finishes it.",
            stream=stream,
        )
    mounted = " Is the folder there on this machine?" if fact.root.startswith("file:") else ""
    return Finding(
        problem.kind,
        Severity.AT_RISK if is_hot else Severity.LOST,
        subject,
        f"{fact.file} in {fact.root}: {problem.problem}",
        advice=(
            "Bookies have its records. Restore the file from a backup before the segment is dropped."
            if is_hot
            else "Nothing else has its records: restore the file from a backup, under the same name."
        )
        + (mounted if problem.kind == MISSING else ""),
        stream=stream,
    )


# --- All of them


def of_stores(cold: Collection[ColdFact], look: ColdLook) -> Iterable[Finding]:
    """Cold storage that could not be asked."""
    for root, why in look.unreachable.items():
        files = sum(each.root == root for each in cold)
        yield Finding(
            "unreachable cold storage",
            Severity.AT_RISK,
            f"cold storage {root}",
            f"{why}; of the archived segments there, {files} in all, not all could be looked at",
            advice="See that it can be reached from here, with the keys that it needs, and check again.",
        )


def left_over(
    archives: Mapping[str, tuple[Collection[int], Sequence[ColdFact]]], objects: Iterable[ColdObject]
) -> Iterable[Finding]:
    """Files that nobody will ever name. `archives` has the numbers of hot segments and the cold ones of each stream;
    objects of streams that are not among them belong to streams that do not exist.
    """
    named = {fact.key for _, cold in archives.values() for fact in cold}
    found: dict[tuple[str, str], list[str]] = {}
    for each in objects:
        if (each.root, each.name) not in named and not _may_be_published(archives.get(each.stream), each.lssn):
            found.setdefault((each.root, each.stream), []).append(each.name)
    for (root, stream), names in found.items():
        shown = ", ".join(names[:_SHOWN_MAX]) + (f" and {len(names) - _SHOWN_MAX} more" * (len(names) > _SHOWN_MAX))
        yield Finding(
            "left-over cold file",
            Severity.UNTIDY,
            f"stream {stream}",
            f"no segment names {shown} in {root}",
            advice="An archive or a purge was cut off. Delete it by hand, unless another cluster archives there.",
            stream=stream,
        )


def _may_be_published(archive: tuple[Collection[int], Sequence[ColdFact]] | None, lssn: int) -> bool:
    """Whether whoever is archiving this segment could still have its file named."""
    if archive is None:
        return False
    hot, cold = archive
    numbers = {each.lssn for each in cold}
    if lssn in numbers:
        return False  # Another file was published.
    return lssn in hot or lssn > max((*hot, *numbers), default=0)  # Or it is newer than what was read.
