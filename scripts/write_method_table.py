"""Write what follows from the code of the methods: python scripts/write_method_table.py.

That is the table in docs/methods.md, and src/cretta/methods/signatures.pyi, by which editors complete and type checkers
check the options of cretta.CreTTA(…).
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

from cretta import methods
from cretta.adapter import Adapter
from cretta.methods.cretta import CreTTA

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "methods.md"
SIGNATURES = ROOT / "src" / "cretta" / "methods" / "signatures.pyi"
ACCEPTED = {"guard": "Guard | str | None", "skip": "Sequence[str]"}
"""Types of options that accept more than they store."""
HEADINGS = ("method", "objective", "updates", "statistics", "source data", "forwards", "backwards", "logits")


def formula(method: type[Adapter[Any]]) -> str:
    """Return the objective: what follows "L = " in the docstring of the class, to the end of the sentence."""
    match = re.search(r"\bL = (.+?)\.?(?=\s*\n|$)", method.__doc__ or "")
    return match[1].replace("|", "\\|") if match else "none"


def method_table() -> str:
    """Return a Markdown table of the built-in methods; passes are per batch, with default options."""
    rows = [HEADINGS, tuple("---" for _ in HEADINGS)]
    for name, method in methods.built_in().items():
        facts = method.facts
        rows.append(
            (
                f"`{name}`",
                formula(method),
                facts.updates,
                facts.statistics,
                facts.source_data,
                str(facts.forwards),
                str(facts.backwards),
                facts.logits,
            )
        )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def signatures() -> str:
    """Return a stub of the public class of a method, whose constructor names every option with its type."""
    lines = [
        "# Written by scripts/write_method_table.py; cretta.CreTTA has this signature for type checkers.",
        "from collections.abc import Sequence",
        "",
        "from torch import nn",
        "",
        "from cretta.buffer import SourceBuffer",
        "from cretta.methods import cretta",
        "from cretta.monitor.guard import Guard",
        "",
        "class CreTTA(cretta.CreTTA):",
        "    def __init__(",
        "        self,",
        "        net: nn.Module,",
        "        buffer: SourceBuffer | None = None,",
        "        *,",
        "        preset: str | None = None,",
    ]
    for field in dataclasses.fields(CreTTA.option_type):
        default = repr(field.default).replace("'", '"')
        lines += [f"        {field.name}: {ACCEPTED.get(field.name, field.type)} = {default},"]
    return "\n".join([*lines, "    ) -> None: ..."]) + "\n"


def main() -> None:
    SIGNATURES.write_text(signatures())
    page = PAGE.read_text()
    page = re.sub(
        r"(<!-- table:.*?-->\n).*?(<!-- end of table -->)",
        lambda match: f"{match[1]}{method_table()}\n{match[2]}",
        page,
        flags=re.DOTALL,
    )
    PAGE.write_text(page)


if __name__ == "__main__":
    main()
