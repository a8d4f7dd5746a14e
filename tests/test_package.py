"""The package itself: its public names, and that importing it is quick."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import subprocess
import sys

import pytest

import cretta


def declared() -> dict[str, object]:
    """Return the value of each name that ``cretta/__init__.py`` imports for type checkers."""
    tree = ast.parse(inspect.getsource(cretta))
    values: dict[str, object] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None and node.module.startswith("cretta"):
            for alias in node.names:
                if importlib.util.find_spec(node.module) is None:  # a stub, with signatures of methods
                    values[alias.name] = cretta.methods.get(alias.name.lower())
                    continue
                name = f"{node.module}.{alias.name}"
                module = importlib.import_module(node.module)
                values[alias.name] = getattr(module, alias.name, None) or importlib.import_module(name)
    return values


def test_public_names_are_what_type_checkers_see() -> None:
    values = declared()
    assert sorted(values) == sorted(cretta.__all__)
    for name, value in values.items():
        assert getattr(cretta, name) is value
    assert {name for name in dir(cretta) if not name.startswith("__")} == set(cretta.__all__) - {"__version__"}


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'cretta' has no attribute 'adaptt'"):
        getattr(cretta, "adaptt")  # noqa: B009  # mypy reports it otherwise


@pytest.mark.process
def test_names_are_imported_when_they_are_used() -> None:
    code = "import sys, cretta; assert 'torch' not in sys.modules; cretta.energy; assert 'torch' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
