"""Configuration: frozen dataclasses from plain tables (TOML, JSON) and back, with errors that teach.

The dataclasses themselves live next to what they configure and validate in ``__post_init__``, where
`check_fields` checks their types; this module only knows types. A field whose type has a registry (an
attack, say) is a table with a `name`: one of the registry, or ``module.path:Class`` for a class from outside.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import os
import sys
import tomllib
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import field, fields, is_dataclass
from fractions import Fraction
from functools import cache, wraps
from operator import index
from typing import Any, Literal, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

from atlas.errors import UsageError, choose, unknown, user_code_errors

T = TypeVar("T")
P = ParamSpec("P")
R = TypeVar("R")
ConfigDict = dict[str, Any]
LARGEST = 2**63
"""Beyond all whole numbers: tensors and times hold none of more bits."""
Registries = Mapping[type, Mapping[str, Callable[..., Any]]]
"""For a type: what its `name` may be, and what builds each."""
NO_NAMES: Registries = {}


def build(target: Callable[..., T], table: Mapping[str, Any], registries: Registries, where: str = "") -> T:
    """`target` (a dataclass or a function) called with the table's values, each checked by its type.

    Where the target has a registry, the table's `name` says what is called.
    """
    if not isinstance(table, Mapping):
        raise _mismatch(table, "a table", where or "the configuration")
    if target in registries:
        table = dict(table)
        target = _named(target, str(table.pop("name", None)), registries, _path(where, "name"))
    expected, types_of = inspect.signature(target).parameters, get_type_hints(target)
    for key in table:
        if key not in expected:
            raise unknown(f"key in {where or 'the configuration'}:", key, expected)
    for key, parameter in expected.items():
        if parameter.default is inspect.Parameter.empty and key not in table:
            raise UsageError(f"{_path(where, key)} is missing; add it to the configuration")
    values = {k: _parse(v, types_of[k], registries, _path(where, k)) for k, v in table.items()}
    return target(**values)


def _named(kind: Any, name: str, registries: Registries, where: str) -> Any:
    """What builds the part of this kind that has this name."""
    if ":" not in name:
        return choose(f"{where}:", name, registries[kind])
    found = import_object(where, name)
    # Not just any callable: a configuration from elsewhere could name os:system.
    if not (isinstance(found, type) and issubclass(found, kind)):
        raise UsageError(f"{where} must name a subclass of {kind.__name__}, got {name!r}: {found!r}")
    return found


def check_fields(value: Any, where: str | None = None) -> None:
    """Check the fields of a dataclass by their types, and make what numpy or text gave plain numbers.

    `build` checks tables, but values are also made in Python: ``Linf("8/255")`` is accepted, and so is
    ``PGD(steps=np.int64(5))``; ``PGD(steps=5.0)`` and ``Adv(attack=None)`` are refused. `where` is what the
    fields are said to belong to, by default the class.
    """
    kind: Any = type(value)
    types_of = _types(kind)
    for f in fields(kind) if is_dataclass(kind) else ():
        given = getattr(value, f.name)
        expected = types_of.get(f.name, Any)
        plain = _parse(given, expected, {}, _path(kind.__name__ if where is None else where, f.name))
        if plain is not given:
            object.__setattr__(value, f.name, plain)


def check_arguments(*own: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Check the arguments of a public function by their types, but those that it checks on its `own`."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        signature = inspect.signature(function)

        @wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            try:
                bound, types_of = signature.bind(*args, **kwargs), _types(function)
            except TypeError:  # of Python's own messages those of the function itself name it
                return function(*args, **kwargs)
            for name in bound.arguments.keys() & types_of.keys() - {*own}:
                bound.arguments[name] = _parse(bound.arguments[name], types_of[name], {}, name)
            return function(*bound.args, **bound.kwargs)

        return checked

    return decorate


@cache
def _types(target: Any) -> dict[str, Any]:
    try:
        return get_type_hints(target)
    except NameError:  # custom code may name types that are imported for type checkers only
        return {}


def check_counts(**counts: int) -> None:
    """Refuse a count, named by its keyword, that is not an integer >= 1."""
    for name, count in counts.items():
        integer(count, name, least=1)


def integer(value: Any, where: str, least: int | None = None) -> int:
    """A plain int from an integer of Python, numpy or torch; no smaller than `least`."""
    expected = "an integer" if least is None else f"an integer >= {least}"
    try:
        if isinstance(value, bool):
            raise TypeError
        whole = index(value)
    except (TypeError, ValueError):
        raise _mismatch(value, expected, where) from None
    if not abs(whole) < LARGEST:
        raise UsageError(f"{where} must have at most 63 bits, got an integer of {whole.bit_length()} bits")
    if least is not None and whole < least:
        raise _mismatch(whole, expected, where)
    return whole


def _path(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def import_object(kind: str, name: str) -> Any:
    """The object called ``module.path:name``, from the working folder or an installed package."""
    path, _, attribute = name.partition(":")
    folder = os.getcwd()
    if folder not in sys.path:
        sys.path.insert(0, folder)  # first, as with `python -m`, so that the user's file is found
    remedy = f"; expected module.path:name, importable from {folder} or installed in this environment"
    with user_code_errors(f"{kind} {name!r}: importing {path!r}", UsageError, remedy):
        module = importlib.import_module(path)
    if not hasattr(module, attribute):
        here = [key for key, value in vars(module).items() if getattr(value, "__module__", "") == path]
        raise unknown(f"name in module {path!r}:", attribute, here or dir(module))
    return getattr(module, attribute)


def _parse(value: Any, expected: Any, registries: Registries, where: str) -> Any:
    origin = get_origin(expected)
    if origin in (Union, types.UnionType):
        if value is None and types.NoneType in get_args(expected):
            return None
        kinds = [kind for kind in get_args(expected) if kind is not types.NoneType]
        if len(kinds) == 1:
            return _parse(value, kinds[0], registries, where)
        for kind in kinds:
            with suppress(UsageError):
                return _parse(value, kind, registries, where)
        raise _mismatch(value, " or ".join(map(_expected, kinds)), where)
    if origin is Literal:
        if not any(type(value) is type(choice) and value == choice for choice in get_args(expected)):
            raise unknown(f"{where}:", value, map(str, get_args(expected)))
        return value
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise _mismatch(value, "a list", where)
        return tuple(_parse(v, get_args(expected)[0], registries, where) for v in value)
    if expected is float:
        return number(value, where)
    if expected is int:
        return integer(value, where)
    if _is_a(value, origin or expected):
        if origin is Mapping:
            for key, below in value.items():
                _parse(key, get_args(expected)[0], {}, f"the key {key!r} of {where}")
                _parse(below, get_args(expected)[1], registries, f"{where}[{key!r}]")
        return value
    made_of_tables = expected in registries or (is_dataclass(expected) and not inspect.isabstract(expected))
    if made_of_tables and (registries or isinstance(value, Mapping)):
        return build(expected, value, registries, where)
    raise _mismatch(value, _expected(expected), where)


def _is_a(value: Any, kind: Any) -> bool:
    try:
        # Arrays and tensors are as good as lists, but say of themselves that they are no sequences.
        return isinstance(value, kind) or (kind is Sequence and hasattr(value, "__array__"))
    except TypeError:  # Any, a Protocol: nothing that could be checked
        return True


def _expected(expected: Any) -> str:
    """A type in words."""
    simple = {int: "an integer", float: "a number", bool: "true or false", str: "a string"}
    if expected in simple:
        return simple[expected]
    if get_origin(expected) is Literal:
        return " or ".join(map(repr, get_args(expected)))
    kind = get_origin(expected) or expected
    if kind in (Callable, Sequence, Mapping):
        return {Callable: "callable", Sequence: "a list or tuple", Mapping: "a dict"}[kind]
    name = getattr(kind, "__name__", str(kind))
    return getattr(kind, "expected", f"{'an' if name[0] in 'AEIOU' else 'a'} {name}")


def _mismatch(value: Any, expected: str, where: str) -> UsageError:
    text = repr(value)
    return UsageError(f"{where} must be {expected}, got {text if len(text) <= 200 else text[:200] + '...'}")


def number(value: Any, where: str = "the value") -> float:
    """A float from a number or from text such as ``8/255``."""
    try:
        if isinstance(value, bool) or len(str(value)) > 50:
            raise ValueError
        if isinstance(value, str) and "/" in value:
            return float(Fraction(value.replace(" ", "")))
        return float(value)
    except (ValueError, TypeError, ArithmeticError):
        raise _mismatch(value, "a number, or a fraction such as 8/255", where) from None


def parse_value(text: str) -> Any:
    """A value of the command line: as TOML where it is TOML (1e-4, true, [1, 2]), else the text itself."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # no TOML, a number of thousands of digits, or brackets as deep
        return text


def table_of(value: Any, registries: Registries) -> Any:
    """The plain table that `build` would make this value of."""
    if isinstance(value, tuple):
        return [table_of(v, registries) for v in value]
    if not is_dataclass(value):
        return value
    table: ConfigDict = {}
    for kind, registry in registries.items():
        if isinstance(value, kind):
            names = (name for name, builder in registry.items() if builder is type(value))
            table["name"] = next(names, f"{type(value).__module__}:{type(value).__qualname__}")
    for f in fields(value):
        given = getattr(value, f.name)
        if f.init and not ("later" in f.metadata and given == f.default):
            table[f.name] = table_of(given, registries)
    return table


def omit_default_from_hash(default: T) -> T:
    """A field that older versions did not have: tables leave it out while it has its default.

    So their runs are still known by their tables, and resume.
    """
    return field(default=default, metadata={"later": True})


def value_at(table: Mapping[str, Any], dotted: str) -> Any:
    """The value at a dotted key, the table itself for an empty one; None where there is none."""
    here: Any = table
    for part in filter(None, dotted.split(".")):
        here = here.get(part) if isinstance(here, Mapping) else None
    return here


def override(
    table: Mapping[str, Any], dotted: str, value: Any, registries: Registries = NO_NAMES
) -> ConfigDict:
    """The table with ``a.b.c`` set to the value; another ``a.name`` drops the keys of the old one.

    What the old and the new one both have as a named part (a method's attack, say) is kept.
    """
    head, _, rest = dotted.partition(".")
    if rest:
        below = table.get(head)
        value = override(below if isinstance(below, Mapping) else {}, rest, value, registries)
    elif head == "name":
        table = _kept(table, value, registries)
    return {**table, head: value}


def overridden(table: ConfigDict, changes: Iterable[tuple[str, Any]], registries: Registries) -> ConfigDict:
    """The table with every dotted key of the changes set."""
    changes = list(changes)
    # Twice, because a name that is changed after its siblings has dropped them.
    for key, value in [*changes, *changes]:
        table = override(table, key, value, registries)
    return table


def merge(base: Mapping[str, Any], top: Mapping[str, Any], registries: Registries = NO_NAMES) -> ConfigDict:
    """Two tables, the second winning, sub-tables merged the same way; names as in `override`."""
    both = _kept(base, top["name"], registries) if "name" in top else dict(base)
    for key, value in top.items():
        if isinstance(value, dict) and isinstance(both.get(key), dict):
            value = merge(both[key], value, registries)
        both[key] = value
    return both


def _kept(table: Mapping[str, Any], name: object, registries: Registries) -> ConfigDict:
    """What stays of the table of a named part when it gets this name."""
    if table.get("name", name) == name:
        return dict(table)
    builders: list[Any] = []
    if isinstance(name, str) and ":" in name:
        found = import_object("name", name)
        builders = [found] if isinstance(found, type) and issubclass(found, tuple(registries)) else []
    elif isinstance(name, str):
        builders = [registry[name] for registry in registries.values() if name in registry]
    taken = {key for builder in builders for key in inspect.signature(builder).parameters}
    return {k: v for k, v in table.items() if k in taken and isinstance(v, Mapping) and "name" in v}


def fingerprint(table: Mapping[str, Any]) -> str:
    """A short hash of a table, the same whatever the order of its keys."""
    return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()[:16]


def differences(one: Mapping[str, Any], other: Mapping[str, Any], where: str = "") -> list[str]:
    """The dotted keys in which two tables differ, each with both values."""
    found = []
    for key in sorted(set(one) | set(other)):
        a, b = one.get(key), other.get(key)
        if isinstance(a, dict) and isinstance(b, dict):
            found += differences(a, b, _path(where, key))
        elif a != b:
            before, now = (repr(table[key]) if key in table else "unset" for table in (one, other))
            found.append(f"{_path(where, key)}: {before} -> {now}")
    return found
