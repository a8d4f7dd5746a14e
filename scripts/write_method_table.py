"""Write the table of methods in docs/methods.md from the code: python scripts/write_method_table.py."""

from __future__ import annotations

import re
from pathlib import Path

from cretta import methods

PAGE = Path(__file__).parent.parent / "docs" / "methods.md"
HEADINGS = ("method", "objective", "updates", "statistics", "source data", "forwards", "backwards", "logits")


def method_table() -> str:
    """Return a Markdown table of the built-in methods; passes are per batch, with default options."""
    rows = [HEADINGS, tuple("---" for _ in HEADINGS)]
    for name in methods.names():
        facts = methods.get(name).facts
        rows.append(
            (
                f"`{name}`",
                facts.loss.replace("|", "\\|"),
                facts.updates,
                facts.statistics,
                "yes" if facts.source_data else "no",
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
