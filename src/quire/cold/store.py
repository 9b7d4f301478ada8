"""What cold storage has to be able to do: keep immutable objects under names.

The promises, checked on every implementation by `tests/contract/cold`:
  Never overwritten     `create` refuses a name that is taken, whoever took it; what is there is whole.
  Errors tell the truth `ColdUnavailable` may be tried again; `NoSuchColdObject` and `ColdObjectExists` are certain.
                        Where nothing was ever stored it may be the first one: that may not be the right place.
  Every call ends       within the store's time limit; `create` has a second more for each MiB.
"""

from typing import BinaryIO, Protocol


class ColdStore(Protocol):
    """Objects below one root. Names have parts between slashes, and `names` knows no folders."""

    @property
    def root(self) -> str:
        """The URI."""
        ...

    async def create(self, name: str, content: BinaryIO, size_bytes: int) -> None:
        """Store what `content` holds from its beginning on, all of it or nothing. Raises `ColdObjectExists`.

        After `ColdUnavailable` it may be there all the same.
        """
        ...

    async def read(self, name: str, start: int, end: int) -> bytes:
        """The bytes from `start` to before `end`; fewer where the object ends. Raises `NoSuchColdObject`."""
        ...

    async def size(self, name: str) -> int:
        """In bytes. Raises `NoSuchColdObject`."""
        ...

    async def delete(self, name: str) -> None:
        """Fine if there is no such object."""
        ...

    async def names(self, prefix: str = "") -> list[str]:
        """The names of all objects below this prefix, which ends where a part ends, in order."""
        ...

    async def aclose(self) -> None:
        """Let go of connections."""
        ...
