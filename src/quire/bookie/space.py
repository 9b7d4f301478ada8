"""Watch the disks of a bookie's folders, so that it turns read-only before one is full, and writable again after.

What follows from how full they are is decided in `quire.protocol.space`. Here they are looked at, now and then and
whenever somebody asks; the reserve is made when there is room; and an operator's word is kept in the file READ_ONLY,
so that a restart does not forget it. Telling the cluster is for whoever listens.

    async with SpaceWatch(runtime, folders, settings, reserve=..., on_change=..., on_failure=...) as watch:
        ...                          # the first look is over: watch.mode, watch.reasons

A disk that cannot be asked, or fails while the reserve is made, has failed: the watch says so once and is over.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Self

from quire.bookie.identity import READ_ONLY, BookieFolders
from quire.bookie.reserve import SpaceReserve
from quire.errors import InvalidArgument
from quire.protocol.space import FolderSpace, SpaceGate, SpaceMode
from quire.runtime import Runtime, read_file, replace_file
from quire.values import dataclass

OnChange = Callable[[SpaceMode, tuple[str, ...]], None]


@dataclass(frozen=True, slots=True)
class SpaceSettings:
    """How much of its disks a bookie leaves alone. In bytes, not as a share: a twentieth of ten terabytes is a waste,
    and of ten gigabytes it is gone in seconds.
    """

    free_bytes_min: int = 1 << 30
    """Below it the bookie takes no ordinary adds, and again only when half as much more is free. What is under way by
    then, journals, a checkpoint, a compaction, has to fit in; recovery's adds may use three quarters of it. On disks
    below 20 GiB it is a twentieth of the disk."""

    reserve_bytes: int = 64 << 20
    """Kept aside for compaction and for the flush of a start on a full disk: as much as one checkpoint writes. At
    most a hundredth of the disk; 0 means none."""

    check_interval_s: float = 10.0
    """How often the disks are looked at. At 100 MB/s a disk takes about `free_bytes_min` in this time."""

    def __post_init__(self) -> None:
        if self.free_bytes_min < 0 or self.reserve_bytes < 0 or self.check_interval_s <= 0:
            raise InvalidArgument("space settings are not negative, and an interval is longer than nothing")


class SpaceWatch:
    """Knows at any time what a bookie still takes, and why not more. Calls `on_change` after each change of the mode,
    the first time if it is not `mode` from the start; `on_failure` once, with the error of the disk.
    """

    def __init__(
        self,
        runtime: Runtime,
        folders: BookieFolders,
        settings: SpaceSettings,
        *,
        reserve: SpaceReserve,
        on_change: OnChange,
        on_failure: Callable[[OSError], None],
        mode: SpaceMode = SpaceMode.WRITABLE,
    ) -> None:
        self._disk, self._clock = runtime.disk, runtime.clock
        self._folders, self._settings, self._reserve = folders, settings, reserve
        self._on_change, self._on_failure = on_change, on_failure
        self._gate = SpaceGate(free_bytes_min=settings.free_bytes_min)
        self._mode = mode
        self._is_over = False
        self._checking = asyncio.Lock()  # An older look must not come after a newer one.
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        try:
            why = await read_file(self._disk, self._manual_path)
            self._gate.on_manual(why.decode(errors="replace"))
        except FileNotFoundError:
            pass  # No operator said anything.
        await self.check()
        self._task = asyncio.create_task(self._watch(), name=f"space {self._folders.data}")
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    # --- What is known

    @property
    def mode(self) -> SpaceMode:
        return self._gate.mode

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the bookie is not writable, and what else an operator should know about its space."""
        return (*self._gate.reasons, *([] if self._reserve.problem is None else [self._reserve.problem]))

    @property
    def spaces(self) -> Mapping[str, FolderSpace]:
        """The disk of each folder, as it was when last looked at."""
        return self._gate.spaces

    @property
    def may_compact(self) -> bool:
        """Whether compaction has room without the reserve."""
        return self._gate.may_compact(self._folders.data)

    # --- What happens

    async def check(self) -> SpaceMode:
        """Look at the disks now: after a file was deleted, or could not be written."""
        async with self._checking:
            if not self._is_over:
                await self._check()
        return self.mode

    async def _check(self) -> None:
        spaces: dict[str, FolderSpace] = {}
        folder = self._folders.data
        try:
            await self._reserve.make()
            for folder in self._folders.all:
                usage = await self._disk.usage(folder)
                lent_bytes = self._reserve.lent_bytes if folder == self._folders.data else 0
                spaces[folder] = FolderSpace(max(0, usage.free_bytes - lent_bytes), usage.total_bytes)
        except OSError as error:
            self._is_over = True
            self._gate.on_failed(folder, error.strerror or str(error))
            self._tell()
            self._on_failure(error)
            return
        self._gate.on_usage(spaces)
        self._tell()

    def on_no_room(self, why: str) -> None:
        """A write found no room: nothing is taken any more, as long as this watch runs."""
        self._gate.on_no_room(why)
        self._tell()

    async def set_read_only(self, read_only: bool, *, why: str = "") -> SpaceMode:
        """An operator's word, durable once this returns. If it raises, nothing has changed until the next start."""
        async with self._checking:
            if read_only:
                await replace_file(self._disk, self._manual_path, why.encode())
            elif await self._disk.exists(self._manual_path):
                await self._disk.unlink(self._manual_path)
                await self._disk.sync_directory(self._folders.data)
            self._gate.on_manual(why if read_only else None)
            self._tell()
        return self.mode

    def _tell(self) -> None:
        if self._gate.mode is not self._mode:
            self._mode = self._gate.mode
            self._on_change(self._mode, self.reasons)

    async def _watch(self) -> None:
        while not self._is_over:
            await self._clock.sleep(self._settings.check_interval_s)
            await self.check()

    @property
    def _manual_path(self) -> str:
        return f"{self._folders.data}/{READ_ONLY}"
