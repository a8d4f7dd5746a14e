from __future__ import annotations

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torch import Tensor

from cretta.data import embedded
from cretta.training import augmix as augmix_module
from cretta.training.augmix import (
    AUTOCONTRAST,
    EQUALIZE,
    OPERATIONS,
    POSTERIZE,
    ROTATE,
    SHEAR_X,
    SHEAR_Y,
    SOLARIZE,
    TRANSLATE_X,
    apply,
    augmix,
)


def images(count: int) -> Tensor:
    return torch.from_numpy(embedded("test").images[:count]).permute(0, 3, 1, 2).contiguous()


def is_uniform(values: Tensor) -> bool:
    """Kolmogorov and Smirnov's test at one per cent."""
    steps = torch.arange(len(values) + 1) / len(values)
    ordered = values.sort().values
    return bool(torch.maximum(steps[1:] - ordered, ordered - steps[:-1]).max() < 1.63 / len(values) ** 0.5)


def by_pillow(image: Tensor, operation: int, level: float, sign: float) -> Tensor:
    """The published operations, one image at a time."""
    picture = Image.fromarray(image.permute(1, 2, 0).numpy())
    side = picture.size[0]

    def moved(*matrix: float) -> Image.Image:
        return picture.transform((side, side), Image.Transform.AFFINE, matrix, resample=Image.Resampling.BILINEAR)

    shear, shift = level * 0.3 / 10 * sign, int(level * (side / 3) / 10) * sign
    if operation == AUTOCONTRAST:
        done = ImageOps.autocontrast(picture)
    elif operation == EQUALIZE:
        done = ImageOps.equalize(picture)
    elif operation == POSTERIZE:
        done = ImageOps.posterize(picture, 4 - int(level * 4 / 10))
    elif operation == SOLARIZE:
        done = ImageOps.solarize(picture, 256 - int(level * 256 / 10))
    elif operation == ROTATE:
        done = picture.rotate(int(level * 30 / 10) * sign, resample=Image.Resampling.BILINEAR)
    elif operation == SHEAR_X:
        done = moved(1, shear, 0, 0, 1, 0)
    elif operation == SHEAR_Y:
        done = moved(1, 0, 0, shear, 1, 0)
    elif operation == TRANSLATE_X:
        done = moved(1, 0, shift, 0, 1, 0)
    else:
        done = moved(1, 0, 0, 0, 1, shift)
    return torch.from_numpy(np.array(done)).permute(2, 0, 1)


@pytest.mark.parametrize("operation", range(OPERATIONS))
@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_every_operation_is_pillows(operation: int, sign: float) -> None:
    given = images(40)
    levels = torch.linspace(0.1, 9.9, 40)
    found = apply(given, torch.full((40,), operation), levels, torch.full((40,), sign))
    expected = torch.stack(
        [by_pillow(x, operation, float(level), sign) for x, level in zip(given, levels, strict=True)]
    )
    off = (found.int() - expected.int()).abs()
    # Pillow rounds positions to 1/65536 of a pixel: a pixel right on the border may fall on the other side of it.
    assert (off <= 1).float().mean() > (0.999 if operation >= ROTATE else 0.9999999)
    if operation not in (AUTOCONTRAST, EQUALIZE):
        assert not torch.equal(found, given)


def test_operations_go_to_their_own_images() -> None:
    given = images(OPERATIONS)
    levels, signs = torch.full((OPERATIONS,), 5.0), torch.ones(OPERATIONS)
    together = apply(given, torch.arange(OPERATIONS), levels, signs)
    for operation in range(OPERATIONS):
        one = slice(operation, operation + 1)
        alone = apply(given[one], torch.tensor([operation]), levels[one], signs[one])
        assert (together[one].int() - alone.int()).abs().max() <= 1


def test_images_of_one_grey_stay_as_they_are_under_the_tables_of_contrast() -> None:
    gray = torch.full((2, 3, 8, 8), 77, dtype=torch.uint8)
    for operation in (AUTOCONTRAST, EQUALIZE):
        assert torch.equal(apply(gray, torch.full((2,), operation), torch.ones(2), torch.ones(2)), gray)


def test_a_mixture_has_the_laws_of_the_paper(monkeypatch: pytest.MonkeyPatch) -> None:
    """With operations that blacken, a white image shows 1 − m; with ones that do nothing, weights sum to 1."""
    white = torch.full((2000, 3, 4, 4), 255, dtype=torch.uint8)
    going: list[int] = []
    levels: list[Tensor] = []

    def blacken(images: Tensor, operations: Tensor, level: Tensor, signs: Tensor) -> Tensor:
        going.append(len(images))
        levels.append(level)
        return torch.zeros_like(images)

    monkeypatch.setattr(augmix_module, "apply", blacken)
    share = 1 - augmix(white, torch.Generator().manual_seed(0))[:, 0, 0, 0]
    assert is_uniform(share)
    # Chains of one, two and three operations are equally likely.
    assert going[0] == 6000
    assert going[1] == pytest.approx(4000, abs=120)
    assert going[2] == pytest.approx(2000, abs=120)
    assert is_uniform((levels[0] - 0.1) / 2.9)
    assert not is_uniform(levels[0] / 3.1)

    monkeypatch.setattr(augmix_module, "apply", lambda images, *_: images)
    same = augmix(images(50), torch.Generator().manual_seed(0))
    torch.testing.assert_close(same, images(50) / 255, rtol=0, atol=1e-6)

    def mark(images: Tensor, *_: Tensor) -> Tensor:  # the first of the three chains is black
        marked = images.clone()
        if len(images) == 6000:
            marked[::3] = 0
        return marked

    monkeypatch.setattr(augmix_module, "apply", mark)
    product = 1 - augmix(white, torch.Generator().manual_seed(2))[:, 0, 0, 0]
    # m w₁ with w₁ ~ Beta(1, 2): mean 1/2 · 1/3, mean square 1/3 · 1/6.
    assert float(product.mean()) == pytest.approx(1 / 6, abs=0.01)
    assert float(product.square().mean()) == pytest.approx(1 / 18, abs=0.006)


def test_images_are_mixed_on_their_own_and_by_the_generator_alone() -> None:
    given = images(64)
    first = augmix(given, torch.Generator().manual_seed(3))
    assert torch.equal(first, augmix(given, torch.Generator().manual_seed(3)))
    assert not torch.equal(first, augmix(given, torch.Generator().manual_seed(4)))
    assert first.min() >= 0
    assert first.max() <= 1
    same = given[:1].expand(200, -1, -1, -1).contiguous()
    varied = augmix(same, torch.Generator().manual_seed(0))
    assert len(torch.unique(varied.flatten(1), dim=0)) == 200
    # m ~ U(0, 1): the mean distance from the image is half of that of the chains alone.
    assert 0.01 < float((varied - same.float() / 255).abs().mean()) < 0.15
