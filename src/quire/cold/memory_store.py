"""`memory:` cold storage in the memory of this process, for tests and simulations."""

from typing import BinaryIO

from quire.errors import ColdObjectExists, NoSuchColdObject


class MemoryStore:
    """Objects in a dictionary, which several stores may share."""

    def __init__(self, root: str, objects: dict[str, bytes]) -> None:
        self.root, self.objects = root, objects

    async def create(self, name: str, content: BinaryIO, size_bytes: int) -> None:
        if name in self.objects:
            raise ColdObjectExists(f"{self.root} has an object {name!r} already", object=name)
        content.seek(0)
        self.objects[name] = content.read()

    async def read(self, name: str, start: int, end: int) -> bytes:
        return self._found(name)[start:end]

    async def size(self, name: str) -> int:
        return len(self._found(name))

    async def delete(self, name: str) -> None:
        self.objects.pop(name, None)

    async def names(self, prefix: str = "") -> list[str]:
        below = f"{prefix.rstrip('/')}/" if prefix else ""
        return sorted(name for name in self.objects if name.startswith(below))

    async def aclose(self) -> None:
        pass

    def _found(self, name: str) -> bytes:
        try:
            return self.objects[name]
        except KeyError:
            raise NoSuchColdObject(f"{self.root} has no object {name!r}", object=name) from None
