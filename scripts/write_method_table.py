"""Write the table of methods in docs/methods.md from the code: python scripts/write_method_table.py."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from cretta import methods
from cretta.adapter import Adapter

PAGE = Path(__file__).parent.parent / "docs" / "methods.md"
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


def main() -> None:
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
