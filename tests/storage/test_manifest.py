from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cretta.errors import StateError
from cretta.storage import Manifest, require_same

SETTINGS: dict[str, Any] = {"lr": 0.1, "size": (2, 3), "options": {"seed": 0, "name": None}}


def manifest(path: Path, **changes: Any) -> Manifest:
    return Manifest(path / "settings.json", SETTINGS | changes, remedy="To start over, remove it.", version="1")


def test_the_same_settings_pass(tmp_path: Path) -> None:
    manifest(tmp_path).write()
    manifest(tmp_path).check()
    content = json.loads((tmp_path / "settings.json").read_text())
    assert content == {"version": "1", "settings": {**SETTINGS, "size": [2, 3]}}


def test_every_difference_is_named_with_both_values_and_the_remedy(tmp_path: Path) -> None:
    manifest(tmp_path).write()
    options = {"seed": 1, "name": "a" * 60}
    with pytest.raises(StateError) as error:
        manifest(tmp_path, lr=0.2, options=options, new=True).check()
    assert str(error.value) == (
        f"{tmp_path} was started with other settings: lr was 0.1 and is 0.2; seed was 0 and is 1; name was null and is "
        f'"{"a" * 23}…; new was null and is true. Use the same settings to continue. To start over, remove it.'
    )


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"settings": 3}', None])
def test_a_file_that_cannot_be_read_says_what_to_do(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "settings.json").write_text(content)
    with pytest.raises(StateError, match=r"settings\.json cannot be read \(.*\)\. To start over, remove it\."):
        manifest(tmp_path).check()


def test_settings_that_are_stored_elsewhere_are_compared_alike() -> None:
    require_same(Path("a"), {"x": 1}, {"x": 1}, "")
    with pytest.raises(StateError, match="a was started with other settings: x was 1 and is 2"):
        require_same(Path("a"), {"x": 1}, {"x": 2}, "")
