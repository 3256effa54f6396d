"""Faults in our kernel's source: a function of it, changed for as long as a block lasts.

A kernel is traced by running its Python source, so a fault is a change of that text. The text that
is replaced must occur exactly once in the named function: a fault whose place has gone fails aloud.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from unittest import mock

PACKAGE = "hopwell.hopper"
KERNEL = f"{PACKAGE}.forward"


@dataclass(frozen=True)
class Edit:
    """In function ``target``, such as "ring.Ring.parity", the text ``old`` becomes ``new``."""

    target: str
    old: str
    new: str = ""

    @property
    def module(self) -> str:
        return self.target.split(".")[0]

    @property
    def path(self) -> list[str]:
        """The function's name inside its module, outermost class first."""
        return self.target.split(".")[1:]

    def apply(self, text: str) -> str:
        """The module's source with this edit.

        Raises:
            ValueError: the function does not hold ``old`` exactly once.
        """
        lines = text.splitlines(keepends=True)
        first, last = _extent(text, self.path)
        function = "".join(lines[first:last])
        if function.count(self.old) != 1:
            raise ValueError(f"{self.target} holds {self.old!r} {function.count(self.old)} times")
        return "".join((*lines[:first], function.replace(self.old, self.new), *lines[last:]))


def _extent(text: str, path: Sequence[str]) -> tuple[int, int]:
    """The first and the end line of a function, counted from 0."""
    node: ast.AST = ast.parse(text)
    for name in path:
        node = next(
            child
            for child in ast.iter_child_nodes(node)
            if isinstance(child, ast.ClassDef | ast.FunctionDef) and child.name == name
        )
    assert isinstance(node, ast.FunctionDef)
    assert node.end_lineno is not None
    return node.lineno - 1, node.end_lineno


@contextmanager
def applied(edits: Sequence[Edit]) -> Iterator[None]:
    """Our kernel with some edits, for whatever is compiled inside the block."""
    importlib.import_module(KERNEL)  # all of it: what is imported later would keep the edit
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hopwell-fault-")))
        for module in dict.fromkeys(edit.module for edit in edits):
            mine = [edit for edit in edits if edit.module == module]
            original = importlib.import_module(f"{PACKAGE}.{module}")
            assert original.__file__ is not None
            text = Path(original.__file__).read_text()
            for edit in mine:
                text = edit.apply(text)
            changed = _loaded(original.__name__, directory / f"{module}.py", text)
            for edit in mine:
                name, source = edit.path[-1], _owner(changed, edit.path)
                for owner in _holders(original, edit.path):
                    stack.enter_context(mock.patch.object(owner, name, vars(source)[name]))
        yield


def _holders(module: ModuleType, path: Sequence[str]) -> list[object]:
    """Where the kernel finds a function: its class, or every module that imported it by name."""
    owner = _owner(module, path)
    if owner is not module:
        return [owner]
    function = vars(module)[path[-1]]
    modules = [other for name, other in sys.modules.items() if name.startswith(PACKAGE)]
    return [other for other in modules if vars(other).get(path[-1]) is function]


def _loaded(name: str, file: Path, text: str) -> ModuleType:
    """A module of its own; its source stays in ``file``, where the tracer reads it again."""
    file.write_text(text)
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _owner(module: ModuleType, path: Sequence[str]) -> object:
    owner: object = module
    for name in path[:-1]:
        owner = getattr(owner, name)
    return owner
