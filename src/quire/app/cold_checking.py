"""Look at the files of archived segments in cold storage: are they there, and are they what was archived?

The metadata says how large a file is, and has the checksums of its footer and of all of it. The footer has those of
its parts; so one small read tells a file from any other, and `thorough` reads the rest, too.

Invariants:
  OthersGoOn     cold storage that does not answer within the time limit of a step, or refuses, is asked no more. It is
                 told, and so is all that was found elsewhere.
  SecondLook     what is wrong with a file is told only if its node, read again, names it still: a purge deletes the
                 file first and the node a moment later.
"""

import hashlib
from collections.abc import Callable
from typing import Final

from quire.app.inventory import Inventory, OpenNamespace, Operations, StreamFacts, in_parts
from quire.codec.cold import ColdFile
from quire.codec.stream_metadata.tree import StreamPaths
from quire.cold import ColdStores
from quire.errors import DamagedColdFile, DamagedMetadata, InvalidName, NoSuchColdObject, NoSuchNode, QuireError
from quire.protocol.cold_consistency import DAMAGED, MISSING, ColdLook, ColdObject, FileKey, FileProblem
from quire.stream.archiving import object_segment, objects_folder
from quire.stream.cold_nodes import StoredCold, read_cold
from quire.values import dataclass

_LOOKS: Final = 5
_LOOK_AGAIN_S: Final = 0.4


@dataclass(frozen=True, slots=True)
class _Archived:
    """An archived segment, and where its node is."""

    namespace: OpenNamespace
    paths: StreamPaths
    stored: StoredCold

    @property
    def file(self) -> ColdFile:
        return self.stored.cold.file

    @property
    def key(self) -> FileKey:
        return self.file.root, self.file.name


async def look_at_cold(
    operations: Operations,
    inventory: Inventory,
    *,
    thorough: bool,
    exclusive: bool,
    on_step: Callable[[], None] = lambda: None,
) -> ColdLook:
    """What cold storage has of all archived segments; if `exclusive`, also what it has that no segment names."""
    archived = [each for stream in inventory.streams for each in _archived(operations, stream)]
    if not archived:
        return ColdLook()
    stores = ColdStores(timeout_s=operations.timeout_s)
    look = _ColdCheck(operations, stores, thorough)
    try:

        async def step(each: _Archived) -> None:
            await look.at_file(each)
            on_step()

        await in_parts(archived, step)
        await look.again(archived)
        objects = await look.at_objects(archived, inventory) if exclusive else []
    finally:
        await stores.aclose()
    return ColdLook(look.problems, look.unreachable, objects)


def _archived(operations: Operations, stream: StreamFacts) -> list[_Archived]:
    namespace = next(each for each in operations.namespaces if each.uri == stream.namespace)
    paths = StreamPaths(namespace.path, stream.stream)
    return [_Archived(namespace, paths, each) for each in stream.cold]


class _ColdCheck:
    """What was found so far."""

    def __init__(self, operations: Operations, stores: ColdStores, thorough: bool) -> None:
        self._operations, self._stores, self._thorough = operations, stores, thorough
        self.problems: dict[FileKey, FileProblem] = {}
        self.unreachable: dict[str, str] = {}

    async def at_file(self, archived: _Archived) -> None:
        if archived.file.root in self.unreachable:
            return
        try:
            found = await self._problem(archived.file)
        except QuireError as error:
            self.unreachable.setdefault(archived.file.root, str(error))
            return
        if found is not None:
            self.problems[archived.key] = found

    async def again(self, archived: list[_Archived]) -> None:
        """Whether the nodes of files with problems stay where they are."""

        async def look(each: _Archived) -> None:
            if not await _is_named(each):
                del self.problems[each.key]

        for turn in range(_LOOKS):
            doubtful = [each for each in archived if each.key in self.problems]
            if doubtful and turn:
                await self._operations.runtime.clock.sleep(_LOOK_AGAIN_S)
            await in_parts(doubtful, look)

    async def _problem(self, file: ColdFile) -> FileProblem | None:
        """What is wrong with a file. Raises what keeps it from being read."""
        store = self._stores.at(file.root)
        try:
            size_bytes = await store.size(file.name)
            if size_bytes != file.size_bytes:
                return FileProblem(DAMAGED, f"it has {size_bytes} bytes, and {file.size_bytes} were archived")
            footer = await store.read(file.name, file.size_bytes - file.footer_bytes, file.size_bytes)
            if hashlib.sha256(footer).hexdigest() != file.footer_sha256:
                return FileProblem(DAMAGED, "its footer is not that of the file that was archived")
            if self._thorough:
                from quire.cold.parquet_writer import verify_stored  # Most clusters have nothing archived.

                await verify_stored(store, file, self._stores.run)
        except NoSuchColdObject:
            return FileProblem(MISSING, "it is missing")
        except DamagedColdFile:
            return FileProblem(DAMAGED, "its bytes are not those that were archived")
        return None

    # --- What nobody names

    async def at_objects(self, archived: list[_Archived], inventory: Inventory) -> list[ColdObject]:
        """The files in the same folders that no segment names, with the segments that they were made for."""
        named = {each.key for each in archived}
        known = {(each.namespace, each.stream) for each in inventory.streams}
        folders = {(each.file.root, each.namespace.uri): each.namespace for each in archived}
        found: list[ColdObject] = []
        for (root, uri), namespace in folders.items():
            if root in self.unreachable:
                continue
            try:
                names = await self._stores.at(root).names(objects_folder(namespace.path))
            except QuireError as error:
                self.unreachable[root] = str(error)
                continue
            for name in names:
                segment = object_segment(namespace.path, name)
                if segment is None or (root, name) in named:
                    continue
                stream, lssn = segment
                if (uri, stream) in known or await _is_no_stream(namespace, stream):
                    found.append(ColdObject(root, name, f"{uri.rstrip('/')}/{stream}", lssn))
        return found


async def _is_named(archived: _Archived) -> bool:
    """Whether the metadata names the file still."""
    try:
        stored = await read_cold(archived.namespace.store, archived.paths, archived.stored.name)
    except NoSuchNode:
        return False
    except DamagedMetadata:
        return True
    return stored.cold.file == archived.file


async def _is_no_stream(namespace: OpenNamespace, stream: str) -> bool:
    """Whether there is no such stream, nor has one been made since streams were listed."""
    try:
        paths = StreamPaths(namespace.path, stream)
    except InvalidName:
        return False
    return await namespace.store.exists(paths.top) is None
