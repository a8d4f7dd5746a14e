"""Every command and code block of the pages is executed here, or is the output of a command that the page names."""

from __future__ import annotations

import re
import sys
import tomllib
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
import typer
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import TensorDataset
from typer.testing import CliRunner

import cretta
import forks
import pages
import processes
import textbook
from cretta.cli import app
from cretta.models import hub
from pages import ROOT

PYTHON = [page for page in pages.PAGES if pages.blocks(page, "python") and page.name != "writing-a-method.md"]
"""The methods printed on that page are pasted into files by tests/methods/test_contributing.py."""
SHELL = [
    pytest.param(page, marks=[pytest.mark.process] if page.name == "scaling.md" else [])
    for page in pages.PAGES
    if pages.blocks(page, "sh")
]
LANGUAGES = {"", "bibtex", "math", "mermaid", "python", "sh", "toml"}
NET = """
import torch
from torch import nn

def make():
    torch.manual_seed(7)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, 4), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)
    )
"""
SHORTER = (
    (r"--images \d+", "--images 4"),
    (r"^(run .*)", r"\1 --batch-size 2 --buffer 10"),
    (r"^(run (?!.*--model).*)", r"\1 --model net:make"),
    (r"^(run .*--data.*) --buffer 10", r"\1 --buffer 4"),
    (r"^demo$", "demo --images 2"),
    (r"^(reproduce .*--scale smoke)", r"\1 --model cifar10=net:make"),
    (r"^--install-completion$", "--help"),
)
"""The same commands with fewer images and a smaller network; completion is tested in tests/cli."""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what the pages speak of: folders of images, a network, a benchmark, a buffer."""
    generator = np.random.default_rng(0)
    classes = ["airplane", "automobile"]
    folders = ["photos", "monday", "tuesday"]
    folders += [f"{part}/{label}" for part in ("train", "my-data/train", "my-data/test") for label in classes]
    for folder in folders:
        (tmp_path / folder).mkdir(parents=True)
        for number in range(12 if folder.startswith("train") else 3):
            pixels = generator.integers(0, 256, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / folder / f"{number}.png")
    (tmp_path / "net.py").write_text(NET)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "net", raising=False)
    monkeypatch.setenv("CRETTA_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


class PixelValues(nn.Module):
    """A network with the interface of Hugging Face models."""

    def __init__(self) -> None:
        super().__init__()
        self.net = textbook.small_net()

    def forward(self, pixel_values: Tensor) -> dict[str, Tensor]:
        return {"logits": self.net(pixel_values)}


def downloaded(net: nn.Module, package: Any, name: str) -> tuple[Any, ...]:
    return net, None, None, None, ()


@pytest.fixture
def downloads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small networks in place of those that other libraries would download."""
    for library, package in hub.LIBRARIES.items():
        monkeypatch.setitem(sys.modules, package, ModuleType(package))
        net = PixelValues() if library == "hf" else textbook.small_net()
        monkeypatch.setitem(hub._READERS, library, partial(downloaded, net))


def namespace(page: str) -> dict[str, Any]:
    """Return what the code of a page may use without defining it."""
    count, generator = 60, torch.Generator().manual_seed(0)
    source, labels = textbook.source_images(count), torch.arange(count) % textbook.CLASSES
    names: dict[str, Any] = {
        "cretta": cretta,
        "net": textbook.small_net(),
        "x": textbook.batches((8,))[0],
        "images": source,
        "labels": labels,
        "training_set": TensorDataset(source, labels),
        "buffer": cretta.SourceBuffer(source, augment="none"),
        "probabilities": torch.rand(count, textbook.CLASSES, generator=generator).softmax(1),
    }
    if page == "docs/streams.md":
        names |= {"x": source, "images": np.zeros((2, 32, 32, 3), dtype=np.uint8)}
    return names


@pytest.mark.usefixtures("downloads")
@pytest.mark.parametrize("page", PYTHON, ids=pages.name)
def test_code_runs(page: Path, home: Path) -> None:
    if pages.name(page) == "examples/method_package/README.md":
        pytest.skip("executed by tests/test_examples.py, with the package")
    if pages.name(page) == "docs/buffers.md":
        build = ["buffer", "build", "train", "--output", "source.safetensors", "--image-size", "8x8", "--size", "20"]
        assert CliRunner().invoke(app, build).exit_code == 0
    names = namespace(pages.name(page))
    for block in pages.blocks(page, "python"):
        exec(compile(block.code, str(page), "exec"), names)
    if page.name == "README.md":
        assert names["logits"].shape == (8, textbook.CLASSES)


def shortened(words: list[str]) -> list[str]:
    # No word has a blank in it: options with several values are given as name=a|b.
    line = " ".join(words)
    for pattern, replacement in SHORTER:
        line = re.sub(pattern, replacement, line)
    return line.split()


@pytest.mark.slow
@pytest.mark.parametrize("page", SHELL, ids=pages.name)
def test_commands_run(page: Path, home: Path) -> None:
    """Run the commands of cretta, and check that all others name what exists."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for block in pages.blocks(page, "sh"):
        for words in pages.commands(block.code):
            match words:
                case ["cretta", "serve", *_]:  # runs until it is stopped; executed by tests/serve
                    check_command(words[1:])
                case ["curl", *_]:
                    assert "127.0.0.1:8000" in words[-1]
                case ["cretta", *arguments] | ["python", "-m", "cretta", *arguments]:
                    # These need the package of the example, a cluster, or Ray.
                    ray = "ray" in arguments
                    if "gentle" in arguments or (ray and ("--address" in arguments or not find_spec("ray"))):
                        check_command(arguments)
                    elif ray:  # leaves threads, processes and a token in the process that uses it
                        ended = forks.run(processes.command(*shortened(arguments)))
                        assert ended.returncode == 0, f"{' '.join(words)}\n{ended.stdout}\n{ended.stderr}"
                    else:
                        done = CliRunner().invoke(app, shortened(arguments))
                        assert done.exit_code == 0, f"{' '.join(words)}\n{done.output}\n{done.exception!r}"
                case ["make", target]:
                    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), flags=re.MULTILINE), target
                case ["pip", "install", package]:
                    extra = re.fullmatch(r"(?:cretta|\.)(?:\[(\w+)\])?", package)
                    assert extra is not None, package
                    assert extra[1] is None or extra[1] in extras
                case ["ray", "start", *arguments]:
                    assert set(arguments) & {"--head", "--address"}  # started by tests/bench/test_engines.py
                case ["sbatch", script, *arguments]:
                    assert (ROOT / script).is_file(), script
                    check_command(arguments)
                case ["torchrun", "--nproc-per-node", "2", script]:
                    assert (ROOT / script).is_file(), script  # executed by tests/test_distributed.py
                case ["python" | ".venv/bin/python", script, *_]:
                    assert (ROOT / script).is_file(), script
                case _:
                    pytest.fail(f"expected a command that this test knows, got {' '.join(words)}; add it here.")


def check_command(arguments: list[str]) -> None:
    """Raise unless the command and its options exist."""
    command: Any = typer.main.get_command(app)
    rest = list(arguments)
    while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        assert rest[0] in command.commands, f"cretta {' '.join(arguments)}: no command {rest[0]!r}"
        command = command.commands[rest.pop(0)]
    options = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    unknown = [word for word in rest if word.startswith("--") and word.partition("=")[0] not in options | {"--help"}]
    assert not unknown, f"cretta {' '.join(arguments)}: no option {unknown[0]}"


@pytest.mark.parametrize("page", pages.PAGES, ids=pages.name)
def test_commands_in_sentences_exist(page: Path) -> None:
    """Code spans: commands of cretta, targets of make, and files of the repository."""
    spans = pages.code_spans(page)
    for span in spans:
        if re.match(r"cretta (?![(\[])", span):
            check_command([word for word in re.split(r"\s+\|\s+|\s+", span)[1:] if word not in ("…", "NAME")])
        for target in re.findall(r"^make (\w+)", span):
            assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), flags=re.MULTILINE), span
        for script in re.findall(r"^python ((?:scripts|benchmarks|examples)/\S+)", span):
            assert (ROOT / script).is_file(), span


@pytest.mark.parametrize("page", pages.PAGES, ids=pages.name)
def test_other_blocks_are_the_output_of_a_command_that_is_named(page: Path) -> None:
    for block in pages.blocks(page):
        assert block.language in LANGUAGES, f"expected one of {LANGUAGES}, got {block.language}"
        if block.language == "":
            assert re.search(r"`(cretta|python|make)\b[^`]*`|--\w+", block.before), block.before


def test_an_unknown_command_or_option_is_noticed() -> None:
    check_command(["data", "make", "photos", "--corruption", "fog"])
    with pytest.raises(AssertionError, match="no command 'dance'"):
        check_command(["data", "dance"])
    with pytest.raises(AssertionError, match="no option --loud"):
        check_command(["run", "--loud", "yes"])


@pytest.mark.parametrize("page", pages.PAGES, ids=pages.name)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    errors = []
    for link in pages.links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in pages.anchors(target)):
            errors.append(link)
    assert errors == []
