"""Settings by name: `storage.cache_bytes_max=64MiB` changes one field of a tree of frozen dataclasses.

So every setting can be changed from a command line without a flag of its own, and a wrong name or value is told with
what would have been right.
"""

import difflib
import re
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass, replace
from typing import Any, Final, TypeVar

from quire.errors import InvalidArgument

T = TypeVar("T")

_UNITS: Final = {"": 1, "b": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "tib": 1 << 40, "k": 10**3, "m": 10**6}
_WHOLE = re.compile(r"(-?[\d_]+)\s*([a-z]*)", re.IGNORECASE)


def with_overrides(settings: T, assignments: Iterable[str]) -> T:
    """`settings` with every `name=value`, of a name that is there twice the last. Raises `InvalidArgument`.

    They are applied together: quorums, for one, may only fit once all of them are changed.
    """
    changes: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals:
            raise InvalidArgument(
                f"{assignment!r} is not NAME=VALUE", hint="Write, for example, garbage.interval_s=60."
            )
        _note(changes, settings, name.strip().split("."), value.strip(), whole=name.strip(), root=settings)
    return _changed(settings, changes)


def setting_names(settings: object, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Every setting that can be changed, by its full name, and its present value."""
    for field in fields(settings):  # type: ignore[arg-type]
        value = getattr(settings, field.name)
        if is_dataclass(value):
            yield from setting_names(value, f"{prefix}{field.name}.")
        elif isinstance(value, bool | int | float):
            yield prefix + field.name, value


def _note(changes: dict[str, Any], settings: object, path: list[str], value: str, *, whole: str, root: object) -> None:
    """Put a change where it belongs, in dicts that are nested as the settings are."""
    present = getattr(settings, path[0], None)
    is_leaf = len(path) == 1 and isinstance(present, bool | int | float)
    if not is_leaf and not (len(path) > 1 and is_dataclass(present)):
        known = [name for name, _ in setting_names(root)]
        near = difflib.get_close_matches(whole, known, n=1)
        hint = f"Did you mean {near[0]}?" if near else f"There are: {', '.join(known)}."
        raise InvalidArgument(f"there is no setting {whole!r}", hint=hint)
    if is_leaf:
        changes[path[0]] = _parse(value, present, whole)
    else:
        _note(changes.setdefault(path[0], {}), present, path[1:], value, whole=whole, root=root)


def _changed(settings: T, changes: dict[str, Any]) -> T:
    values = {
        name: _changed(getattr(settings, name), change) if isinstance(change, dict) else change
        for name, change in changes.items()
    }
    return replace(settings, **values)  # type: ignore[type-var]


def _parse(text: str, present: object, name: str) -> bool | int | float:
    """Of the kind that the setting has now."""
    if isinstance(present, bool):
        if text.lower() in ("true", "false"):
            return text.lower() == "true"
        raise InvalidArgument(f"{name} is true or false, not {text!r}")
    if isinstance(present, int):
        match = _WHOLE.fullmatch(text)
        unit = _UNITS.get(match[2].lower()) if match else None
        if match is None or unit is None:
            raise InvalidArgument(f"{name} is a whole number, perhaps with a unit such as MiB, not {text!r}")
        return int(match[1]) * unit
    try:
        return float(text)
    except ValueError:
        raise InvalidArgument(f"{name} is a number, not {text!r}") from None
