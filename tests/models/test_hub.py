"""Models of other libraries. timm and torchvision are not dependencies: modules with their interface stand for them."""

from __future__ import annotations

import importlib
import pickle
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cretta
import textbook
from cretta.errors import ModelError, OptionError
from cretta.models import ResNet, WideResNet, hub, load, open_model

MEAN, STD = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
X = textbook.batches((8,))[0]


def normalized(x: Tensor) -> Tensor:
    return (x - torch.tensor(MEAN).view(1, 3, 1, 1)) / torch.tensor(STD).view(1, 3, 1, 1)


@pytest.fixture
def timm(monkeypatch: pytest.MonkeyPatch) -> None:
    def create_model(name: str, *, pretrained: bool) -> nn.Module:
        if (name, pretrained) != ("resnet50.a1_in1k", True):
            raise RuntimeError(f"Unknown model ({name})")
        net = textbook.small_net().train()
        net.pretrained_cfg = {"mean": MEAN, "std": STD, "input_size": (3, 8, 8)}  # type: ignore[assignment]
        return net

    monkeypatch.setitem(sys.modules, "timm", SimpleNamespace(create_model=create_model))


@pytest.fixture
def torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    class Weights:
        meta = {"categories": list("abcd")}  # noqa: RUF012

        def transforms(self) -> Any:
            return SimpleNamespace(mean=MEAN, std=STD, crop_size=[8])

    weights = Weights()

    def get_model(name: str, weights: Weights) -> nn.Module:
        assert isinstance(weights, Weights)
        return textbook.small_net()

    def get_model_weights(name: str) -> Any:
        if name != "resnet50":
            raise ValueError(f"Unknown model {name}")
        return SimpleNamespace(DEFAULT=weights)

    models = SimpleNamespace(get_model=get_model, get_model_weights=get_model_weights)
    monkeypatch.setitem(sys.modules, "torchvision", SimpleNamespace(models=models))


@pytest.mark.usefixtures("timm")
def test_a_network_of_timm_takes_images_in_0_to_1() -> None:
    net, expected = load("timm:resnet50.a1_in1k"), textbook.small_net()(normalized(X))
    assert not net.training
    assert torch.equal(net(X), expected)
    opened = open_model("timm:resnet50.a1_in1k")
    assert (opened.kind, opened.side, opened.classes) == ("pretrained", 8, ())
    assert torch.equal(
        open_model("timm:resnet50.a1_in1k", mean=(0, 0, 0), std=(1, 1, 1)).net(X), textbook.small_net()(X)
    )
    assert torch.isfinite(cretta.adapt(net, "tent")(X)).all()
    with pytest.raises(ModelError, match=r"timm:resnet51 cannot be loaded by timm \(RuntimeError: Unknown model"):
        load("timm:resnet51")


@pytest.mark.usefixtures("torchvision")
def test_a_network_of_torchvision_takes_images_in_0_to_1() -> None:
    opened = open_model("torchvision:resnet50")
    assert torch.equal(opened.net(X), textbook.small_net()(normalized(X)))
    assert (opened.kind, opened.side, opened.classes) == ("pretrained", 8, ("a", "b", "c", "d"))
    with pytest.raises(ModelError, match=r"torchvision:resnet51 cannot be loaded by torchvision \(ValueError: Unknown"):
        load("torchvision:resnet51")


@pytest.mark.parametrize(("prefix", "package"), hub.LIBRARIES.items())
def test_a_missing_library_is_named(prefix: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(OptionError, match=rf"^{prefix}:net: {package} cannot be imported .* pip install {package}$"):
        load(f"{prefix}:net")


@pytest.fixture(scope="module")
def vision_transformer(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, Path]:
    """A tiny Hugging Face model, in memory and in a folder, with the normalization that its processor states."""
    transformers = pytest.importorskip("transformers", reason="pip install transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    labels = {0: "cat", 1: "dog", 2: "frog"}
    net = transformers.ViTForImageClassification(
        transformers.ViTConfig(**sizes, image_size=8, patch_size=4, id2label=labels)
    ).eval()
    folder = tmp_path_factory.mktemp("vit")
    net.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(
        f'{{"image_mean": {list(MEAN)}, "image_std": {list(STD)}, "do_normalize": true, '
        '"size": {"height": 8, "width": 8}}'
    )
    return net, folder


@pytest.mark.slow
def test_a_hugging_face_classifier_takes_images_in_0_to_1(vision_transformer: tuple[nn.Module, Path]) -> None:
    net, folder = vision_transformer
    opened = open_model(f"hf:{folder}")
    assert (opened.kind, opened.classes, opened.side) == ("pretrained", ("cat", "dog", "frog"), 8)
    x = torch.rand(4, 3, 8, 8)
    assert torch.allclose(opened.net(x).logits, net(normalized(x)).logits, atol=1e-6)
    assert torch.equal(load(f"hf:{folder}")(x).logits, opened.net(x).logits)
    model = cretta.adapt(opened.net, "tent", lr=1e-2)
    before = model.predict(x)
    assert torch.allclose(model(x), before, atol=1e-6)
    assert not torch.allclose(model.predict(x), before, atol=1e-4), "LayerNorm learns"
    with pytest.raises(ModelError, match="cannot be loaded by transformers"):
        load(f"hf:{folder / 'missing'}")


@pytest.mark.parametrize(
    "net",
    [
        WideResNet(10, 1, 4),
        WideResNet(10, 1, 4, MEAN, STD, dropout=0.1),
        ResNet(8, 3, 8, "group"),
    ],
    ids=["wrn", "wrn-normalized", "resnet-group"],
)
def test_networks_go_to_hugging_face_folders_and_back(net: WideResNet | ResNet, tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub", reason="pip install huggingface_hub")
    for module in net.modules():
        if isinstance(module, nn.BatchNorm2d):
            assert module.running_mean is not None
            nn.init.uniform_(module.running_mean)
    net.eval().save_pretrained(tmp_path)
    assert {"config.json", "model.safetensors"} <= {path.name for path in tmp_path.iterdir()}
    random = torch.random.get_rng_state()
    restored = type(net).from_pretrained(tmp_path)
    assert torch.equal(torch.random.get_rng_state(), random)
    x = torch.rand(2, 3, 16, 16)
    assert type(restored) is type(net)
    assert torch.equal(restored(x), net(x))
    assert torch.equal(pickle.loads(pickle.dumps(restored))(x), net(x))
    assert str(restored) == str(net)
    assert torch.isfinite(cretta.adapt(restored, "tent")(x)).all()


def test_weights_of_another_shape_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub", reason="pip install huggingface_hub")
    WideResNet(10, 1, 4).save_pretrained(tmp_path)
    with pytest.raises(RuntimeError, match="size mismatch"):
        WideResNet.from_pretrained(tmp_path, classes=5)


def test_the_hub_is_imported_only_where_it_is_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    importlib.reload(hub)
    with pytest.raises(OptionError, match=r"huggingface_hub cannot be imported .* pip install huggingface_hub"):
        WideResNet(10, 1, 4).save_pretrained(tmp_path / "folder")
    assert not (tmp_path / "folder").exists()
