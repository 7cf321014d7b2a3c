"""Config dataclasses as JSON and back, strictly: every field is written, and exactly those are read.

The files come from anywhere, so types are checked here; values are checked by the dataclasses themselves.
"""

import dataclasses
import typing
from types import NoneType, UnionType
from typing import Any, Literal


def to_json(config: Any) -> dict[str, Any]:
    """All fields of a dataclass, nested ones as objects, tuples as lists."""
    return dataclasses.asdict(config)


def from_json[ConfigT](cls: type[ConfigT], values: Any, where: str) -> ConfigT:
    """Rebuilds a dataclass from what `to_json` gave.

    Args:
        cls: dataclass whose fields are numbers, strings, options, tuples, free dictionaries or such dataclasses.
        values: the parsed JSON.
        where: for messages.

    Raises:
        ValueError: missing or unknown keys, a value of another type, or one that the dataclass refuses.
    """
    if not isinstance(values, dict):
        raise ValueError(f"{where}: expected an object, found {values!r}")
    types = typing.get_type_hints(cls)
    problems = [f"no {name!r}" for name in types if name not in values]
    problems += [f"unknown {name!r}" for name in values if name not in types]
    if problems:
        raise ValueError(f"{where}: {', '.join(problems)}")
    fields = {name: _value(types[name], value, f"{where}.{name}") for name, value in values.items()}
    try:
        return cls(**fields)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


def _value(kind: Any, value: Any, where: str) -> Any:
    origin, options = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        return from_json(kind, value, where)
    if origin in (UnionType, typing.Union):
        (inner,) = (option for option in options if option is not NoneType)
        return None if value is None else _value(inner, value, where)
    if origin is tuple and options[-1] is Ellipsis and isinstance(value, list):
        return tuple(_value(options[0], item, f"{where}[{index}]") for index, item in enumerate(value))
    if (origin is Literal and value in options) or (origin is dict and isinstance(value, dict)):
        return value
    if kind is float and type(value) is int:
        return float(value)
    if origin is not None or type(value) is not kind:  # a bool is no int here
        raise ValueError(f"{where}: {value!r} is not of the type {kind if origin else kind.__name__}")
    return value
