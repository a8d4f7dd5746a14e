"""Pages against a dictionary of English and a word list of the field; code against known misspellings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import pages
from pages import ROOT

WORDS = ROOT / "tests" / "words.txt"


def unknown_words(text: str) -> set[str]:
    spellchecker = pytest.importorskip("spellchecker", reason="pip install pyspellchecker")
    dictionary = spellchecker.SpellChecker(local_dictionary=None)
    text = re.sub(r"(?<!`)`[^`]+`(?!`)|https?://\S+|\]\([^)]*\)|\b\w+\.\w+", " ", text)
    # Words of letters only; names with capitals inside, such as BatchNorm, and numbers are not words.
    words = set(re.findall(r"(?<![\w’'-])[A-Za-z]?[a-z]{2,}(?![\w])", text))
    allowed = set(WORDS.read_text().split())
    return {word for word in dictionary.unknown(word.lower() for word in words) if word not in allowed}


@pytest.mark.parametrize("page", pages.PAGES, ids=pages.name)
def test_the_words_of_a_page_are_known(page: Path) -> None:
    assert unknown_words(pages.prose(page)) == set(), f"correct them, or add them to {WORDS.name}"


def test_a_misspelled_word_is_noticed() -> None:
    assert unknown_words("An adpater in `adpater.py` and a classifier.") == {"adpater"}


def test_the_word_list_is_sorted() -> None:
    words = WORDS.read_text().split()
    assert words == sorted(set(words))


@pytest.mark.slow
def test_code_has_no_known_misspelling(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    codespell_lib = pytest.importorskip("codespell_lib", reason="pip install codespell")
    monkeypatch.chdir(ROOT)
    folders = ["src", "docs", "examples", "benchmarks", "scripts", *map(pages.name, ROOT.glob("*.md"))]
    assert codespell_lib.main(*folders) == 0, capsys.readouterr().out
