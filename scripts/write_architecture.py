"""Write the generated parts of docs/architecture.md: the import graph, and the call stack of one batch.

Run it after a change of the modules: `.venv/bin/python scripts/write_architecture.py`. A test compares the page with
what this script would write.
"""

from __future__ import annotations

import ast
import re
import sys
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "cretta"
PAGE = ROOT / "docs" / "architecture.md"


def unit(parts: tuple[str, ...]) -> str:
    """Return the top-level module or package of ``cretta`` that holds a module."""
    return parts[0] + ("/" if (PACKAGE / parts[0]).is_dir() else "")


def imports(path: Path) -> Iterator[tuple[str, ...]]:
    """Yield the modules of cretta that a file imports when it is loaded or run, as parts of their names."""
    tree = ast.parse(path.read_text())
    typing_only = {
        child
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for statement in node.body
        for child in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if node in typing_only:
            continue
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            first, *rest = name.split(".")
            if first == "cretta" and rest and ((PACKAGE / rest[0]).is_dir() or (PACKAGE / f"{rest[0]}.py").is_file()):
                yield tuple(rest)


def graph() -> dict[str, set[str]]:
    """Return which top-level modules each top-level module imports."""
    edges: dict[str, set[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if parts[0] in ("__init__", "__main__"):
            continue
        edges.setdefault(unit(parts), set()).update(unit(name) for name in imports(path))
    return {name: targets - {name} for name, targets in edges.items()}


def layers(edges: dict[str, set[str]]) -> list[list[str]]:
    """Sort the modules so that each imports only from the rows above it; raise on a cycle."""
    rows: list[list[str]] = []
    placed: set[str] = set()
    while len(placed) < len(edges):
        row = sorted(name for name in edges if name not in placed and edges[name] <= placed)
        if not row:
            raise ValueError(f"expected no import cycle, got one among {sorted(set(edges) - placed)}")
        rows.append(row)
        placed.update(row)
    return rows


def module_table() -> str:
    """Return a Markdown table of the modules with the first lines of their docstrings."""
    lines = ["| module | purpose |", "|---|---|"]
    for name in sorted(graph()):
        path = PACKAGE / name / "__init__.py" if name.endswith("/") else PACKAGE / f"{name}.py"
        docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
        lines.append(f"| `{name}` | {docstring.partition(chr(10))[0]} |")
    return "\n".join(lines)


def drawing(edges: dict[str, set[str]]) -> str:
    """Return the import graph as a Mermaid diagram, without the arrows that follow from others."""
    reached: dict[str, set[str]] = {}
    for name in (name for row in layers(edges) for name in row):
        reached[name] = edges[name].union(*(reached[target] for target in edges[name]))
    lines = ["```mermaid", "graph TD"]
    for name in sorted(edges):
        direct = edges[name] - set().union(*(reached[target] for target in edges[name]))
        lines += [f"    {name.rstrip('/')} --> {target.rstrip('/')}" for target in sorted(direct)]
    return "\n".join([*lines, "```"])


def import_table(edges: dict[str, set[str]]) -> str:
    """Return the import graph as a Markdown table, one row per module, what is imported first."""
    lines = ["| layer | module | imports |", "|---|---|---|"]
    for number, row in enumerate(layers(edges)):
        for name in row:
            targets = ", ".join(f"`{target}`" for target in sorted(edges[name])) or "–"
            lines.append(f"| {number} | `{name}` | {targets} |")
    return "\n".join(lines)


def call_stack(*arguments: str) -> list[str]:
    """Run a command and return the functions on the shortest stack of a call of the adapter, from the command's on."""
    from cretta.adapter import Adapter
    from cretta.cli import app

    stacks: list[list[str]] = []
    forward: Any = Adapter.forward

    def recorded(self: Any, *batch: Any, **named: Any) -> Any:
        codes = [frame.f_code for frame, _ in traceback.walk_stack(None)]
        stacks.append(
            [
                f"{Path(code.co_filename).relative_to(PACKAGE).as_posix()}: {code.co_qualname}"
                for code in reversed(codes)
                if PACKAGE in Path(code.co_filename).parents
            ]
        )
        return forward(self, *batch, **named)

    Adapter.forward = recorded  # type: ignore[method-assign, assignment]  # replaced for a while
    try:
        app(list(arguments), standalone_mode=False)
    finally:
        Adapter.forward = forward  # type: ignore[method-assign]  # put back
    stack = min(stacks, key=len)
    return stack[stack.index(f"cli/{arguments[0]}.py: {arguments[0]}") :]


def commands(folder: Path) -> dict[str, list[str]]:
    """Return small runs of the commands whose way to the adapter the page shows."""
    return {
        "demo": ["demo", "--images", "8", "--batch-size", "4", "--shift", "fog", "--output", str(folder / "demo.png")],
        "run": [
            *("run", "--method", "bn_adapt", "--shift", "fog", "--images", "8", "--batch-size", "4"),
            *("--store", str(folder / "store")),
        ],
        "predict": [
            *("predict", str(folder / "images"), "--model", "wrn-40-2-cifar10", "--method", "bn_adapt"),
            *("--output", str(folder / "predictions.csv")),
        ],
    }


def stacks() -> str:
    """Return the call stacks of the commands as a Markdown list."""
    import numpy
    from PIL import Image

    lines = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "images").mkdir()
        pixels = numpy.random.default_rng(0).integers(0, 256, (4, 32, 32, 3), dtype=numpy.uint8)
        for index, image in enumerate(pixels):
            Image.fromarray(image).save(folder / "images" / f"{index}.png")
        for command, arguments in commands(folder).items():
            functions = call_stack(*arguments)
            lines += [f"`cretta {command}`: {len(functions)} functions before the adapter", ""]
            lines += [f"{number}. `{function}`" for number, function in enumerate(functions, 1)]
            lines += [f"{len(functions) + 1}. `adapter.py: Adapter.forward`", ""]
    return "\n".join(lines).rstrip()


def replaced(page: str, name: str, content: str) -> str:
    """Return ``page`` with the text between the two comments of a generated part replaced."""
    pattern = re.compile(rf"(<!-- generated: {name} -->\n).*?(<!-- end -->)", re.DOTALL)
    if not pattern.search(page):
        raise ValueError(f"expected the comment <!-- generated: {name} --> in the page, got none")
    return pattern.sub(lambda match: f"{match[1]}\n{content}\n\n{match[2]}", page)


def main() -> int:
    page = PAGE.read_text()
    edges = graph()
    page = replaced(page, "modules", module_table())
    page = replaced(page, "imports", f"{drawing(edges)}\n\n{import_table(edges)}")
    page = replaced(page, "calls", stacks())
    PAGE.write_text(page)
    return 0


if __name__ == "__main__":
    sys.exit(main())
