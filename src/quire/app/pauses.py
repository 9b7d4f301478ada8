"""Short pauses, and few of them, for processes that run for long."""

import gc
from typing import Final

_NEW_OBJECTS: Final = 10_000  # Python looks for garbage after 700 new ones: the records of two entries.


def set_startup_aside() -> None:
    """Have garbage collections pass over all that is there by now, most of it modules, classes and functions; and have
    them begin when there is something to look at.

    What is there stays anyway, and is nearly all objects of a server at rest: looking at them takes 6 ms, and 30 where
    caches are cold, in which nobody gets an answer. Of what comes after them, little is garbage that only a collection
    finds: entries and records end when nobody holds them any more.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS, *gc.get_threshold()[1:])
