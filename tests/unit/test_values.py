"""Classes of fields behave like those that the standard library makes."""

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from dataclasses import FrozenInstanceError, asdict, field, fields, replace
from typing import Any, ClassVar

import pytest

from quire.values import dataclass

KINDS = [
    {"frozen": True, "slots": True},
    {"frozen": True},
    {"slots": True},
    {},
    {"slots": True, "eq": False},
    {"frozen": True, "eq": False},
]


def shape() -> type:
    class Point:
        """A class with one field of each kind."""

        unit: ClassVar[str] = "m"
        x: int
        y: float = 1.5
        tags: list[str] = field(default_factory=list, hash=False)
        secret: str = field(default="s", repr=False)
        note: str = field(default="n", compare=False)
        doubled: int = field(init=False)
        made: list[int] = field(init=False, default_factory=list, compare=False)
        fixed: int = field(init=False, default=7)

        def __post_init__(self) -> None:
            object.__setattr__(self, "doubled", self.x * 2)

    Point.__qualname__ = "Point"
    return Point


@pytest.fixture(params=KINDS, ids=str)
def pair(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    """Ours and the standard library's."""
    own: Callable[[type], type] = dataclass(**request.param)
    return own(shape()), dataclasses.dataclass(**request.param)(shape())


def behaviour(cls: Any) -> list[object]:
    one, same = cls(1, tags=["a"]), cls(1, 1.5, ["a"], note="another")
    told: list[object] = [repr(one), one == same, one != same, one == cls(2), one == 1, cls.__match_args__]
    told += [str(inspect.signature(cls)), [(f.name, f.type, f.init, f.repr) for f in fields(cls)]]
    told += [asdict(one), repr(replace(one, x=5)), repr(copy.copy(one)), repr(copy.deepcopy(one))]
    told += [cls.__doc__, cls.__hash__ is None, cls.__hash__ is object.__hash__, hasattr(one, "__dict__")]
    told += [repr(cls.__dataclass_params__), cls.unit, cls(1).tags is cls(1).tags]
    for change in (lambda: setattr(one, "x", 3), lambda: delattr(one, "x"), lambda: cls()):
        try:
            told.append(change())
        except (AttributeError, TypeError) as error:
            told.append((type(error), str(error)))
    match cls(4):
        case cls(x, y):
            told.append((x, y))
    return told


def test_a_class_does_what_the_standard_librarys_does(pair: tuple[Any, Any]) -> None:
    ours, theirs = pair
    assert behaviour(ours) == behaviour(theirs)


def test_equal_frozen_instances_have_equal_hashes() -> None:
    cls: Any = dataclass(frozen=True, slots=True)(shape())
    assert hash(cls(1, tags=["a"])) == hash(cls(1, tags=["a"], note="other"))
    assert len({cls(1), cls(1), cls(2)}) == 2


@dataclass(frozen=True, slots=True)
class Pickled:
    """At the top of a module, where pickle finds it."""

    name: str
    size: int = 0


@dataclass(frozen=True, slots=True)
class Alone:
    """With a single field."""

    value: float


def test_a_frozen_instance_with_slots_survives_pickling() -> None:
    assert pickle.loads(pickle.dumps(Pickled("a", 2))) == Pickled("a", 2)


def test_one_field_is_compared_like_many() -> None:
    nan = float("nan")
    assert Alone(nan) == Alone(nan)
    assert Alone(1.0) not in (Pickled("a"), Alone(2.0))


def test_methods_of_the_class_are_kept() -> None:
    @dataclass(frozen=True, slots=True)
    class Named:
        """With its own words."""

        name: str

        def __repr__(self) -> str:
            return f"<{self.name}>"

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Named)

        def __hash__(self) -> int:
            return 7

    assert repr(Named("a")) == "<a>"
    assert Named("a") == Named("b")
    assert hash(Named("a")) == 7
    with pytest.raises(FrozenInstanceError):
        Named("a").name = "b"  # type: ignore[misc]


def test_a_class_may_inherit_fields_and_have_an_order() -> None:
    @dataclass(frozen=True, slots=True, order=True)
    class Base:
        """The first field."""

        a: int

    @dataclass(frozen=True, slots=True, order=True)
    class Derived(Base):
        """And a second."""

        b: int = 0

    assert Derived(1, 2) > Derived(1)
    assert repr(Derived(1)).endswith("Derived(a=1, b=0)")


def test_a_constructor_is_compiled_when_the_first_instance_is_made() -> None:
    """Defining a class is cheap, and making instances is as fast as with the standard library: no detour is left."""

    @dataclass(frozen=True, slots=True)
    class Size:
        """One field."""

        size: int

    before = Size.__init__
    assert Size(1) == Size(size=1)
    assert Size.__init__ is not before
    assert Size.__init__.__code__.co_varnames == ("self", "size")
    assert before.__get__(Size(1))(2) is None  # Whoever still has the first one can use it.


def test_a_signature_is_known_before_the_first_instance_is() -> None:
    @dataclass(slots=True)
    class Size:
        """Two fields."""

        size: int
        unit: str = "m"

    class Labelled(Size):
        def __init__(self, label: str) -> None:
            super().__init__(1)
            self.label = label

    assert str(inspect.signature(Size)) == "(size: int, unit: str = 'm') -> None"
    assert str(inspect.signature(Labelled)) == "(label: str) -> None"
    assert (Labelled("a").size, Labelled("a").label) == (1, "a")
    assert str(inspect.signature(Size)) == "(size: int, unit: str = 'm') -> None"
