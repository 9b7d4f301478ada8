"""`dataclass`, like the standard library's, for classes that are defined in a tenth of the time.

Quire has some two hundred of them, and a program that opens a log defines most of those before its first append. The
standard library compiles up to six functions for each, a third of all the CPU that such a program needed. Here one is
compiled, the constructor, which is what runs often, and only when the class gets its first instance: most have none
before the first append. The others are the same for all classes, around what differs.

Fields are collected by the standard library, so `field`, `fields`, `replace`, `asdict` and `match` work as ever. What
is rare among us is left to it altogether: order, and classes that inherit fields. What we leave out is a docstring for
classes that have none, since it costs more than all the rest.
"""

import dataclasses
from collections.abc import Callable, Iterable
from operator import attrgetter
from reprlib import recursive_repr
from typing import TYPE_CHECKING, Any, Final, TypeAlias

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(
        *, frozen: bool = False, slots: bool = False, eq: bool = True, order: bool = False
    ) -> Callable[[type], type]:
        """Make a class of fields. All arguments mean what they mean in the standard library."""

        def define(cls: type) -> type:
            if order or any(map(dataclasses.is_dataclass, cls.__mro__[1:])):
                return dataclasses.dataclass(cls, frozen=frozen, slots=slots, eq=eq, order=order)
            return _define(cls, frozen=frozen, slots=slots, eq=eq)

        return define


__all__ = ["dataclass"]

_Fields: TypeAlias = tuple["dataclasses.Field[Any]", ...]
_Methods: TypeAlias = dict[str, Callable[..., Any] | None]


class _Made:
    """Stands, in a signature, for a default that is made anew for each instance."""

    def __repr__(self) -> str:
        return "<factory>"


_MADE: Final[Any] = _Made()


def _define(cls: type, *, frozen: bool, slots: bool, eq: bool) -> type:
    doc = cls.__doc__
    cls.__doc__ = doc or cls.__name__  # Else the standard library makes one of the signature, which is slow.
    dataclasses.dataclass(cls, init=False, repr=False, eq=False)  # Collects the fields.
    cls.__doc__ = doc
    told: Any = cls.__dataclass_params__  # type: ignore[attr-defined]
    told.init, told.repr, told.eq, told.frozen = True, True, eq, frozen
    fields = dataclasses.fields(cls)
    methods: _Methods = {"__repr__": _shown(fields)}
    if eq:
        methods |= _compared(fields, hashable=frozen)
    if frozen:
        methods |= _FROZEN
    own = dict(cls.__dict__)
    if own.get("__hash__") is None:
        own.pop("__hash__", None)  # Python itself writes None where a class has its own `__eq__`.
    if slots:
        # Slots have to be there when a class is made, so it is made once more, all at once.
        for name in ("__dict__", "__weakref__", *(field.name for field in fields)):
            own.pop(name, None)
        qualname = cls.__qualname__
        cls = type(cls)(cls.__name__, cls.__bases__, {**methods, **own, "__slots__": tuple(f.name for f in fields)})
        cls.__qualname__ = qualname
    else:
        for name in methods.keys() - own.keys():
            setattr(cls, name, methods[name])
    if "__init__" not in own:
        _construct_later(cls, fields, frozen=frozen)
    return cls


def _construct_later(cls: Any, fields: _Fields, *, frozen: bool) -> None:
    """Give the class a constructor that is compiled when somebody needs it: for an instance, or for its signature."""

    def __init__(self: Any, /, *values: Any, **named: Any) -> None:  # noqa: N807
        compiled()(self, *values, **named)

    def compiled() -> Callable[..., None]:
        if cls.__init__ is __init__:
            cls.__init__ = _constructor(cls, fields, frozen=frozen)
        return cls.__init__  # type: ignore[no-any-return]

    cls.__init__, cls.__signature__ = __init__, _Signature(cls, compiled)


class _Signature:
    """What `inspect` finds at a class, be its constructor compiled or not. Not at a class that inherits from it."""

    def __init__(self, of: type, compiled: Callable[[], Callable[..., None]]) -> None:
        self._of, self._compiled = of, compiled

    def __get__(self, instance: object, owner: type) -> Any:
        if instance is not None or owner is not self._of:
            raise AttributeError("__signature__")
        import inspect  # Only those who ask need it.

        signature = inspect.signature(self._compiled())
        return signature.replace(parameters=list(signature.parameters.values())[1:])


def _constructor(cls: type, fields: _Fields, *, frozen: bool) -> Callable[..., None]:
    """Compile `__init__`. A frozen instance is filled past its own `__setattr__`."""
    names: dict[str, Any] = {"_MADE": _MADE, "_set": object.__setattr__}
    parameters, body = ["self"], []
    for field in fields:
        name, value = field.name, field.name
        parameter = name
        if field.default_factory is not dataclasses.MISSING:
            names[f"_make_{name}"] = field.default_factory
            parameter = f"{name}=_MADE"
            value = f"_make_{name}() if {name} is _MADE else {name}" if field.init else f"_make_{name}()"
        elif field.default is not dataclasses.MISSING:
            names[f"_default_{name}"] = field.default
            parameter = f"{name}=_default_{name}"
            value = name if field.init else f"_default_{name}"
        elif not field.init:
            continue  # Whoever declared it sets it, in `__post_init__`.
        if field.init:
            parameters.append(parameter)
        body.append(f"_set(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    # The text is made of the names of fields alone, which are identifiers of the class's source.
    exec(f"def __init__({', '.join(parameters)}):\n " + "\n ".join(body or ["pass"]), names)  # noqa: S102
    init: Callable[..., None] = names["__init__"]
    init.__qualname__, init.__module__ = f"{cls.__qualname__}.__init__", cls.__module__
    init.__annotations__ = {field.name: field.type for field in fields if field.init} | {"return": None}
    return init


def _shown(fields: _Fields) -> Callable[[Any], str]:
    names = [field.name for field in fields if field.repr]

    @recursive_repr()
    def __repr__(self: Any) -> str:  # noqa: N807
        return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

    return __repr__


def _compared(fields: _Fields, *, hashable: bool) -> _Methods:
    values_of = _values(field.name for field in fields if field.compare)

    def __eq__(self: Any, other: object) -> bool:  # noqa: N807
        return values_of(self) == values_of(other) if other.__class__ is self.__class__ else NotImplemented

    if not hashable:
        return {"__eq__": __eq__, "__hash__": None}
    hashed = _values(field.name for field in fields if (field.compare if field.hash is None else field.hash))

    def __hash__(self: Any) -> int:  # noqa: N807
        return hash(hashed(self))

    return {"__eq__": __eq__, "__hash__": __hash__}


def _values(names: Iterable[str]) -> Callable[[Any], Any]:
    """What takes the named values out of an instance, as a tuple: identical things are equal in it, also if NaN."""
    found = tuple(names)
    if len(found) > 1:
        return attrgetter(*found)
    return lambda instance: tuple(getattr(instance, name) for name in found)


def _refuse_to_set(self: Any, name: str, value: object) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")


def _refuse_to_delete(self: Any, name: str) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")


def _state(self: Any) -> list[Any]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _set_state(self: Any, state: list[Any]) -> None:
    """Fill a copy, or what was pickled, past its own `__setattr__`."""
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        object.__setattr__(self, field.name, value)


_FROZEN: Final[_Methods] = {
    "__setattr__": _refuse_to_set,
    "__delattr__": _refuse_to_delete,
    "__getstate__": _state,
    "__setstate__": _set_state,
}
