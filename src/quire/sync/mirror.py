"""A blocking class says of its methods what the class it mirrors says of its own: there is one text for both."""

from collections.abc import Callable
from typing import TypeVar

C = TypeVar("C", bound=type)

OTHER_NAMES = {"close": "aclose", "__iter__": "__aiter__", "__next__": "__anext__"}


def mirror_of(original: type) -> Callable[[C], C]:
    """Give a class, and its methods and properties, the docstrings that they lack."""

    def describe(mirror: C) -> C:
        for name, member in vars(mirror).items():
            twin = getattr(original, name, None) or getattr(original, OTHER_NAMES.get(name, name), None)
            if twin is not None and (callable(member) or isinstance(member, property)) and not member.__doc__:
                member.__doc__ = twin.__doc__
        return mirror

    return describe
