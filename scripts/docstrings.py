"""Docstrings as Markdown for the API reference: doctests become code blocks, roles such as :func: become code."""

from __future__ import annotations

import re
from typing import Any

import griffe


class Markdown(griffe.Extension):
    """An extension of griffe, which mkdocstrings loads."""

    def on_instance(self, *, obj: griffe.Object, **arguments: Any) -> None:
        """Rewrite the docstring of an object after it has been read."""
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)


def markdown(docstring: str) -> str:
    """Return a docstring as Markdown."""
    docstring = re.sub(r":(?:func|class|meth|mod|data):`~?([^`]*)`", r"`\1`", docstring)
    doctest = r"^>>> .*\n?(?:^(?=\S).*\n?)*"
    return re.sub(doctest, lambda match: f"```pycon\n{match[0].rstrip()}\n```\n", docstring, flags=re.MULTILINE)
