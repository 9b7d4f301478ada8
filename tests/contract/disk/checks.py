"""The shape of a check that the suite runs on every disk."""

from collections.abc import Callable, Coroutine
from typing import Any

from quire.runtime import Disk

Check = Callable[[Disk, str], Coroutine[Any, Any, None]]
OnDisk = Callable[[Check], None]
