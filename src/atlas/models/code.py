"""The user's code behind a model: which classes, functions and constants it runs, each with a hash.

Only what the model uses counts, so that an edit elsewhere in the same script does not make it another model.
Code of Python, of installed packages and of ATLAS is left out.
"""

from __future__ import annotations

import ast
import dis
import hashlib
import inspect
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from torch import nn

from atlas.errors import is_installed

GLOBALS = ("LOAD_GLOBAL", "LOAD_NAME")
ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM")
"""Instructions of Python's bytecode that name something."""
CONSTANTS = (int, float, str, tuple)
Assignment = ast.Assign | ast.AnnAssign | ast.AugAssign


def user_code(thing: object) -> dict[str, str]:
    """The user's code that a module (with all its layers), a class or a function runs.

        {"Net in train.py": "3f1c...", "LEVELS in train.py": "90ab..."}

    The values are the sha256 of the source. Code without a source, typed at a prompt, is left out.
    """
    walk = _Walk()
    for part in thing.modules() if isinstance(thing, nn.Module) else [thing]:
        for value in [part, *getattr(part, "__dict__", {}).values()]:
            walk.see(value)
            walk.see(type(value))
    joined = {name: "\n".join(sorted(texts)) for name, texts in walk.found.items()}
    return {name: hashlib.sha256(joined[name].encode()).hexdigest() for name in sorted(joined)}


class _Walk:
    """From one object to everything that its code names."""

    def __init__(self) -> None:
        self.found: dict[str, set[str]] = {}
        self.classes: set[str] = set()
        self.seen: dict[Any, object] = {}
        self.assignments: dict[str, list[tuple[str, Assignment]]] = {}

    def see(self, value: object) -> None:
        """A class or a function, or what a method or a partial call is made of."""
        while (inside := _wrapped(value)) is not None:
            value = inside
        if isinstance(value, type) and self._is_new(id(value), value):
            self._see_class(value)
        elif isinstance(value, FunctionType) and self._is_new(id(value), value):
            self._see_function(value)

    def _is_new(self, key: object, value: object = None) -> bool:
        """Whether it is seen for the first time; it is kept, because the next object may get its id."""
        new = key not in self.seen
        self.seen[key] = value
        return new

    def _see_class(self, kind: type) -> None:
        if kind.__module__ == "builtins":
            return
        for base in kind.__mro__[1:]:
            self.see(base)
        with suppress(OSError, TypeError):  # typed at a prompt
            file = inspect.getfile(kind)
            if is_installed(file):
                return
            self._note(kind.__qualname__, file, inspect.getsource(kind))
            self.classes.add(kind.__qualname__)
        for value in list(vars(kind).values()):
            self.see(value)

    def _see_function(self, function: FunctionType) -> None:
        code = function.__code__
        if is_installed(code.co_filename):
            return
        if not any(code.co_qualname.startswith(f"{kind}.") for kind in self.classes):
            with suppress(OSError):  # typed at a prompt
                self._note(code.co_qualname, code.co_filename, inspect.getsource(code))
        for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self.see(value)
        for cell in function.__closure__ or ():
            with suppress(ValueError):  # not filled yet
                self.see(cell.cell_contents)
        steps = [step for part in _nested(code) for step in dis.get_instructions(part)]
        attributes = {step.argval for step in steps if step.opname in ATTRIBUTES}
        for name in {step.argval for step in steps if step.opname in GLOBALS}:
            self._see_global(name, function.__globals__, attributes, code.co_filename)
        for name in {step.argval for step in steps if step.opname == "IMPORT_NAME"}:
            self._see_module(sys.modules.get(name), attributes)

    def _see_module(self, module: object, attributes: set[str]) -> None:
        """What is taken from a module, as in `module.function(x)`."""
        file = getattr(module, "__file__", None)
        if file is not None and not is_installed(file):
            for name in attributes & vars(module).keys():
                self._see_global(name, vars(module), attributes, file)

    def _see_global(self, name: str, names: Mapping[str, Any], attributes: set[str], file: str) -> None:
        if name not in names or not self._is_new((name, file, *sorted(attributes))):
            return
        value = names[name]
        if isinstance(value, ModuleType):
            self._see_module(value, attributes)
        elif isinstance(value, type | FunctionType):
            self.see(value)
        else:
            self._see_constant(name, names, file)

    def _see_constant(self, name: str, names: Mapping[str, Any], file: str) -> None:
        """By the text that gives it its value: at run time a counter, say, changes."""
        if file not in self.assignments:
            self.assignments[file] = []
            with suppress(OSError, ValueError, SyntaxError):
                source = Path(file).read_text("utf-8")
                for statement in _assignments(ast.parse(source)):
                    text = ast.get_source_segment(source, statement) or ""
                    self.assignments[file].append((text, statement))
        given = [each for each in self.assignments[file] if name in _targets(each[1])]
        for text, statement in given:
            self._note(name, file, text)
            for node in ast.walk(statement):
                if isinstance(node, ast.Name):
                    self._see_global(node.id, names, set(), file)
        if not given and isinstance(names[name], CONSTANTS):  # imported from elsewhere
            self._note(name, file, repr(names[name]))

    def _note(self, name: str, file: str, text: str) -> None:
        self.found.setdefault(f"{name} in {Path(file).name}", set()).add(text)


def _wrapped(value: object) -> object:
    """The function inside a method, property or partial call, or under an installed decorator; else None."""
    if isinstance(value, MethodType | staticmethod | classmethod):
        return value.__func__
    if isinstance(value, partial):
        return value.func
    if isinstance(value, property):
        return value.fget
    if isinstance(value, FunctionType) and is_installed(value.__code__.co_filename):
        return getattr(value, "__wrapped__", None)
    return None


def _nested(code: CodeType) -> Iterator[CodeType]:
    """The code, and that of the functions inside it."""
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _nested(inner)


def _assignments(node: ast.AST) -> Iterator[Assignment]:
    """The assignments outside functions and classes, also those under an `if`."""
    for inner in ast.iter_child_nodes(node):
        if isinstance(inner, Assignment):
            yield inner
        elif not isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            yield from _assignments(inner)


def _targets(statement: Assignment) -> set[str]:
    """The names that an assignment gives a value."""
    targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
    return {node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name)}
