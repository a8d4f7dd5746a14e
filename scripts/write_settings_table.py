"""Write the table of settings in docs/serving.md. A test compares the page with what this script would write."""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path

from cretta.serve.settings import Settings

PAGE = Path(__file__).parent.parent / "docs" / "serving.md"


def settings_table() -> str:
    """Return the settings with their defaults as Markdown."""
    lines = ["| setting | default | |", "|---|---|---|"]
    lines += [
        f"| `{field.name}` | {field.default} | {field.metadata['description']} |"
        for field in dataclasses.fields(Settings)
    ]
    return "\n".join(lines)


def main() -> int:
    mark = re.compile(r"(<!-- generated: settings -->\n).*?(<!-- end -->)", re.DOTALL)
    PAGE.write_text(mark.sub(lambda match: f"{match[1]}\n{settings_table()}\n\n{match[2]}", PAGE.read_text(), count=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
