"""The libraries of the extra `cold`, imported when they are needed."""

import importlib
from typing import Any

from quire.errors import MissingExtra


def library(name: str, what_for: str) -> Any:
    """The module of this name. Raises `MissingExtra`."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtra(
            f"{what_for} needs {name.partition('.')[0]}, which is not installed",
            hint='Install it with: pip install "quirelog[cold]"',
            library=name,
        ) from error
