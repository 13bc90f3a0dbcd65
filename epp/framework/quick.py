"""Frozen dataclasses that are made quickly.

A frozen dataclass writes each of its fields through `object.__setattr__`, which takes three times
as long as an assignment. A decision makes two dozen of them, with more than a hundred fields. So
the `__init__` that `quick` gives a class writes to a subclass of it that lets itself be written to,
and what comes out is of the class itself and as frozen as before.
"""

from dataclasses import MISSING, fields
from typing import Any, TypeVar

T = TypeVar("T")

_LATER = object()
"""Stands for a field that its factory makes."""


def quick(frozen: type[T]) -> type[T]:
    """For a frozen dataclass with slots that does nothing after its fields are there. Raises
    TypeError for any other."""
    if hasattr(frozen, "__post_init__") or not hasattr(frozen, "__slots__"):
        raise TypeError(f"{frozen.__name__}: has a __post_init__, or no slots")
    usual = {"__setattr__": object.__setattr__, "__delattr__": object.__delattr__}
    open_: type[T] = type(f"Open{frozen.__name__}", (frozen,), {"__slots__": (), **usual})
    plain = frozen.__init__
    known: dict[str, Any] = {"LATER": _LATER, "FROZEN": frozen, "OPEN": open_, "PUT": _put}
    exec(_source(frozen, known), known)  # noqa: S102 - as dataclasses make theirs
    made = known["__init__"]
    made.__qualname__, made.__annotations__ = plain.__qualname__, plain.__annotations__
    setattr(frozen, "__init__", made)  # noqa: B010 - mypy allows no assignment
    return frozen


_put = object.__setattr__


def _source(frozen: type[Any], known: dict[str, Any]) -> str:
    """The text of `__init__`. `known` gets the defaults that it names."""
    places: list[str] = []
    named: list[str] = []
    lines: list[str] = []
    for one in fields(frozen):
        parameter = name = one.name
        if one.default is not MISSING:
            known[f"DEFAULT_{name}"], parameter = one.default, f"{name}=DEFAULT_{name}"
        elif one.default_factory is not MISSING:
            known[f"MAKE_{name}"], parameter = one.default_factory, f"{name}=LATER"
            lines.append(f"self.{name} = MAKE_{name}() if {name} is LATER else {name}")
        if parameter != f"{name}=LATER":
            lines.append(f"self.{name} = {name}")
        (named if one.kw_only else places).append(parameter)
    parameters = ["self", *places, *(("*", *named) if named else ())]
    body = ["PUT(self, '__class__', OPEN)", *lines, "self.__class__ = FROZEN"]
    return f"def __init__({', '.join(parameters)}):\n" + "".join(f"  {line}\n" for line in body)
