"""`cretta serve`: what it refuses before it serves."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from cretta.cli import app
from cretta.errors import OptionError

pytest.importorskip("fastapi", reason="fastapi is not installed: the service is not tested")
pytest.importorskip("uvicorn", reason="uvicorn is not installed: the service is not tested")


def refused(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["serve", *map(str, arguments)], env={"CRETTA_TOKEN": None})
    assert result.exit_code == 2, result.output
    return result.output.replace("\n", " ")


def test_other_machines_need_a_token(tmp_path: Path) -> None:
    assert "so a token is required: give --token-file FILE or set CRETTA_TOKEN" in refused("--host", "0.0.0.0")
    (tmp_path / "token").write_text("short")
    message = refused("--host", "0.0.0.0", "--token-file", tmp_path / "token")
    assert "expected a token of at least 16 characters, got 5" in message
    assert "give a text file with the token" in refused("--token-file", tmp_path / "missing")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--when-full", "500"), "--when-full 500: expected one of '429', '503'"),
        (("--batch-size", "0"), "--batch-size 0: expected an integer, at least 1"),
        (("--guard", "pray"), "guard"),
        (("--log", "xml"), "unknown --log 'xml'"),
        (("--timeout", "0"), "--timeout 0.0: expected a finite number above 0"),
        (("--model", "textbook:small_net", "--method", "tent"), "such as --size 224: without a buffer"),
        (("--model", "textbook:small_net"), "compares with source images: give --buffer FILE"),
        # The embedded images are not of its classes.
        (("--model", "wrn-40-2-cifar100"), "compares with source images: give --buffer FILE"),
    ],
)
def test_wrong_options_are_refused(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    assert message in refused("--folder", tmp_path, *arguments)


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    assert "notes.txt: File exists" in refused("--folder", tmp_path / "notes.txt", "--method", "source")


def test_a_port_in_use_is_an_error(tmp_path: Path) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert f"cannot listen on 127.0.0.1:{port}" in refused("--folder", tmp_path, "--port", port)
    assert "cannot listen on 127.0.0.1:70000" in refused("--folder", tmp_path, "--port", 70000)


@pytest.mark.parametrize(("arguments", "local"), [((), True), (("--require-token",), False)])
def test_behind_a_proxy_the_token_can_be_required(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], local: bool
) -> None:
    def made(*_: object, **settings: object) -> None:
        raise OptionError(f"made with local={settings['local']}")

    monkeypatch.setattr("cretta.serve.app", made)
    assert f"made with local={local}" in refused("--folder", tmp_path, *arguments)


def test_a_folder_of_another_model_is_an_error_with_a_message(tmp_path: Path) -> None:
    import json

    (tmp_path / "snapshot-00000001-batch-1-step-1.safetensors").write_bytes(b"")
    (tmp_path / "settings.json").write_text(json.dumps({"settings": {"method": "eata"}}))
    message = refused("--folder", tmp_path, "--port", 0)
    assert 'method was "eata" and is "cretta"' in message
    assert "choose another folder" in message
