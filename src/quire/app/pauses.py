"""Short pauses for processes that run for long."""

import gc


def set_startup_aside() -> None:
    """Have garbage collections pass over all that is there by now, most of it modules, classes and functions.

    Those stay anyway, and are nearly all objects of a server at rest: looking at them takes 6 ms, and 30 where caches
    are cold, in which nobody gets an answer.
    """
    gc.collect()
    gc.freeze()
