import zlib
from importlib import metadata
from io import BytesIO

import corruption_reference as reference
import numpy as np
import pytest
import torch
from corruption_reference import Independent, stored
from numpy.typing import NDArray
from PIL import Image

from cretta.data.corruptions import CORRUPTIONS, PARAMETER_SETS, VALIDATION_CORRUPTIONS, corrupt, photographs
from cretta.data.corruptions.blur import shuffle_sources
from cretta.data.corruptions.draws import Draws
from cretta.data.corruptions.spatter import _distance, _edges
from cretta.errors import BatchError, OptionError

Pixels = NDArray[np.uint8]


def _frost_is_there() -> bool:
    try:
        return bool(metadata.files("imagecorruptions"))
    except metadata.PackageNotFoundError:
        return False


needs_frost = pytest.mark.skipif(
    not _frost_is_there(), reason='the frost photographs are not installed: pip install "cretta[data]"'
)
ALL = [
    pytest.param(name, marks=needs_frost) if name == "frost" else name
    for name in (*CORRUPTIONS, *VALIDATION_CORRUPTIONS)
]
DETERMINISTIC = (
    "defocus_blur",
    "zoom_blur",
    "brightness",
    "contrast",
    "pixelate",
    "gaussian_blur",
    "saturate",
)
RANDOM = (
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "speckle_noise",
    "glass_blur",
    "motion_blur",
    "snow",
    "fog",
    "elastic_transform",
)


def natural(count: int, height: int = 32, width: int = 32, seed: int = 0) -> Pixels:
    """Colorful images with the falling spectrum of photographs, from black to white, some of it flat."""
    random = np.random.default_rng(seed)
    frequency = np.hypot(np.fft.fftfreq(height)[:, None], np.fft.rfftfreq(width)) + 1 / max(height, width)
    noise = random.normal(size=(count, 3, height, width))
    images = np.fft.irfft2(np.fft.rfft2(noise) / frequency, s=(height, width))
    images = images / images.std(axis=(1, 2, 3), keepdims=True) * 60 + 120
    images[:, :, : height // 8, : width // 8] = 0
    images[:, :, : height // 8, -width // 8 :] = 130
    return np.ascontiguousarray(np.clip(images, 0, 255).astype(np.uint8).transpose(0, 2, 3, 1))


def expected(name: str, image: Pixels, values: tuple[float, ...], source: reference.Source) -> Pixels:
    return stored(getattr(reference, name)(image / 255, values, source))


def levels(one: Pixels, other: Pixels) -> NDArray[np.int64]:
    return np.asarray(np.abs(one.astype(np.int64) - other))


@pytest.mark.parametrize("severity", range(1, 6))
@pytest.mark.parametrize("name", DETERMINISTIC)
def test_deterministic_corruptions_agree_with_the_slow_ones(name: str, severity: int) -> None:
    images = natural(2, 32, 40)
    for image, corrupted in zip(images, corrupt(images, name, severity), strict=True):
        values = PARAMETER_SETS["cifar"][name][severity - 1]
        assert levels(corrupted, expected(name, image, values, Independent(0))).max() <= 1


@pytest.mark.parametrize(("name", "severity"), [("defocus_blur", 5), ("zoom_blur", 3), ("gaussian_blur", 5)])
def test_strong_settings_of_large_images_agree_with_the_slow_ones(name: str, severity: int) -> None:
    images = natural(1, 50, 70)
    corrupted = corrupt(images, name, severity, parameters="imagenet")[0]
    values = PARAMETER_SETS["imagenet"][name][severity - 1]
    assert levels(corrupted, expected(name, images[0], values, Independent(0))).max() <= 1


@pytest.mark.parametrize(
    ("parameters", "severity", "quality"), [("cifar", 1, 80), ("cifar", 5, 40), ("imagenet", 5, 7)]
)
def test_jpeg_takes_every_coefficient_to_its_nearest_step(parameters: str, severity: int, quality: int) -> None:
    # Gray, so that chroma plays no part, and far from black and white, where clipping hides coefficients.
    images = np.repeat(natural(4)[..., :1] // 3 + 86, 3, axis=3)
    corrupted = corrupt(images, "jpeg_compression", severity, parameters=parameters)
    assert (corrupted == corrupted[..., :1]).all()
    for image, result in zip(images[..., 0], corrupted[..., 0], strict=True):
        exact = reference.jpeg_steps(image, quality)
        kept = reference.jpeg_steps(result, quality)
        assert np.abs(kept - np.rint(kept)).max() < 0.4
        # The codec's transform is in integers: a coefficient half-way between two steps may go either way.
        assert np.abs(np.rint(kept) - exact).max() < 0.52


def through_jpeg(image: Pixels, quality: int, subsampling: str) -> Pixels:
    stream = BytesIO()
    Image.fromarray(image).save(stream, "JPEG", quality=quality, subsampling=subsampling)
    with Image.open(stream) as opened:
        return np.asarray(opened)


@pytest.mark.parametrize("parameters", ["cifar", "tiny", "imagenet"])
@pytest.mark.parametrize("severity", range(1, 6))
def test_jpeg_halves_the_chroma_as_the_published_files_do(parameters: str, severity: int) -> None:
    images = natural(2, 48, 40)
    quality = int(PARAMETER_SETS[parameters]["jpeg_compression"][severity - 1][0])
    for image, corrupted in zip(
        images, corrupt(images, "jpeg_compression", severity, parameters=parameters), strict=True
    ):
        # Pillow's default, 4:2:0: color at half the resolution, which 4:4:4 would keep.
        assert (corrupted == through_jpeg(image, quality, "4:2:0")).all()
        assert (corrupted != through_jpeg(image, quality, "4:4:4")).any()
        assert (corrupted != through_jpeg(image, quality + 3, "4:2:0")).any()


def test_jpeg_loses_color_that_changes_from_pixel_to_pixel() -> None:
    # Red and green of the same luminance by turns: at 4:2:0 neighbors share one color, their mean.
    image = np.zeros((1, 32, 32, 3), np.uint8)
    image[:, :, ::2] = (200, 60, 60)
    image[:, :, 1::2] = (60, 131, 60)
    corrupted = corrupt(image, "jpeg_compression", 1)[0].astype(int)
    assert np.abs(image[0, :, ::2].astype(int) - image[0, :, 1::2])[..., 0].mean() == 140
    assert np.abs(corrupted[:, ::2] - corrupted[:, 1::2]).mean() < 12


def test_pixelate_is_what_pillow_does() -> None:
    image = natural(1, 64, 50)[0]
    small = Image.fromarray(image).resize((int(50 * 0.5), int(64 * 0.5)), Image.Resampling.BOX)
    assert (corrupt(image[None], "pixelate")[0] == np.asarray(small.resize((50, 64), Image.Resampling.BOX))).all()


@pytest.mark.parametrize("severity", [1, 3, 5])
@pytest.mark.parametrize("name", RANDOM)
def test_random_corruptions_agree_with_the_slow_ones_given_the_same_draws(name: str, severity: int) -> None:
    images = natural(2)
    corrupted = corrupt(images, name, severity, seed=7, indices=range(3, 3 + len(images)))
    for index, image in enumerate(images):
        draws = Draws(7, name, severity, [3 + index])
        slow = expected(name, image, PARAMETER_SETS["cifar"][name][severity - 1], draws)
        # Where a draw meets a threshold or a rate, the last bit decides.
        assert (levels(corrupted[index], slow) <= 1).mean() > 0.998


@pytest.mark.parametrize(("name", "severity"), [("glass_blur", 5), ("elastic_transform", 1), ("snow", 3)])
def test_large_images_agree_with_the_slow_ones_given_the_same_draws(name: str, severity: int) -> None:
    images = natural(1, 40, 56)
    corrupted = corrupt(images, name, severity, parameters="imagenet")[0]
    values = PARAMETER_SETS["imagenet"][name][severity - 1]
    slow = expected(name, images[0], values, Draws(0, name, severity, [0]))
    assert (levels(corrupted, slow) <= 1).mean() > 0.998


def radial_spectrum(changes: NDArray[np.float64]) -> NDArray[np.float64]:
    power = (np.abs(np.fft.fft2(changes, axes=(1, 2))) ** 2).mean(axis=(0, 3))
    frequency = np.rint(np.hypot(np.fft.fftfreq(32)[:, None], np.fft.fftfreq(32)) * 32).astype(int)
    total: NDArray[np.float64] = np.bincount(frequency.ravel(), power.ravel()) / np.bincount(frequency.ravel())
    return total[:16]


@pytest.mark.parametrize("name", RANDOM)
def test_random_corruptions_have_the_distribution_of_the_slow_ones(name: str) -> None:
    count = 12 if name == "elastic_transform" else 24
    images = natural(count)
    values = PARAMETER_SETS["cifar"][name][3]
    pairs = zip(images, range(count), strict=True)
    slow = np.stack([expected(name, image, values, Independent(seed)) for image, seed in pairs])
    many = np.concatenate([corrupt(images, name, 4, seed=seed) for seed in range(4)])
    here, there = many - np.tile(images, (4, 1, 1, 1)).astype(float), slow - images.astype(float)
    spread = there.mean(axis=(1, 2, 3)).std() / np.sqrt(count)
    assert here.mean() == pytest.approx(there.mean(), abs=5 * spread + 0.1)
    assert here.var() == pytest.approx(there.var(), rel=0.15)
    # The lowest frequencies have too few waves in so few images.
    np.testing.assert_allclose(radial_spectrum(here)[3:], radial_spectrum(there)[3:], rtol=0.3)


def test_noise_has_the_published_moments() -> None:
    gray = np.full((64, 32, 32, 3), 128, dtype=np.uint8)
    x = 128 / 255

    def unit(name: str) -> NDArray[np.float64]:
        # Truncation takes half a level on average.
        return (corrupt(gray, name, 5) + 0.5) / 255

    gaussian, shot, speckle = unit("gaussian_noise"), unit("shot_noise"), unit("speckle_noise")
    assert gaussian.mean() == pytest.approx(x, abs=1e-3)
    assert gaussian.std() == pytest.approx(0.10, rel=0.01)
    assert shot.mean() == pytest.approx(x, abs=2e-3)
    assert shot.std() == pytest.approx(np.sqrt(x / 50), rel=0.01)
    assert speckle.std() == pytest.approx(0.2 * x, rel=0.01)
    impulse = corrupt(gray, "impulse_noise", 5)
    assert (impulse == 0).mean() == pytest.approx(0.035, rel=0.05)
    assert (impulse == 255).mean() == pytest.approx(0.035, rel=0.05)
    assert ((impulse == 0) | (impulse == 128) | (impulse == 255)).all()


@pytest.mark.parametrize("delta", [1, 2, 4])
def test_shuffling_at_once_is_the_walk_from_pixel_to_pixel(delta: int) -> None:
    height, width = 24, 31
    labels = np.arange(3 * height * width).reshape(3, height, width)
    moves = Draws(1, "walk", 1, range(3)).integers(-delta, delta, 2, height - 2 * delta, width - 2 * delta)
    walked = [reference.glass_walk(image, delta, move) for image, move in zip(labels, moves, strict=True)]
    assert (shuffle_sources(Draws(1, "walk", 1, range(3)), height, width, delta) == np.stack(walked)).all()


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("severity", [2, 5])
def test_an_image_is_the_same_in_every_batch(name: str, severity: int) -> None:
    # More than the 32 images that a thread takes at once.
    images = natural(41)
    whole = corrupt(images, name, severity, seed=3)
    assert (corrupt(images[27:38], name, severity, seed=3, indices=range(27, 38)) == whole[27:38]).all()
    assert (corrupt(images[40:], name, severity, seed=3, indices=range(40, len(images))) == whole[40:]).all()


@pytest.mark.parametrize("name", ["elastic_transform", "snow", "zoom_blur", "defocus_blur"])
def test_a_large_image_is_the_same_in_every_batch_and_on_one_thread(name: str) -> None:
    images = natural(3, 90, 75)
    whole = corrupt(images, name, 1, parameters="imagenet")
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = corrupt(images[2:], name, 1, parameters="imagenet", indices=range(2, len(images)))
    finally:
        torch.set_num_threads(threads)
    assert (alone[0] == whole[2]).all()


@pytest.mark.parametrize("name", ["gaussian_noise", "glass_blur", "motion_blur", "snow", "fog", "elastic_transform"])
def test_seeds_images_and_severities_draw_apart(name: str) -> None:
    same = np.repeat(natural(1), 2, axis=0)
    first, second = corrupt(same, name, 4)
    assert (first != second).any()
    assert (corrupt(same, name, 4, seed=1)[0] != first).any()
    assert (corrupt(same, name, 4, seed=2**64 - 1)[0] != first).any()
    assert (Draws(0, name, 1, [0]).uniform(0, 1, 8) != Draws(0, name, 2, [0]).uniform(0, 1, 8)).all()
    assert (Draws(0, name, 1, [0]).uniform(0, 1, 8) != Draws(0, "else", 1, [0]).uniform(0, 1, 8)).all()


def test_results_do_not_drift_between_releases() -> None:
    # Integers only, so that it holds on every processor.
    images = (np.arange(2 * 32 * 32 * 3) % 251).astype(np.uint8).reshape(2, 32, 32, 3)
    assert zlib.crc32(corrupt(images, "impulse_noise", 3).tobytes()) == 1617525369


@pytest.mark.parametrize("parameters", ["cifar", "tiny", "imagenet"])
@pytest.mark.parametrize("name", ALL)
def test_a_higher_severity_is_farther_from_the_clean_image(name: str, parameters: str) -> None:
    images = natural(8, 48, 48)
    distance = [
        levels(corrupt(images, name, severity, parameters=parameters), images).mean() for severity in range(1, 6)
    ]
    assert distance[0] > 0
    if name in ("elastic_transform", "saturate", "spatter", "glass_blur", "frost"):
        # The published severities of these trade one parameter for another: test_severity.py measures what they order.
        return
    assert distance[4] > distance[0]
    assert np.sum(np.diff(distance) > 0) >= 3


@pytest.mark.parametrize("shape", [(32, 32), (64, 64), (224, 224), (50, 70), (7, 5), (1, 1)])
@pytest.mark.parametrize("name", ALL)
def test_every_size_works_and_leaves_the_input_alone(name: str, shape: tuple[int, int]) -> None:
    images = natural(2 if max(shape) < 100 else 1, *shape) if min(shape) > 1 else np.full((1, 1, 1, 3), 90, np.uint8)
    images.flags.writeable = False
    corrupted = corrupt(images, name, 5)
    assert corrupted.shape == images.shape
    assert corrupted.dtype == np.uint8


def test_black_and_white_images_stay_finite() -> None:
    images = np.stack([np.zeros((32, 32, 3), np.uint8), np.full((32, 32, 3), 255, np.uint8)])
    assert (corrupt(images, "fog", 3)[0] == 0).all()
    assert (corrupt(images, "brightness", 5)[0] == int(0.3 * 255)).all()
    assert (corrupt(images, "brightness", 5)[1] == 255).all()
    for name in ("defocus_blur", "zoom_blur", "gaussian_blur", "contrast", "pixelate", "glass_blur", "motion_blur"):
        assert (corrupt(images, name, 5) == images).all()


def test_the_set_follows_the_shorter_side_by_default() -> None:
    images = natural(2, 47, 200)
    assert (corrupt(images, "contrast", 3) == corrupt(images, "contrast", 3, parameters="cifar")).all()
    images = natural(2, 48, 200)
    assert (corrupt(images, "contrast", 3) == corrupt(images, "contrast", 3, parameters="tiny")).all()
    images = natural(1, 144, 150)
    assert (corrupt(images, "pixelate", 3) == corrupt(images, "pixelate", 3, parameters="imagenet")).all()
    assert (corrupt(images, "pixelate", 3) != corrupt(images, "pixelate", 3, parameters="tiny")).any()


def test_names_are_those_of_the_benchmark() -> None:
    assert CORRUPTIONS == (
        "gaussian_noise",
        "shot_noise",
        "impulse_noise",
        "defocus_blur",
        "glass_blur",
        "motion_blur",
        "zoom_blur",
        "snow",
        "frost",
        "fog",
        "brightness",
        "contrast",
        "elastic_transform",
        "pixelate",
        "jpeg_compression",
    )
    assert VALIDATION_CORRUPTIONS == ("speckle_noise", "gaussian_blur", "spatter", "saturate")
    for strengths in PARAMETER_SETS.values():
        assert set(strengths) == {*CORRUPTIONS, *VALIDATION_CORRUPTIONS}


def test_mud_covers_and_water_shines() -> None:
    images = natural(8)
    mud = corrupt(images, "spatter", 5).astype(int)
    touched = (mud != images).any(axis=3)
    assert 0.02 < touched.mean() < 0.9
    distance_before = np.abs(images - np.array([63, 42, 20])).sum(axis=3)[touched]
    distance_after = np.abs(mud - np.array([63, 42, 20])).sum(axis=3)[touched]
    assert (distance_after <= distance_before + 3).all()
    water = corrupt(images, "spatter", 3).astype(int) - images
    assert water.min() >= 0
    assert water.max() > 60
    assert 0.02 < (water > 0).any(axis=3).mean() < 0.9


def test_distances_are_those_to_the_nearest_outline() -> None:
    drops = np.zeros((1, 40, 60), dtype=np.int32)
    drops[0, 10:20, 5:15] = 200
    edges = _edges(drops)
    outline = np.argwhere(edges[0])
    # One pixel wide, on the rim and nowhere else.
    assert 30 <= len(outline) <= 44
    assert (np.abs(outline - [14.5, 9.5]).max(axis=1) <= 5.5).all()
    for row, column in ((0, 0), (15, 10), (30, 20), (39, 59)):
        nearest = np.hypot(*(outline - [row, column]).T).min()
        assert _distance(edges)[0, row, column] == pytest.approx(min(nearest, 20), abs=1e-3)


@needs_frost
def test_frost_is_a_weighted_sum_with_a_piece_of_a_photograph() -> None:
    black = np.zeros((40, 32, 32, 3), dtype=np.uint8)
    frosted = corrupt(black, "frost", 5)
    scaled = photographs.frost_photographs(0.2, 32, 32)
    for image in frosted[:4]:
        views = [np.lib.stride_tricks.sliding_window_view(each, (32, 32), axis=(0, 1)) for each in scaled]
        corners = [(each[..., 0, 0] * 0.45).astype(np.uint8) for each in views]
        places = [
            (each, place) for each, view in enumerate(corners) for place in np.argwhere((view == image[0, 0]).all(-1))
        ]
        crops = [(views[each][row, column] * 0.45).astype(np.uint8) for each, (row, column) in places]
        assert any(levels(crop.transpose(1, 2, 0), image).max() <= 1 for crop in crops)


def test_frost_without_its_photographs_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "files", absent)
    photographs._originals.cache_clear()
    photographs._scaled.cache_clear()
    with pytest.raises(OptionError, match=r'pip install "cretta\[data\]"'):
        corrupt(natural(1), "frost")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "fogg"}, "unknown corruption 'fogg'. Did you mean 'fog'?"),
        ({"severity": 0}, "severity=0: expected an integer from 1 to 5"),
        ({"severity": 6}, "severity=6: expected an integer from 1 to 5"),
        ({"severity": 2.5}, "severity=2.5: expected an integer from 1 to 5"),
        ({"severity": True}, "severity=True: expected an integer from 1 to 5"),
        ({"seed": -1}, "seed=-1: expected an integer from 0"),
        ({"parameters": "cifar10"}, "parameters='cifar10': expected one of cifar, tiny, imagenet; leave it out"),
    ],
)
def test_an_invalid_option_names_the_allowed_values(options: dict[str, object], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        corrupt(natural(1), **{"name": "fog", **options})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("images", "message"),
    [
        (np.zeros((2, 8, 8, 3)), "must be uint8 in 0 … 255, got float64"),
        (np.zeros((8, 8, 3), np.uint8), r"shape \(N, H, W, 3\), got \(8, 8, 3\)"),
        (np.zeros((2, 3, 8, 8), np.uint8), r"got \(2, 3, 8, 8\); .* put the channels last"),
        (np.zeros((0, 8, 8, 3), np.uint8), "must not be empty"),
        (torch.zeros(1, 8, 8, 3), r"numpy array, got Tensor; .*\.numpy\(\)"),
    ],
)
def test_an_invalid_batch_names_the_remedy(images: Pixels, message: str) -> None:
    with pytest.raises(BatchError, match=message):
        corrupt(images, "fog")
