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
from cretta.errors import BatchError, ModelError, OptionError, StateError
from cretta.models.open import OpenedModel, open_model
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


class Mixed(nn.Module):
    """Every layer that can be restored from an exported program, one of them used twice, one without γ and β."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.inner = nn.Sequential(nn.BatchNorm2d(8), nn.ReLU())
        self.bare = nn.BatchNorm2d(8, affine=False)
        self.group = nn.GroupNorm(4, 8)
        self.layer = nn.LayerNorm(8)
        self.flat = nn.BatchNorm1d(8)
        self.fc = nn.Linear(8, textbook.CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inner(self.bare(self.inner(self.stem(x))))
        x = self.layer(self.group(x).mean((2, 3)))
        logits: Tensor = self.fc(self.flat(x))
        return logits


class Instance(nn.Module):
    """Instance normalization, which cretta does not make a layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.InstanceNorm2d(3, affine=True)
        self.fc = nn.Linear(3, textbook.CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.fc(self.norm(x).square().mean((2, 3)))
        return logits


class Computed(nn.Module):
    """A γ that is the result of a calculation."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3)
        self.fc = nn.Linear(3, textbook.CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        assert self.norm.weight is not None
        mean, variance = self.norm.running_mean, self.norm.running_var
        x = nn.functional.batch_norm(x, mean, variance, self.norm.weight.exp(), self.norm.bias)
        logits: Tensor = self.fc(x.square().mean((2, 3)))
        return logits


class Pair(nn.Module):
    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x + y, x - y


def mixed_net() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return textbook.settle(Mixed(), textbook.source_images(32).split(8))


def exported(net: nn.Module, *inputs: Tensor, free: bool = True) -> Any:
    shapes = tuple({0: torch.export.Dim("batch")} for _ in inputs) if free else None
    return torch.export.export(net, inputs, dynamic_shapes=shapes)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root, net, x = tmp_path_factory.mktemp("files"), textbook.small_net(), STREAM[0]
    with ignored_warnings():
        training = textbook.small_net().train()
        program = exported(net, x)
        torch.export.save(program, root / "free.pt2")
        torch.export.save(program.run_decompositions(), root / "decomposed.pt2")
        torch.export.save(exported(net, x, free=False), root / "fixed.pt2")
        torch.export.save(exported(training, x), root / "training.pt2")
        torch.export.save(exported(mixed_net(), x), root / "mixed.pt2")
        torch.export.save(exported(mixed_net(), x).run_decompositions(), root / "mixed_decomposed.pt2")
        torch.export.save(exported(Instance(), x), root / "instance.pt2")
        torch.export.save(exported(Computed().eval(), x), root / "computed.pt2")
        torch.export.save(exported(Pair(), x, x, free=False), root / "pair.pt2")
    return root


def buffer() -> cretta.SourceBuffer:
    return cretta.SourceBuffer(textbook.source_images(20), augment="none")


def answers(net: nn.Module, method: str, **options: Any) -> list[Tensor]:
    model = cretta.adapt(net, method, buffer=buffer(), **options)
    return [model(x) for x in STREAM]


def assert_same(net: nn.Module, other: nn.Module, method: str, atol: float = 0.0, **options: Any) -> None:
    """Compare both as they are, and rewritten up to rounding: a program has fewer layers that can be rewritten."""
    for fuse, allowed in ((False, atol), (True, max(atol, 1e-5))):
        one, two = (answers(n, method, fuse=fuse, **options) for n in (net, other))
        for mine, theirs in zip(one, two, strict=True):
            assert torch.allclose(mine, theirs, rtol=0, atol=allowed), (method, fuse)


# Names, checkpoints, code.


def test_a_shipped_name() -> None:
    opened = open_model("wrn-40-2-cifar10")
    assert (opened.kind, opened.side, opened.limit) == ("shipped", 32, "")
    assert opened.classes[3] == "cat"
    assert not opened.net.training
    opened.check("cretta", "moving")
    opened.check_batches(7, 2, source_data=True)
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
    with pytest.raises(OptionError, match=r"\.pt2"):
        open_model(str(tmp_path / "net.onnx"))
    (tmp_path / "net.pt2").write_bytes(b"nothing")
    with pytest.raises(StateError, match=r"torch\.export\.save"):
        open_model(str(tmp_path / "net.pt2"))


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
        ("net_opened:number", ModelError, "gave a int"),
        ("net_opened:lost", OptionError, "lost"),
        ("bad_opened:made", OptionError, "no_such_package_opened"),
        ("lost_opened:made", OptionError, str(tmp_path)),
    ):
        with pytest.raises(error, match=said):
            open_model(spec)
    assert sys.path == path


def test_a_network_of_timm(monkeypatch: pytest.MonkeyPatch) -> None:
    """timm is not a dependency: a module with its interface stands for it."""

    def create_model(name: str, *, pretrained: bool) -> nn.Module:
        if (name, pretrained) != ("resnet50.a1_in1k", True):
            raise RuntimeError(f"Unknown model ({name})")
        net = textbook.small_net()
        net.pretrained_cfg = {"mean": MEAN, "std": STD}  # type: ignore[assignment]
        return net

    monkeypatch.setitem(sys.modules, "timm", SimpleNamespace(create_model=create_model))
    net = nn.Sequential(Normalize(), textbook.small_net())
    assert_same(open_model("timm:resnet50.a1_in1k").net, net, "tent", atol=1e-6)
    assert torch.equal(
        open_model("timm:resnet50.a1_in1k", mean=(0, 0, 0), std=(1, 1, 1)).net(STREAM[0]), net[1](STREAM[0])
    )
    with pytest.raises(ModelError, match=r"Unknown model \(resnet51\)"):
        open_model("timm:resnet51")
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(OptionError, match=r"timm:resnet50 cannot be imported.*pip install timm$"):
        open_model("timm:resnet50")


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


# TorchScript.


def test_a_torchscript_file_is_refused_with_the_remedy(tmp_path: Path) -> None:
    net = textbook.small_net()
    with ignored_warnings():
        torch.jit.save(torch.jit.script(net), tmp_path / "scripted.pt")
        torch.jit.save(torch.jit.trace(net, STREAM[0]), tmp_path / "traced.pt")
    for name in ("scripted.pt", "traced.pt"):
        with pytest.raises(ModelError, match=rf"{name} is TorchScript.*torch\.export\.save\(.*module:callable"):
            open_model(tmp_path / name)


def test_compiled_networks_in_memory_are_refused_with_a_remedy_that_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    net, x = textbook.small_net(), STREAM[0]
    with ignored_warnings():
        program, scripted = exported(net, x), torch.jit.script(net)
        compiled = {"traced": torch.jit.trace(net, x), "scripted": scripted, "frozen": torch.jit.freeze(scripted)}
        torch.export.save(program, "net.pt2")
    for module in (*compiled.values(), program.module()):
        for method, options in (("tent", {}), ("cretta", {}), ("bn_adapt", {}), ("source", {"statistics": "batch"})):
            with pytest.raises(ModelError, match=r"cretta\.models\.open_model\('net\.pt2'\)\.net") as caught:
                cretta.adapt(module, method, buffer=buffer(), **options)
            assert "with learnable γ and β" not in str(caught.value)
        with ignored_warnings():
            assert torch.allclose(cretta.adapt(module, "source")(x), net(x), atol=1e-5)
    with pytest.raises(ModelError, match=r"exported program.*torch\.export\.save\(program, 'net\.pt2'\)"):
        cretta.adapt(program, "source")
    assert_same(cretta.models.open_model("net.pt2").net, net, "tent")
    with pytest.raises(ModelError, match=r"net is str; expected a torch\.nn\.Module.*cretta\.models\.open_model"):
        cretta.adapt("net.pt2", "tent")  # type: ignore[arg-type]
    # Without compiled layers, the message is about layers.
    with pytest.raises(ModelError, match=r"no normali[sz]ation layer"):
        cretta.adapt(torch.fx.symbolic_trace(nn.Sequential(nn.Flatten(), nn.Linear(3, 2))), "tent")


# Exported programs.


@pytest.mark.parametrize("name", ["free.pt2", "decomposed.pt2"])
@pytest.mark.parametrize("method", ["source", "bn_adapt", "tent", "cretta", "sar", "eata"])
def test_an_exported_program_adapts_as_the_network_does(name: str, method: str, files: Path) -> None:
    opened, net = open_model(str(files / name)), textbook.small_net()
    assert (opened.kind, opened.shape, opened.limit) == ("exported", (None, 3, 8, 8), "")
    opened.check(method, "moving")
    every: list[dict[str, Any]] = [{}, {"statistics": "moving"}, {"statistics": "mixture", "skip": "bn2"}]
    for options in every:
        if method in ("source", "bn_adapt") and "skip" in options:
            continue
        assert_same(opened.net, net, method, **options)


@pytest.mark.parametrize("name", ["mixed.pt2", "mixed_decomposed.pt2"])
@pytest.mark.parametrize("method", ["source", "bn_adapt", "tent", "cretta"])
def test_every_kind_of_layer_is_restored(name: str, method: str, files: Path) -> None:
    opened, net = open_model(str(files / name)), mixed_net()
    assert_same(opened.net, net, method, atol=2e-6)
    layers = {name for name, module in opened.net.named_modules() if "Norm" in type(module).__name__}
    assert layers == {"inner.0", "bare", "group", "layer", "flat"}
    learning = cretta.adapt(opened.net, "tent").learnable.names
    assert set(learning) == set(cretta.adapt(net, "tent").learnable.names)


def test_an_exported_program_with_normalization(files: Path) -> None:
    opened = open_model(str(files / "free.pt2"), mean=MEAN, std=STD)
    net = nn.Sequential(Normalize(), textbook.small_net())
    for method in ("source", "bn_adapt", "cretta"):
        assert_same(opened.net, net, method, atol=1e-6)


def test_a_program_for_one_size_of_batch(files: Path) -> None:
    opened = open_model(str(files / "fixed.pt2"))
    assert opened.shape == (8, 3, 8, 8)
    opened.check_batches(16, 8, source_data=False)
    x = STREAM[0]
    assert torch.equal(cretta.adapt(opened.net, "tent")(x), cretta.adapt(textbook.small_net(), "tent")(x))
    for images, size in ((17, 8), (16, 4)):
        with pytest.raises(ModelError, match=r"exactly 8, and .* not all of that size.*dynamic_shapes"):
            opened.check_batches(images, size, source_data=False)
    with pytest.raises(ModelError, match="source images are read in batches of other sizes"):
        opened.check_batches(16, 8, source_data=True)
    with pytest.raises(BatchError, match=r"\(8, 3, 8, 8\) and got \(5, 3, 8, 8\).*dynamic_shapes"):
        opened.net(STREAM[1])
    with pytest.raises(BatchError, match=r"\(any, 3, 8, 8\) and got \(2, 3, 9, 9\)"):
        cretta.adapt(open_model(str(files / "free.pt2")).net, "source")(torch.rand(2, 3, 9, 9))


def test_programs_that_cannot_be_used(files: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"exported in train mode.*net\.eval\(\)"):
        open_model(str(files / "training.pt2"))
    with pytest.raises(ModelError, match="takes 2 inputs and returns 2 tensors"):
        open_model(str(files / "pair.pt2"))
    for name, operation in (("instance", "instance_norm"), ("computed", "batch_norm")):
        opened = open_model(str(files / f"{name}.pt2"))
        assert torch.isfinite(cretta.adapt(opened.net, "source")(STREAM[0])).all()
        opened.check("source", "running")
        with pytest.raises(ModelError, match=rf"{operation}.*Use 'source'; or give the network itself"):
            opened.check("tent")
        with pytest.raises(ModelError, match=rf"{operation}.*Use 'running'; or give the network itself"):
            opened.check("source", "batch")


def test_a_wide_resnet_through_an_export(tmp_path: Path) -> None:
    net, x = cretta.models.build("wrn-10-1").eval(), torch.rand(4, 3, 32, 32)
    with ignored_warnings():
        torch.export.save(exported(net, x), tmp_path / "wrn.pt2")
    opened = open_model(str(tmp_path / "wrn.pt2"))
    one, other = (cretta.adapt(module, "tent", lr=1e-2, fuse=False) for module in (opened.net, net))
    rewritten = cretta.adapt(net, "tent", lr=1e-2)
    for batch in torch.rand(2, 4, 3, 32, 32):
        logits = one(batch)
        assert torch.equal(logits, other(batch))
        torch.testing.assert_close(logits, rewritten(batch), rtol=1e-4, atol=1e-4)
    # The names are those of the network, so that a state of one fits the other.
    assert set(one.learnable.names) == set(other.learnable.names)


def test_without_limits_every_check_passes() -> None:
    opened = OpenedModel(textbook.small_net(), "python")
    opened.check("tent")
    opened.check_batches(3, 2, source_data=True)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", ["free.pt2", "mixed.pt2"])
def test_on_a_gpu(name: str, files: Path) -> None:
    opened = open_model(str(files / name), device="cuda", mean=MEAN, std=STD)
    cpu = open_model(str(files / name), mean=MEAN, std=STD)
    gpu_model, cpu_model = cretta.adapt(opened.net, "source"), cretta.adapt(cpu.net, "source")
    assert torch.allclose(gpu_model(STREAM[0].cuda()).cpu(), cpu_model(STREAM[0]), atol=1e-3)
