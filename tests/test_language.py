"""The glossary: one word per thing, the field's own, in code, messages and documents (see CONTRIBUTING.md)."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

import pages

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src" / "cretta").rglob("*.py"))
EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))

NAMES = {
    "found": "matches, paths, result",
    "told": "message, lines",
    "given": "value, arguments",
    "wanted": "expected, requested",
    "place": "index, position, path",
    "each": "the name of one element",
    "kept": "saved, cached",
    "wrong": "error",
    "fault": "error",
    "exc": "error",
}
"""Identifiers that tell neither type nor role, and what to write."""

PHRASES = {
    r"pass(es)? back\b|\bways? back\b|\bpassed back": "backward pass",
    r"\basleep\b|\bsleeps?\b|\bwakes?\b": "eval mode, disabled",
    r"\bof our own\b": "custom",
    r"\bneeded (is|are)\b": "expected …, got …",
    r"\banew\b": "again",
    r"\blest\b": "so that … not",
    r"\bbut for\b": "except",
    r"\bamiss\b": "wrong",
    r"\b(goes?|went|going) on where\b": "resumes",
    r"\bthe house\b|\brooms\b": "architecture, modules",
    r"(?<![Tt]here )\bis no (?!longer|more\b|fewer|less|larger|smaller|worse|better)": "is not a",
    r"\b(images|rows?|batches|passes|runs|samples|steps|seconds|file) an? (batch|image|shift|core|run|epoch)\b": "per",
    r"\b(mind|minds) (its|their)\b": "depends on",
    r"\btells? (?:it|them|them apart)\b|\b(?:is|are|be|was) told\b": "say, report",
    r"(?i)optimis|normalis|initialis|organis|recognis|summaris|parametris|synchronis|equalis|realis|minimis|maximis"
    r"|serialis|generalis|standardis|quantis|randomis|vectoris|regularis|colour|behaviour|favour|neighbour|labelled"
    r"|\bgrey|\bcentre|licence|catalogue|modelled|cancell(?:ed|ing)\b": "US spelling",
}
"""Idioms and spellings, and what to write."""


def identifiers(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the line and name of everything that is given a name in a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.ExceptHandler)) and node.name:
            yield node.lineno, node.name


def prose(code: str) -> Iterator[tuple[int, str]]:
    """Yield the line and text of each comment and string of a module."""
    kinds = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", tokenize.STRING)}
    for token in tokenize.generate_tokens(io.StringIO(code).readline):
        if token.type in kinds:
            for offset, line in enumerate(token.string.splitlines()):
                yield token.start[0] + offset, line


def banned_phrases(lines: Iterator[tuple[int, str]], name: object) -> list[str]:
    return [
        f"{name}:{number}: {match.group()!r}; write: {better}"
        for number, text in lines
        for pattern, better in PHRASES.items()
        for match in re.finditer(pattern, text)
    ]


@pytest.mark.parametrize("path", [*SOURCES, *EXAMPLES], ids=pages.name)
def test_code_uses_the_words_of_the_glossary(path: Path) -> None:
    code = path.read_text()
    name = path.relative_to(ROOT)
    errors = banned_phrases(prose(code), name)
    errors += [
        f"{name}:{line}: {identifier!r} as a name; write: {NAMES[identifier]}"
        for line, identifier in identifiers(ast.parse(code))
        if identifier in NAMES
    ]
    assert not errors, "\n".join(errors)


@pytest.mark.parametrize("path", pages.PAGES, ids=pages.name)
def test_pages_use_the_words_of_the_glossary(path: Path) -> None:
    errors = banned_phrases(iter(enumerate(path.read_text().splitlines(), 1)), path.name)
    assert not errors, "\n".join(errors)


@pytest.mark.parametrize(
    "text", ["needed is a tensor", "save it anew", "kernels of our own", "200 images a shift", "it is no method"]
)
def test_idioms_are_noticed(text: str) -> None:
    assert banned_phrases(iter([(1, text)]), "page")


@pytest.mark.parametrize("text", ["no larger than", "is no longer used", "the backward pass", "200 images per shift"])
def test_plain_sentences_pass(text: str) -> None:
    assert not banned_phrases(iter([(1, text)]), "page")
