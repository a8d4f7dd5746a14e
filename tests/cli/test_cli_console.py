from __future__ import annotations

import pytest

from cretta.cli.console import console, progress_bar


def test_progress_writes_nothing_into_a_log(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(console, "is_interactive", False)
    with progress_bar("runs") as progress:
        task = progress.add_task("reading", total=2)
        progress.update(task, advance=2)
        console.print("said")
    assert capsys.readouterr().out == "said\n"
