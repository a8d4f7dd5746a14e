"""What the pages contain: fenced blocks, code spans, links, headings."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = [
    *sorted(set(ROOT.glob("*.md")) - {ROOT / "CHANGELOG.md"}),  # which names what is gone, too
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "examples").rglob("*.md")),
]
_FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL
)


@dataclass(frozen=True)
class Block:
    """A fenced block, and the text of its section before it."""

    language: str
    code: str
    before: str


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path, language: str | None = None) -> list[Block]:
    text = page.read_text()
    every = [
        Block(match["language"], match["code"], text[: match.start()].rpartition("\n## ")[2])
        for match in _FENCE.finditer(text)
    ]
    return [block for block in every if language in (None, block.language)]


def prose(page: Path) -> str:
    """Return a page without its blocks and comments."""
    return re.sub(r"<!--.*?-->", "", _FENCE.sub("", page.read_text()), flags=re.DOTALL)


def code_spans(page: Path) -> list[str]:
    return [" ".join(span.split()) for span in re.findall(r"(?<!`)`([^`]+)`(?!`)", prose(page))]


def commands(code: str) -> Iterator[list[str]]:
    """Yield the commands of a shell block as words, without comments."""
    for line in code.replace("\\\n", " ").splitlines():
        if words := shlex.split(line, comments=True):
            yield words


def links(page: Path) -> list[str]:
    """Return the targets of links and pictures that are not addresses of other sites."""
    targets = re.findall(r"\]\(([^)\s]+)\)", re.sub(r"(?<!`)`[^`]+`(?!`)", "", prose(page)))
    return [target for target in targets if not re.match(r"https?:|mailto:", target)]


def anchors(page: Path) -> set[str]:
    """Return the addresses of the headings of a page, as Markdown programs make them."""
    headings = re.findall(r"^#+ (.+)$", prose(page), flags=re.MULTILINE)
    plain = (re.sub(r"[^\w\s-]", "", re.sub(r"[`*]", "", heading)).strip().lower() for heading in headings)
    return {re.sub(r"[\s-]+", "-", heading) for heading in plain}
