from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from cretta.data import pacs_domain
from cretta.data.pacs import CLASSES, DOMAINS
from cretta.errors import OptionError, StateError

REAL = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "pacs"
real = pytest.mark.skipif(not REAL.is_dir(), reason="PACS is not beside the repository")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for domain in DOMAINS:
        for label, name in enumerate(CLASSES):
            (tmp_path / domain / name).mkdir(parents=True)
            Image.new("RGB", (8, 8), (label, 0, 0)).save(tmp_path / domain / name / "pic_001.png")
    return tmp_path


@pytest.mark.parametrize("domain", DOMAINS)
def test_one_dataset_a_domain(root: Path, domain: str) -> None:
    dataset = pacs_domain(root, domain, size=(4, 4))
    assert (dataset.name, dataset.domain, dataset.classes) == ("pacs", domain, CLASSES)
    assert dataset.labels.tolist() == list(range(7))
    assert dataset.read(range(7))[:, 0, 0, 0].tolist() == list(range(7))
    assert all(file.parent.parent.name == domain for file in dataset.files)


def test_errors_of_a_folder(root: Path) -> None:
    with pytest.raises(OptionError, match=r"'painting': give one of photo, art_painting, cartoon, sketch"):
        pacs_domain(root, "painting")
    (root / "photo" / "dog" / "pic_001.png").unlink()
    with pytest.raises(StateError, match=r"no images .* of class dog"):
        pacs_domain(root, "photo")
    (root / "cartoon" / "cat").mkdir()
    with pytest.raises(StateError, match=r"expected folders named after the 7 classes .*, got cat"):
        pacs_domain(root, "cartoon")
    with pytest.raises(StateError, match="give the folder that holds photo"):
        pacs_domain(root / "sketch", "sketch")
    with pytest.raises(StateError, match="not there"):
        pacs_domain(root / "lost", "sketch")


@real
@pytest.mark.parametrize(
    ("domain", "first", "pixel"),
    [
        ("photo", "056_0001.jpg", [44, 24, 17]),
        ("art_painting", "pic_001.jpg", [213, 195, 193]),
        ("cartoon", "pic_001.jpg", [255, 255, 255]),
        ("sketch", "5281.jpg", [255, 255, 255]),
    ],
)
def test_the_real_images(domain: str, first: str, pixel: list[int]) -> None:
    dataset = pacs_domain(REAL, domain)
    assert np.bincount(dataset.labels).tolist() == [60] * 7
    assert dataset.files[0].name == first
    images = dataset.read(range(0, 420, 20))
    assert images.shape == (21, 224, 224, 3)
    assert images[0, 0, 0].tolist() == pixel
