from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import cretta
import textbook
from cretta.errors import ModelError, OptionError, StateError
from cretta.models.open import open_model
from cretta.storage import tensorfile

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
STREAM = textbook.batches((8, 5, 8))


@contextmanager
def ignored_warnings() -> Iterator[None]:
    """Ignore the warnings of the tools that make the files: users make them, cretta reads them."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"`torch\.jit\.", DeprecationWarning)
        warnings.filterwarnings("ignore", r"`isinstance\(treespec", FutureWarning)
        warnings.filterwarnings("ignore", category=torch.jit._trace.TracerWarning)
        yield


def buffer() -> cretta.SourceBuffer:
    return cretta.SourceBuffer(textbook.source_images(20), augment="none")


def answers(net: nn.Module, method: str, **options: Any) -> list[Tensor]:
    model = cretta.adapt(net, method, buffer=buffer(), **options)
    return [model(x) for x in STREAM]


def assert_same(net: nn.Module, other: nn.Module, method: str, atol: float = 0.0, **options: Any) -> None:
    """Compare both as they are, and rewritten up to rounding."""
    for fuse, allowed in ((False, atol), (True, max(atol, 1e-5))):
        one, two = (answers(n, method, fuse=fuse, **options) for n in (net, other))
        for mine, theirs in zip(one, two, strict=True):
            assert torch.allclose(mine, theirs, rtol=0, atol=allowed), (method, fuse)


# Names, checkpoints, code.


def test_a_shipped_name() -> None:
    opened = open_model("wrn-40-2-cifar10")
    assert (opened.kind, opened.side) == ("shipped", 32)
    assert opened.classes[3] == "cat"
    assert not opened.net.training
    with pytest.raises(OptionError, match="normalizes its images itself"):
        open_model("wrn-40-2-cifar10", mean=MEAN, std=STD)
    with pytest.raises(OptionError, match="wrn-40-2-cifar10"):
        open_model("wrn-40-3-cifar10")
    with pytest.raises(OptionError, match=r"^classes=10: expected with a checkpoint"):
        open_model("wrn-40-2-cifar10", classes=10)


@pytest.mark.parametrize("ending", [".pt", ".pth", ".ckpt", ".safetensors"])
def test_a_checkpoint(ending: str, tmp_path: Path) -> None:
    net = cretta.models.build("resnet-8", classes=4).eval()
    path = tmp_path / f"weights{ending}"
    if ending == ".safetensors":
        save_file(net.state_dict(), path)
    else:
        torch.save({"state_dict": net.state_dict()}, path)
    random = torch.random.get_rng_state()
    opened = open_model(str(path), architecture="resnet-8", classes=4)
    assert torch.equal(torch.random.get_rng_state(), random)
    x = torch.rand(2, 3, 16, 16)
    assert torch.equal(opened.net(x), net(x))
    assert opened.kind == "checkpoint"
    assert not opened.net.training
    normalizing = open_model(str(path), architecture="resnet-8", classes=4, mean=MEAN, std=STD).net
    expected = net((x - torch.tensor(MEAN).view(1, 3, 1, 1)) / torch.tensor(STD).view(1, 3, 1, 1))
    assert torch.allclose(normalizing(x), expected, atol=1e-6)
    (tmp_path / f"text{ending}").write_text("hello")
    with pytest.raises(StateError, match=rf"text\{ending} is not a checkpoint, or is damaged: copy it again; expected"):
        open_model(tmp_path / f"text{ending}")
    for options in ({}, {"architecture": "resnet-8"}, {"classes": 4}):
        with pytest.raises(OptionError, match="does not say what network its weights are of"):
            open_model(str(path), **options)
    with pytest.raises(
        StateError, match=r"does not fit resnet-8-16 with 5 classes: .*the architecture=… and classes=…"
    ):
        open_model(str(path), architecture="resnet-8", classes=5)


def test_weights_of_cretta_train_state_their_network(tmp_path: Path) -> None:
    net, path = cretta.models.build("resnet-8", classes=2).eval(), tmp_path / "trained.safetensors"
    facts = {"kind": "model weights", "architecture": "resnet-8", "classes": ["cat", "dog"], "side": 16}
    tensorfile.write(path, net.state_dict(), facts)
    opened = open_model(str(path))
    assert (opened.kind, opened.classes, opened.side) == ("checkpoint", ("cat", "dog"), 16)
    x = torch.rand(2, 3, 16, 16)
    assert torch.equal(opened.net(x), net(x))


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (exec, ("raise SystemExit('code was run')",))


def test_no_code_in_a_checkpoint_is_run(tmp_path: Path) -> None:
    torch.save({"state_dict": Evil()}, tmp_path / "evil.pt")
    with pytest.raises(StateError, match=r"evil\.pt holds a pickled network or other objects \((builtins\.)?exec\)"):
        open_model(str(tmp_path / "evil.pt"), architecture="resnet-8", classes=4)


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(b"onnx")
    with pytest.raises(OptionError, match=r"net\.onnx: expected a checkpoint \(\.pt, \.pth, \.ckpt, \.safetensors\)"):
        open_model(str(tmp_path / "net.onnx"))


MODULE = """
import torch
from torch import nn
import beside_opened
class Maker:
    def make(self): return made()
def made():
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.LazyLinear(5), nn.Dropout()).train()
def broken(): return 1 / 0
def greedy(path): return path
maker, ready, number = Maker(), nn.Sequential(nn.Flatten(), nn.Linear(192, 5)), 7
"""


def test_code_in_the_current_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "net_opened.py").write_text(MODULE)
    (tmp_path / "beside_opened.py").write_text("")
    (tmp_path / "bad_opened.py").write_text("import no_such_package_opened")
    monkeypatch.chdir(tmp_path)
    path = list(sys.path)
    x = torch.rand(2, 3, 8, 8)
    for spec in ("net_opened:made", "net_opened:maker.make", "net_opened:ready"):
        opened = open_model(spec)
        assert opened.kind == "python"
        assert not opened.net.training
        assert opened.net(x).shape == (2, 5)
    for spec, error, said in (
        ("net_opened:broken", ModelError, "ZeroDivisionError"),
        ("net_opened:greedy", ModelError, "takes no arguments"),
        ("net_opened:number", ModelError, "gave int; expected"),
        ("net_opened:lost", OptionError, "lost"),
        ("bad_opened:made", OptionError, "no_such_package_opened"),
        ("lost_opened:made", OptionError, str(tmp_path)),
    ):
        with pytest.raises(error, match=said):
            open_model(spec)
    assert sys.path == path


@pytest.mark.parametrize("mean", [None, (0.5,), (0.5, 0.5, float("nan"))])
def test_means_that_cannot_be_used(mean: Any) -> None:
    with pytest.raises(OptionError, match="mean="):
        open_model("wrn-40-2-cifar10", mean=mean, std=STD)


def test_normalization_before_a_network_from_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It works with every method, on the copies that adapters make, and layers keep their names."""
    (tmp_path / "normal_opened.py").write_text("import textbook\nmade = textbook.small_net")
    monkeypatch.chdir(tmp_path)
    opened = open_model("normal_opened:made", mean=MEAN, std=STD)
    net = nn.Sequential(Normalize(), textbook.small_net())
    for method in ("source", "bn_adapt", "tent", "cretta"):
        assert_same(opened.net, net, method, atol=1e-6)
    assert [name for name, _ in opened.net.named_modules()] == [n for n, _ in textbook.small_net().named_modules()]
    by_name, by_position = (cretta.adapt(opened.net, "tent", lr=1e-2) for _ in range(2))
    for x in STREAM:
        assert torch.equal(by_name(x=x), by_position(x))


class Normalize(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x - torch.tensor(MEAN).view(1, 3, 1, 1)) / torch.tensor(STD).view(1, 3, 1, 1)


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ({"config": SimpleNamespace(id2label={1: "dog", 0: "cat"})}, ("cat", "dog")),
        ({"config": SimpleNamespace(id2label={0: "LABEL_0", 1: "LABEL_1"})}, ()),
        ({"config": SimpleNamespace(id2label={0: "crane", 1: "crane"})}, ()),
        ({"classes": ["cat", "dog"]}, ("cat", "dog")),
        ({"classes": 2}, ()),
        ({}, ()),
    ],
)
def test_a_network_may_name_its_classes(
    labels: dict[str, Any], expected: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    net = textbook.small_net()
    for name, value in labels.items():
        setattr(net, name, value)
    monkeypatch.setattr(textbook, "named", net, raising=False)
    assert open_model("textbook:named").classes == expected


# Compiled networks.


def test_a_file_with_a_compiled_network_is_refused_with_the_remedy(tmp_path: Path) -> None:
    net = textbook.small_net()
    with ignored_warnings():
        torch.jit.save(torch.jit.script(net), tmp_path / "scripted.pt")
        torch.jit.save(torch.jit.trace(net, STREAM[0]), tmp_path / "traced.pt")
        torch.export.save(torch.export.export(net, (STREAM[0],)), tmp_path / "exported.pt2")
    for name in ("scripted.pt", "traced.pt", "exported.pt2"):
        with pytest.raises(ModelError, match=rf"{name} is a compiled network .*module:callable"):
            open_model(tmp_path / name)


def test_compiled_networks_in_memory_are_refused_with_the_remedy() -> None:
    net, x = textbook.small_net(), STREAM[0]
    with ignored_warnings():
        program, scripted = torch.export.export(net, (x,)), torch.jit.script(net)
        compiled = {"traced": torch.jit.trace(net, x), "scripted": scripted, "frozen": torch.jit.freeze(scripted)}
    for module in (*compiled.values(), program.module()):
        for method, options in (("tent", {}), ("cretta", {}), ("bn_adapt", {}), ("source", {"statistics": "batch"})):
            with pytest.raises(ModelError, match=r"Adapt the network that it was (made|exported) from") as caught:
                cretta.adapt(module, method, buffer=buffer(), **options)
            assert "with learnable γ and β" not in str(caught.value)
        with ignored_warnings():
            assert torch.allclose(cretta.adapt(module, "source")(x), net(x), atol=1e-5)
    with pytest.raises(ModelError, match=r"an exported program \(ExportedProgram\).*exported from.*\.module\(\)"):
        cretta.adapt(program, "source")  # type: ignore[arg-type]
    with pytest.raises(ModelError, match=r"net is str; expected a torch\.nn\.Module.*cretta\.models\.open_model"):
        cretta.adapt("net.pt2", "tent")  # type: ignore[arg-type]
    # Without compiled layers, the message is about layers.
    with pytest.raises(ModelError, match=r"no normali[sz]ation layer"):
        cretta.adapt(torch.fx.symbolic_trace(nn.Sequential(nn.Flatten(), nn.Linear(3, 2))), "tent")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu() -> None:
    gpu, cpu = (open_model("textbook:small_net", device=device, mean=MEAN, std=STD) for device in ("cuda", "cpu"))
    gpu_model, cpu_model = cretta.adapt(gpu.net, "source"), cretta.adapt(cpu.net, "source")
    assert torch.allclose(gpu_model(STREAM[0].cuda()).cpu(), cpu_model(STREAM[0]), atol=1e-3)
