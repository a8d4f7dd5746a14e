"""Writes the table of methods in docs/methods.md from the code: python scripts/write_method_table.py."""

from __future__ import annotations

import re
from pathlib import Path

from cretta.report.methods import method_table

PAGE = Path(__file__).parent.parent / "docs" / "methods.md"


def main() -> None:
    page = PAGE.read_text()
    page = re.sub(
        r"(<!-- table:.*?-->\n).*?(<!-- end of table -->)",
        lambda found: f"{found[1]}{method_table()}\n{found[2]}",
        page,
        flags=re.DOTALL,
    )
    PAGE.write_text(page)


if __name__ == "__main__":
    main()
