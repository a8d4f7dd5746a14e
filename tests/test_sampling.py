from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn
from torch.utils.data import Subset, TensorDataset

from cretta import SourceBuffer, sampling
from cretta.accelerate.accelerator import Accelerator
from cretta.errors import ModelError, OptionError
from source_images import (
    ARRAYS,
    CHANNELS_FIRST,
    LABELS,
    Net,
    dataset,
    drawn,
    floats,
    mixed_labels,
    numbers,
)

# Sampling


@pytest.mark.filterwarnings("ignore:the buffer has images of")
@pytest.mark.parametrize("size", [1, 2, 9, 10, 11, 35, 99, 120, 0.05, 0.1, 0.33, 1.0])
def test_sample_is_balanced_without_duplicates(size: float) -> None:
    labels = mixed_labels([12] * 10)
    buffer = SourceBuffer.sample(dataset(labels), size)
    expected = size if isinstance(size, int) else round(size * 120)
    chosen = numbers(buffer)
    assert len(buffer) == len(set(chosen)) == expected
    assert buffer.labels is not None
    assert buffer.labels.tolist() == [labels[i] for i in chosen]
    counts = Counter(buffer.labels.tolist())
    assert max(counts.values()) - min(counts[c] for c in range(10)) <= 1


def test_fraction_and_count_are_two_ways_to_say_the_same() -> None:
    labels = mixed_labels([30, 30, 30])
    assert numbers(SourceBuffer.sample(dataset(labels), 0.2)) == numbers(SourceBuffer.sample(dataset(labels), 18))


@pytest.mark.filterwarnings("ignore:the buffer has images of")
def test_a_tiny_fraction_is_still_one_image() -> None:
    assert len(SourceBuffer.sample(dataset([0, 1, 2]), 0.01)) == 1


@pytest.mark.parametrize(
    ("total", "expected"),
    [
        (9, [3, 3, 3]),
        (30, [3, 14, 13]),  # the short class gives all it has; 27 are left for the other two
        (50, [3, 20, 27]),
        (73, [3, 20, 50]),
    ],
)
def test_unequal_classes_are_as_balanced_as_can_be(total: int, expected: list[int]) -> None:
    buffer = SourceBuffer.sample(dataset(mixed_labels([3, 20, 50])), total)
    assert buffer.labels is not None
    found = torch.bincount(buffer.labels, minlength=3).tolist()
    assert found[0] == expected[0]
    assert sum(found) == total
    assert sorted(found) == sorted(expected)
    assert len(set(numbers(buffer))) == total


def test_fewer_than_classes_gives_that_many_classes() -> None:
    with pytest.warns(UserWarning, match="the buffer has images of 7 of 25 classes; a larger size has more"):
        buffer = SourceBuffer.sample(dataset(mixed_labels([4] * 25)), 7)
    assert buffer.labels is not None
    assert len(set(buffer.labels.tolist())) == len(buffer) == 7


@pytest.mark.filterwarnings("ignore:the buffer has images of")
def test_every_class_can_be_the_single_one() -> None:
    singles = {
        int(SourceBuffer.sample(dataset(mixed_labels([4] * 3)), 1, seed=seed).labels[0])  # type: ignore[index]
        for seed in range(20)
    }
    assert singles == {0, 1, 2}


@pytest.mark.parametrize("classes", [2, 5, 10])
def test_every_prefix_of_whole_rounds_is_balanced(classes: int) -> None:
    buffer = SourceBuffer.sample(dataset(mixed_labels([13] * classes)), 12 * classes)
    assert buffer.labels is not None
    for rounds in range(1, 13):
        assert torch.bincount(buffer.labels[: rounds * classes], minlength=classes).tolist() == [rounds] * classes


def test_labels_need_not_be_consecutive() -> None:
    labels = [7, 7, 7, 29, 29, 29, 3, 3, 3]
    buffer = SourceBuffer.sample(dataset(labels), 6)
    assert buffer.labels is not None
    assert Counter(buffer.labels.tolist()) == {7: 2, 29: 2, 3: 2}


def test_sampling_follows_the_seed_and_nothing_else() -> None:
    source = dataset(mixed_labels([40] * 5))
    first = numbers(SourceBuffer.sample(source, 50, seed=3))
    torch.manual_seed(99)
    np.random.seed(99)  # noqa: NPY002  (the global generator is what must not matter)
    assert numbers(SourceBuffer.sample(source, 50, seed=3)) == first
    others = [numbers(SourceBuffer.sample(source, 50, seed=seed)) for seed in range(4, 10)]
    assert all(sorted(other) != sorted(first) for other in others)
    # 7 draws of a quarter: 1 - 0.75^7 = 87 % of all images are expected in one of them.
    assert len({i for draw in [first, *others] for i in draw}) > 0.75 * 200


def test_sampling_leaves_the_global_generators_alone() -> None:
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index] # noqa: NPY002
    SourceBuffer.sample(dataset(mixed_labels([40] * 5)), 50).batch(0, 20)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert random.getstate() == states[1]
    assert np.random.get_state()[1].tolist() == states[2]  # type: ignore[index] # noqa: NPY002


# Selection by the source model


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("select", ["confident", "uncertain"])
def test_selection_asks_the_source_model(select: str, training: bool) -> None:
    labels = mixed_labels([60, 80, 70, 40])  # 250: more than the model is asked at a time
    net = Net().train(training)
    before = copy.deepcopy(net.state_dict())
    source = dataset(labels)
    buffer = SourceBuffer.sample(source, 48, select, model=net)

    with torch.no_grad():
        x = floats(torch.from_numpy(source.images.transpose(0, 3, 1, 2).copy()))
        confidence = copy.deepcopy(net).eval()(x).softmax(-1).max(-1).values
    for label in range(4):
        members = [i for i, other in enumerate(labels) if other == label]
        ranked = sorted(members, key=lambda i: float(confidence[i]), reverse=select == "confident")
        assert [i for i in numbers(buffer) if labels[i] == label] == ranked[:12]
    assert numbers(SourceBuffer.sample(source, 48, select, confidence=confidence.numpy())) == numbers(buffer)

    assert net.training is training
    assert net.drop.training is training
    assert all(p.requires_grad and p.grad is None for p in net.parameters())
    after = net.state_dict()
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_the_choice_by_confidence_does_not_depend_on_kernels_chosen_by_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Accelerator, "choose", Mock(side_effect=AssertionError))
    source = dataset(mixed_labels([60, 80, 70, 40]))
    assert len(sampling.confidence(source, Net())) == 250


def test_a_model_that_returns_probabilities_is_refused() -> None:
    with pytest.raises(ModelError, match="before the softmax"):
        sampling.confidence(dataset([0, 1, 2, 3]), nn.Sequential(Net(), nn.Softmax(-1)))


def test_selection_with_inputs_that_are_not_images_in_the_unit_range() -> None:
    x, net = drawn(40), Net().eval()
    buffer = SourceBuffer.sample(TensorDataset(x, torch.arange(40) % 2), 10, "confident", model=net, augment="none")
    with torch.no_grad():
        confidence = net(x).softmax(-1).max(-1).values
    expected = [i for c in (0, 1) for i in sorted(range(c, 40, 2), key=lambda i: -float(confidence[i]))[:5]]
    # The buffer's images are found again in x, exactly.
    found = [int((x == image).flatten(1).all(1).nonzero()) for image in buffer.batch(0, 10)]
    assert sorted(found) == sorted(expected)


# Datasets


class Targets:
    """A torchvision-like dataset: targets beside, images decoded one by one."""

    def __init__(self, items: list[tuple[Any, int]], field: str) -> None:
        self.items, self.asked = items, 0
        setattr(self, field, [label for _, label in items])

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        self.asked += 1
        return self.items[index]


def of_pictures() -> list[tuple[Any, int]]:
    return [(Image.fromarray(image), label) for image, label in zip(ARRAYS, LABELS, strict=True)]


DATASETS: dict[str, Callable[[], Any]] = {
    "array dataset": lambda: dataset(LABELS),
    "tensor dataset": lambda: TensorDataset(floats(CHANNELS_FIRST), torch.tensor(LABELS)),
    "uint8 tensor dataset": lambda: TensorDataset(CHANNELS_FIRST, torch.tensor(LABELS)),
    "pictures": of_pictures,
    "arrays": lambda: list(zip(ARRAYS, LABELS, strict=True)),
    "float tensors": lambda: list(zip(floats(CHANNELS_FIRST), LABELS, strict=True)),
    "lists, labels as tensors": lambda: [
        [x, torch.tensor(y)] for x, y in zip(floats(CHANNELS_FIRST), LABELS, strict=True)
    ],
    "subset": lambda: Subset(of_pictures() + of_pictures(), range(45)),  # type: ignore[arg-type]
    "targets": lambda: Targets(of_pictures(), "targets"),
    "labels": lambda: Targets(of_pictures(), "labels"),
}


@pytest.mark.parametrize("kind", DATASETS)
def test_the_same_draw_from_every_kind_of_dataset(kind: str) -> None:
    expected = numbers(SourceBuffer.sample(dataset(LABELS), 12, seed=5))
    buffer = SourceBuffer.sample(DATASETS[kind](), 12, seed=5, augment="none")
    assert buffer.images.dtype == torch.uint8
    assert torch.equal(buffer.images, CHANNELS_FIRST[expected])
    assert buffer.labels is not None
    assert buffer.labels.tolist() == [LABELS[i] for i in expected]
    assert torch.equal(buffer.batch(0, 12), floats(CHANNELS_FIRST[expected]))


@pytest.mark.parametrize(
    "unlabeled",
    [list(CHANNELS_FIRST), TensorDataset(floats(CHANNELS_FIRST)), ARRAYS, [Image.fromarray(a) for a in ARRAYS]],
    ids=["tensors", "tensor dataset", "array", "pictures"],
)
def test_without_labels_the_draw_is_over_the_whole_set(unlabeled: Any) -> None:
    buffer = SourceBuffer.sample(unlabeled, 20)
    assert buffer.labels is None
    assert len(set(numbers(buffer))) == 20
    assert max(numbers(buffer)) < 45
    assert numbers(buffer) == numbers(SourceBuffer.sample(unlabeled, 20))
    assert numbers(buffer) != sorted(numbers(buffer))
    assert numbers(buffer) != numbers(SourceBuffer.sample(unlabeled, 20, seed=1))


def test_only_chosen_images_are_decoded_where_labels_lie_beside() -> None:
    source = Targets(of_pictures(), "targets")
    SourceBuffer.sample(source, 9)
    assert source.asked == 9


def test_a_dataset_that_transforms_its_images_is_read_through_its_items() -> None:
    class Normalized:
        images, labels = ARRAYS, np.asarray(LABELS)

        def __len__(self) -> int:
            return len(self.images)

        def __getitem__(self, index: int) -> tuple[Tensor, int]:
            return floats(CHANNELS_FIRST[index]) * 4 - 2, LABELS[index]

    buffer = SourceBuffer.sample(Normalized(), 9, augment="none")
    assert float(buffer.batch(0, 9).min()) < -1  # what net takes, not the raw pixels


def test_grey_pictures_get_their_channel() -> None:
    gray = [(Image.fromarray(image[..., 2]), label) for image, label in zip(ARRAYS, LABELS, strict=True)]
    buffer = SourceBuffer.sample(gray, 45, augment="none")
    expected = numbers(SourceBuffer.sample(dataset(LABELS), 45))
    assert torch.equal(buffer.images, CHANNELS_FIRST[expected][:, 2:])


def test_progress_is_reported_item_by_item() -> None:
    calls: list[tuple[str, int, int]] = []
    SourceBuffer.sample(of_pictures(), 9, "confident", model=Net(), progress=lambda *call: calls.append(call))
    assert [call for call in calls if call[0] == "reading source images"] == [
        ("reading source images", done, 9) for done in range(1, 10)
    ]
    assert ("predicting with the source model", 1, 1) in calls
    assert calls[-1] == ("reading source images", 9, 9)


# Wrong arguments


@pytest.mark.parametrize("size", [0, -1, 46, 0.0, -0.1, 1.5, float("nan"), float("inf"), True, "10", None])
def test_wrong_sizes(size: Any) -> None:
    with pytest.raises(OptionError, match="size="):
        SourceBuffer.sample(dataset(LABELS), size)


def test_wrong_ways_to_sample() -> None:
    with pytest.raises(OptionError, match=r"select='best'.*'random', 'confident', 'uncertain'"):
        SourceBuffer.sample(dataset(LABELS), 9, "best")
    with pytest.raises(OptionError, match="pass model="):
        SourceBuffer.sample(dataset(LABELS), 9, "confident")
    with pytest.raises(OptionError, match=rf"expected {len(LABELS)} values, one per image, got \(3,\)"):
        SourceBuffer.sample(dataset(LABELS), 9, "confident", confidence=np.zeros(3))
    with pytest.raises(OptionError, match=r"the dataset is empty \(0 samples\); expected source images"):
        SourceBuffer.sample([], 0.5)
    with pytest.raises(OptionError, match=r"Did you mean 'rotate'\?"):
        SourceBuffer.sample(dataset(LABELS), 9, augment="rotated")


def test_pictures_of_unequal_size() -> None:
    uneven = [(Image.new("RGB", (4 + i, 5)), i) for i in range(3)]
    with pytest.raises(OptionError):
        SourceBuffer.sample(uneven, 3)


# What people pass by mistake


@pytest.mark.parametrize(
    ("dataset", "message"),
    [
        ([{"image": ARRAYS[0], "label": 1}] * 3, r"pairs, got dicts with \['image', 'label'\]"),
        ([(ARRAYS[0], "cat"), (ARRAYS[1], "dog")], r"'cat'.*number them"),
        ([(ARRAYS[0], None), (ARRAYS[1], None)], r"class number per image.*None"),
        ([(ARRAYS[0], 0.5), (ARRAYS[1], 1.5)], r"class number per image.*0\.5"),
        ([(ARRAYS[0], [0, 1]), (ARRAYS[1], [1, 0])], r"argmax"),
        ([("a.png", 0), ("b.png", 1)], r"PIL images, got str"),
        (iter([1, 2]), r"list_iterator.*into a list"),
        (None, r"NoneType"),
    ],
    ids=["dicts", "names", "none", "fractions", "one-hot", "paths", "iterator", "nothing"],
)
def test_datasets_that_cannot_be_sampled(dataset: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        SourceBuffer.sample(dataset, 2)


def test_labels_of_a_subset_are_read_without_its_images() -> None:
    source = Targets(of_pictures(), "targets")
    buffer = SourceBuffer.sample(Subset(source, range(30)), 6)  # type: ignore[arg-type]
    assert source.asked == 6
    assert buffer.labels is not None
