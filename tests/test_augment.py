from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from cretta import SourceBuffer, augment
from cretta.errors import OptionError

COUNT = 600


def pictures(count: int = COUNT, height: int = 32, width: int = 32, channels: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(count + height)
    return torch.rand(count, channels, height, width, generator=generator)


def augmented(name: str, images: Tensor, *seed: int) -> Tensor:
    made = augment.by_name(name, *images.shape[-2:])
    assert made is not None
    return augment.apply(made, images, *seed)


def changed(before: Tensor, after: Tensor) -> Tensor:
    return (before != after).flatten(1).any(1)


def test_none_is_the_identity() -> None:
    assert augment.by_name("none", 32, 32) is None
    images = torch.randn(5, 3, 8, 8)
    assert torch.equal(SourceBuffer(images, augment="none").batch(0, 5), images)


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    with pytest.raises(OptionError, match=r"'rotat'.*Did you mean 'rotate'\?.*cifar100, none, rotate"):
        augment.by_name("rotat", 32, 32)


def test_rotate_turns_every_image() -> None:
    images = pictures()
    after = augmented("rotate", images, 0)
    assert changed(images, after).all()
    # Of uniform noise, an unrelated image is off by 1/3 on average, the same image by 0.
    assert 0.15 < float((images - after).abs().mean()) < 0.34


def test_rotate_keeps_the_centre_and_blackens_the_corners() -> None:
    images = torch.full((COUNT, 1, 33, 33), 0.5)
    images[:, :, 16, 16] = 1.0
    after = augmented("rotate", images, 1)
    torch.testing.assert_close(after[:, :, 16, 16], images[:, :, 16, 16], atol=1e-4, rtol=0)
    corners = after[:, :, [0, 0, -1, -1], [0, -1, 0, -1]].squeeze(1)
    # At a = 3° the corner's source lies 16·(cos a + sin a) - 16 > 0.8 pixels outside; at smaller angles it is gray yet.
    assert (corners == 0).all(1).float().mean() > 0.7
    assert torch.equal(after[:, :, 12:21, 12:21] > 0.4, torch.ones(COUNT, 1, 9, 9, dtype=torch.bool))


def angles(after: Tensor) -> Tensor:
    """Degrees by which a horizontal line through the center was turned, from the line's second moments."""
    grid = torch.arange(33.0) - 16
    y, x = torch.meshgrid(grid, grid, indexing="ij")
    inner = (x.square() + y.square() < 15**2) * after.squeeze(1)
    mass = inner.sum((1, 2))
    xx, yy, xy = ((inner * m).sum((1, 2)) / mass for m in (x * x, y * y, x * y))
    return torch.rad2deg(0.5 * torch.atan2(2 * xy, xx - yy))


def test_rotate_draws_angles_evenly_on_both_sides() -> None:
    line = torch.zeros(COUNT, 1, 33, 33)
    line[:, :, 15:18] = 1.0
    found = angles(augmented("rotate", line, 2))
    assert float(found.abs().max()) <= augment.ROTATION + 0.5
    assert float(found.min()) < -0.9 * augment.ROTATION
    assert float(found.max()) > 0.9 * augment.ROTATION
    # Uniform on ±15°: mean 0 with standard error 8.7 / √600 = 0.35; standard deviation 15 / √3 = 8.7.
    assert abs(float(found.mean())) < 1.5
    assert float(found.std()) == pytest.approx(augment.ROTATION / math.sqrt(3), rel=0.1)


@pytest.mark.parametrize("seed", range(4))
def test_cifar100_leaves_one_image_in_three_alone(seed: int) -> None:
    images = pictures(1500, 16, 16)
    share = float(changed(images, augmented("cifar100", images, seed)).float().mean())
    # Five independent transformations, each of one image in five: 1 - 0.8⁵ = 67 %, standard error 1.2 %.
    expected = 1 - 0.8**5
    assert share == pytest.approx(expected, abs=4 * math.sqrt(expected * (1 - expected) / 1500) + 0.005)


def test_cifar100_flips_one_image_in_five() -> None:
    images = pictures()
    after = augmented("cifar100", images, 4)
    flipped = ~changed(images.flip(3), after)
    # A flip and nothing else: 0.2 · 0.8⁴ = 8.2 %, standard error 1.1 %.
    assert float(flipped.float().mean()) == pytest.approx(0.2 * 0.8**4, abs=0.045)


@pytest.mark.parametrize("name", ["rotate", "cifar100"])
@pytest.mark.parametrize("shape", [(32, 32, 3), (8, 8, 1), (64, 64, 3), (24, 32, 3), (40, 16, 3), (5, 5, 4)])
def test_shape_type_and_range_are_kept(name: str, shape: tuple[int, int, int]) -> None:
    height, width, channels = shape
    images = pictures(100, height, width, channels).round(decimals=1)
    for seed in range(12):
        after = SourceBuffer(images, augment=name, seed=seed).batch(0, 100)
        assert after.shape == images.shape
        assert after.dtype == torch.float32
        assert float(after.min()) >= 0
        assert float(after.max()) <= 1 + 1e-6
        assert changed(images, after).any()


@pytest.mark.parametrize("name", ["rotate", "cifar100"])
def test_the_seed_alone_decides(name: str) -> None:
    images = pictures(64)
    torch.manual_seed(1)
    first = augmented(name, images, 3, 0, 1)
    torch.manual_seed(2)
    assert torch.equal(augmented(name, images, 3, 0, 1), first)
    for other in ((3, 0, 2), (3, 1, 0), (4, 0, 1), (0, 3, 1), (30, 1, 0), (3, 1)):
        assert changed(augmented(name, images, *other), first).float().mean() > 0.5


@pytest.mark.parametrize("name", ["rotate", "cifar100"])
def test_images_of_a_batch_are_augmented_apart(name: str) -> None:
    one = pictures(1).repeat(64, 1, 1, 1)
    distinct = len(augmented(name, one, 0).unique(dim=0))
    assert distinct > (60 if name == "rotate" else 25)


def test_the_given_images_stay_as_they_are() -> None:
    images = pictures(64)
    before = images.clone()
    for name in ("rotate", "cifar100"):
        augmented(name, images, 0)
    assert torch.equal(images, before)


def test_augmented_images_carry_no_gradient() -> None:
    weight = torch.ones(1, requires_grad=True)
    assert not augment.apply(lambda x: x * weight, pictures(2), 0).requires_grad


def test_a_wrong_shape_is_said() -> None:
    with pytest.raises(OptionError, match=r"batch of shape \(2, 3, 8, 8\), got \(2, 3, 4, 8\)"):
        augment.apply(lambda x: x[:, :, ::2], torch.zeros(2, 3, 8, 8), 0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", ["rotate", "cifar100"])
def test_kept_augmentations_of_other_precisions(name: str, dtype: torch.dtype) -> None:
    images = torch.randn(40, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    found = SourceBuffer(images.to(dtype), augment=name).batch(0, 40)
    assert found.dtype == dtype
    # Few bits place a pixel a little aside: that is all.
    single = SourceBuffer(images, augment=name).batch(0, 40)
    assert float((found - single).abs().mean()) < 0.02
