import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from cretta.data.cifar import embedded
from cretta.errors import OptionError, StateError
from cretta.models import ResNet, WideResNet, build, load, load_checkpoint, names, weights

NAME = "wrn-40-2-cifar10"


def first_images(count: int) -> tuple[Tensor, Tensor]:
    dataset = embedded("test")
    images = torch.from_numpy(dataset.images[:count]).permute(0, 3, 1, 2).float() / 255
    return images, torch.from_numpy(dataset.labels[:count])


def shaken(network: WideResNet) -> WideResNet:
    with torch.no_grad():
        for value in network.state_dict().values():
            if value.is_floating_point():
                value.copy_(torch.randn_like(value).abs() * 0.2 + 0.05)
    return network.eval()


def logits(network: nn.Module) -> Tensor:
    x = torch.rand(3, 3, 32, 32, generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        out: Tensor = network(x)
    return out


@pytest.fixture
def source() -> WideResNet:
    torch.manual_seed(3)
    return shaken(WideResNet(10, 1, classes=5))


@pytest.fixture
def target() -> WideResNet:
    return WideResNet(10, 1, classes=5).eval()


@pytest.fixture
def shipped_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    copy = tmp_path / "shipped"
    shutil.copytree(str(weights.SHIPPED), copy)
    monkeypatch.setattr(weights, "SHIPPED", copy)
    return copy


# The shipped model


def test_shipped_model_is_accurate_on_the_embedded_images() -> None:
    network = load(NAME)
    assert not network.training
    assert all(value.dtype == torch.float32 for value in network.parameters())
    images, labels = first_images(200)
    network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    with torch.no_grad():
        predictions = network(images).argmax(1)
    assert (predictions == labels).float().mean() > 0.85


def test_shipped_file_is_half_precision_except_for_the_norm_layers() -> None:
    content = (weights.SHIPPED / f"{NAME}.safetensors").read_bytes()
    assert 4.4e6 < len(content) < 4.7e6
    for key, value in safetensors.torch.load(content).items():
        assert value.dtype == (torch.float16 if value.dim() > 1 else torch.float32), key


def test_loading_draws_no_random_numbers() -> None:
    torch.manual_seed(0)
    expected = torch.rand(1)
    torch.manual_seed(0)
    load(NAME)
    assert torch.equal(torch.rand(1), expected)


def test_names_can_be_loaded_and_others_say_which_can() -> None:
    assert NAME in names()
    with pytest.raises(OptionError, match=f"'wrn-40-2'.*{NAME}.*build"):
        load("wrn-40-2")


def test_a_changed_byte_is_noticed(shipped_copy: Path) -> None:
    file = shipped_copy / f"{NAME}.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(StateError, match=r"damaged.*Reinstall"):
        load(NAME)


def test_a_lost_file_is_noticed(shipped_copy: Path) -> None:
    (shipped_copy / f"{NAME}.safetensors").unlink()
    with pytest.raises(StateError, match="reinstall"):
        load(NAME)
    (shipped_copy / "index.json").write_text("{")
    with pytest.raises(StateError, match="reinstall"):
        names()


def test_the_index_is_what_the_loader_reads(shipped_copy: Path) -> None:
    index = json.loads((shipped_copy / "index.json").read_text("utf-8"))
    (shipped_copy / "index.json").write_text(json.dumps({"renamed": index[NAME]}))
    assert names() == ("renamed",)
    assert load("renamed").classes == 10


def test_every_shipped_model_has_a_card() -> None:
    for name in names():
        entry = weights.card(name)
        assert len(entry["class_names"]) == load(name).classes
        for field in ("license", "trained_on", "recipe", "input", "side", "scores"):
            assert entry[field], (name, field)


# Architectures


def test_build_reads_depth_width_and_classes() -> None:
    wide = build("wrn-16-4", classes=100)
    assert isinstance(wide, WideResNet)
    assert (wide.depth, wide.width, wide.fc.weight.shape) == (16, 4, (100, 256))
    plain = build("resnet-26")
    assert isinstance(plain, ResNet)
    assert (plain.depth, plain.width, plain.norm, plain.classes) == (26, 16, "batch", 10)
    wider = build("resnet-8-32", norm="group", mean=(0.5,) * 3, std=(0.5,) * 3)
    assert isinstance(wider, ResNet)
    assert (wider.width, wider.norm) == (32, "group")
    assert wider.mean is not None


@pytest.mark.parametrize("architecture", ["wrn-40", "wrn-40-2-cifar10", "resnet", "vit-b", "resnet-26-", " wrn-10-1"])
def test_build_refuses_what_it_does_not_know(architecture: str) -> None:
    with pytest.raises(OptionError, match=r"wrn-depth-width.*resnet-depth"):
        build(architecture)


def test_build_passes_on_what_a_network_refuses() -> None:
    with pytest.raises(OptionError, match=r"depth=12"):
        build("wrn-12-2")
    with pytest.raises(OptionError, match="norm='group'"):
        build("wrn-10-1", norm="group")


# Checkpoints from elsewhere


def prefixed(state: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {prefix + key: value for key, value in state.items()}


FORMS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "plain": lambda state: state,
    "data parallel": lambda state: {"epoch": 99, "state_dict": prefixed(state, "module."), "best_acc": 0.9},
    "architecture beside": lambda state: {"model": "wrn", "state_dict": state, "optimizer": {"state": {}}},
    "wrapped": lambda state: {"model_state": prefixed(state, "model.")},
    "both prefixes": lambda state: {"last": {"model_state_dict": prefixed(state, "module.model.")}},
    "compiled": lambda state: prefixed(state, "_orig_mod."),
    "sub block": lambda state: state | {f"sub_{key}": value for key, value in state.items() if "block1" in key},
    "no counters": lambda state: {key: value for key, value in state.items() if "num_batches" not in key},
    "half": lambda state: {key: value.half().float() for key, value in state.items()},
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("suffix", [None, ".pt", ".pth.tar"])
def test_public_forms_load_identically(
    form: str, suffix: str | None, source: WideResNet, target: WideResNet, tmp_path: Path
) -> None:
    if form == "half":
        source.half().float()
    checkpoint: Any = FORMS[form](dict(source.state_dict()))
    if suffix is not None:
        torch.save(checkpoint, tmp_path / f"checkpoint{suffix}")
        checkpoint = tmp_path / f"checkpoint{suffix}"
    assert load_checkpoint(checkpoint, target) is target
    assert torch.equal(logits(target), logits(source))
    assert target.training is False


def test_safetensors_load_identically(source: WideResNet, target: WideResNet, tmp_path: Path) -> None:
    safetensors.torch.save_file(prefixed(source.state_dict(), "module."), tmp_path / "w.safetensors")
    load_checkpoint(str(tmp_path / "w.safetensors"), target)
    assert torch.equal(logits(target), logits(source))


def test_a_resnet_takes_checkpoints_too(tmp_path: Path) -> None:
    source, target = ResNet(8).eval(), ResNet(8).eval()
    torch.save({"state_dict": prefixed(source.state_dict(), "module.")}, tmp_path / "resnet.pt")
    assert torch.equal(logits(load_checkpoint(tmp_path / "resnet.pt", target)), logits(source))


@pytest.mark.parametrize(("mean", "std"), [("mu", "sigma"), ("mean", "std"), ("normalize.mean", "normalize.std")])
@pytest.mark.parametrize("shape", [(1, 3, 1, 1), (3,), (3, 1, 1)])
def test_normalization_in_the_checkpoint_becomes_the_models(
    mean: str, std: str, shape: tuple[int, ...], source: WideResNet, target: WideResNet
) -> None:
    values = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0.4, 0.5, 0.6])
    entries = {mean: values[0].view(shape), std: values[1].view(shape)}
    load_checkpoint({"state_dict": prefixed(source.state_dict() | entries, "module.")}, target)
    assert not torch.equal(logits(target), logits(source))
    source.set_normalization(*values)
    assert torch.equal(logits(target), logits(source))


def test_without_normalization_the_model_keeps_its_own(source: WideResNet) -> None:
    target = WideResNet(10, 1, classes=5, mean=(0.5,) * 3, std=(0.5,) * 3).eval()
    load_checkpoint(source.state_dict(), target)
    source.set_normalization((0.5,) * 3, (0.5,) * 3)
    assert torch.equal(logits(target), logits(source))


def without(key: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda state: {name: value for name, value in state.items() if name != key}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without("block2.layer.0.bn2.running_var"), r"1 missing \(block2\.layer\.0\.bn2\.running_var\)"),
        (lambda state: state | {"extra.weight": torch.zeros(1)}, r"1 not known here \(extra\.weight\)"),
        (lambda state: state | {"fc.bias": torch.zeros(9)}, r"fc\.bias \(9,\) instead of \(5,\)"),
        (lambda state: state | {"fc.bias": 3}, r"fc\.bias a int instead of \(5,\)"),
        (
            lambda state: state | {"module.fc.bias": torch.zeros(5)},
            r"fc\.bias twice \(also as module\.fc\.bias\)",
        ),
        (lambda state: state | {"mu": torch.zeros(3)}, "normalization.*both"),
        (lambda state: state | {"mu": torch.zeros(3), "sigma": torch.zeros(3)}, "normalization.*above 0"),
        (lambda state: state | {"mu": torch.zeros(2), "sigma": torch.ones(3)}, "normalization.*expected 3"),
        (lambda state: state | {"mu": "a", "sigma": "b"}, "normalization"),
        (lambda state: {}, r"missing \(conv1\.weight, .*, \.\.\.\)"),
        (lambda state: dict(WideResNet(16, 1, classes=5).state_dict()), "not known here"),
        (lambda state: dict(WideResNet(10, 2, classes=5).state_dict()), "of another shape"),
    ],
)
def test_what_does_not_fit_is_named_and_changes_nothing(
    change: Callable[[dict[str, Any]], dict[str, Any]], message: str, source: WideResNet, target: WideResNet
) -> None:
    before = {key: value.clone() for key, value in target.state_dict().items()}
    with pytest.raises(StateError, match=message):
        load_checkpoint(change(dict(source.state_dict())), target)
    after = target.state_dict()
    assert after.keys() == before.keys()
    assert all(torch.equal(after[key], value) for key, value in before.items())


def test_a_file_that_is_no_checkpoint_is_refused(target: WideResNet, tmp_path: Path) -> None:
    with pytest.raises(StateError, match="no checkpoint at"):
        load_checkpoint(tmp_path / "absent.pt", target)
    for suffix in (".pt", ".safetensors"):
        page = tmp_path / f"page{suffix}"
        page.write_text("\n<!DOCTYPE html><html>Sign in</html>")
        with pytest.raises(StateError, match="web page"):
            load_checkpoint(page, target)
    torch.save([1, 2], tmp_path / "list.pt")
    with pytest.raises(StateError, match="holds a list"):
        load_checkpoint(tmp_path / "list.pt", target)


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_a_cut_file_is_refused(suffix: str, source: WideResNet, target: WideResNet, tmp_path: Path) -> None:
    file = tmp_path / f"cut{suffix}"
    if suffix == ".pt":
        torch.save(source.state_dict(), file)
    else:
        safetensors.torch.save_file(source.state_dict(), file)
    content = file.read_bytes()
    for length in (0, 10, len(content) // 2):
        file.write_bytes(content[:length])
        with pytest.raises(StateError, match="damaged"):
            load_checkpoint(file, target)


def test_a_pickled_model_is_not_executed(source: WideResNet, target: WideResNet, tmp_path: Path) -> None:
    for content in ({"state_dict": source.state_dict(), "model": source}, source):
        torch.save(content, tmp_path / "module.pt")
        with pytest.raises(
            StateError, match=r"pickled network .*WideResNet\).*state_dict\(\).*module:callable"
        ) as caught:
            load_checkpoint(tmp_path / "module.pt", target)
        assert "\x1b" not in str(caught.value)


def test_other_networks_are_refused() -> None:
    with pytest.raises(OptionError, match="Linear"):
        load_checkpoint({}, nn.Linear(1, 1))  # type: ignore[type-var]
