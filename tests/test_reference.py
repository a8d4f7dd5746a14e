from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cretta import SourceBuffer, adapt
from cretta.adapter import Adapter
from cretta.buffer import BLOCK
from cretta.functional import energy
from cretta.reference import ReferenceEnergies

SIZE = 2 * BLOCK + 22


def images(count: int = SIZE) -> Tensor:
    return torch.rand(count, 3, 4, 4, generator=torch.Generator().manual_seed(count))


def value(x: Tensor) -> Tensor:
    """Some number of each sample."""
    return (x * torch.linspace(-1, 1, x[0].numel()).view(x.shape[1:])).sum((1, 2, 3))


class Counting:
    def __init__(self, *, companions: bool = False) -> None:
        self.sizes: list[int] = []
        self.companions = companions

    def __call__(self, x: Tensor) -> Tensor:
        self.sizes.append(len(x))
        return value(x) + (x.mean() if self.companions else 0)


def energies(buffer: SourceBuffer, *, per_sample: bool = True) -> tuple[ReferenceEnergies, Counting]:
    count = Counting(companions=not per_sample)
    return ReferenceEnergies(buffer, count, per_sample=per_sample), count


def read(reference: ReferenceEnergies, buffer: SourceBuffer, start: int, count: int) -> Tensor:
    return reference(buffer.batch(start, count), start)


@pytest.mark.parametrize("augment", ["none", "rotate", "cifar100"])
def test_each_block_is_computed_once(augment: str) -> None:
    buffer = SourceBuffer(images(), augment=augment)
    reference, count = energies(buffer)
    read(reference, buffer, 0, 10)
    assert count.sizes == [BLOCK]
    read(reference, buffer, 10, BLOCK - 10)
    assert count.sizes == [BLOCK]
    read(reference, buffer, BLOCK - 1, 2)
    assert count.sizes == [BLOCK, BLOCK]
    for start in range(0, 3 * SIZE, 17):
        read(reference, buffer, start % SIZE, 40)
    assert count.sizes == [BLOCK, BLOCK, SIZE - 2 * BLOCK]


@pytest.mark.parametrize("augment", ["none", "rotate", "cifar100"])
@pytest.mark.parametrize(("start", "count"), [(0, SIZE), (5, 20), (BLOCK - 3, 6), (SIZE - 4, 9), (3, 2 * SIZE + 5)])
def test_values_are_those_of_the_samples(augment: str, start: int, count: int) -> None:
    buffer = SourceBuffer(images(), augment=augment)
    reference, _ = energies(buffer)
    torch.testing.assert_close(read(reference, buffer, start, count), value(buffer.batch(start, count)))


def test_values_do_not_depend_on_the_order_of_reading() -> None:
    buffer = SourceBuffer(images())
    first, _ = energies(buffer)
    whole = read(first, buffer, 0, SIZE)
    second, _ = energies(SourceBuffer(images()))
    other = SourceBuffer(images())
    for start, count in ((SIZE - 1, 3), (70, 1), (10, 100), (0, SIZE)):
        index = torch.arange(start, start + count) % SIZE
        assert torch.equal(read(second, other, start, count), whole[index])


def test_a_buffer_of_one() -> None:
    buffer = SourceBuffer(images(1))
    reference, count = energies(buffer)
    for _ in range(3):
        found = read(reference, buffer, 0, 5)
        assert found.shape == (5,)
        torch.testing.assert_close(found, value(buffer.batch(0, 5)))
    assert count.sizes == [1]


def test_where_companions_matter_each_batch_is_computed_once() -> None:
    buffer = SourceBuffer(images(6))
    reference, count = energies(buffer, per_sample=False)
    starts = [0, 4, 2]  # batches of four, cycling through six
    for cycle in range(3):
        for start in starts:
            found = read(reference, buffer, start, 4)
            x = buffer.batch(start, 4)
            torch.testing.assert_close(found, value(x) + x.mean())
        assert count.sizes == [4, 4, 4], f"cycle {cycle}"
    read(reference, buffer, 0, 3)  # a smaller batch has other companions
    assert count.sizes == [4, 4, 4, 3]


def test_a_failed_computation_is_not_taken_for_known() -> None:
    buffer = SourceBuffer(images())
    broken = [True]

    def energy_of(x: Tensor) -> Tensor:
        if broken:
            broken.pop()
            raise RuntimeError("out of memory")
        return value(x)

    reference = ReferenceEnergies(buffer, energy_of, per_sample=True)
    with pytest.raises(RuntimeError, match="out of memory"):
        read(reference, buffer, 0, 5)
    torch.testing.assert_close(read(reference, buffer, 0, 5), value(buffer.batch(0, 5)))


# In CreTTA


def net() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = nn.Sequential(
            nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4)
        )
        norm = made[1]
        assert isinstance(norm, nn.BatchNorm2d)
        assert norm.running_mean is not None
        norm.running_mean.normal_()
        return made


def counted(model: Adapter[Any], statistics: str) -> list[int]:
    """Return a list that gets the sizes of the batches that pass the frozen source model φ from now on."""
    sizes: list[int] = []

    def hook(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        sizes.append(len(inputs[0]))

    model.frozen(statistics).module.register_forward_hook(hook)
    return sizes


def stream(batches: int, size: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.rand(size, 3, 4, 4, generator=generator) for _ in range(batches)]


@pytest.mark.parametrize("augment", ["none", "rotate"])
def test_after_the_first_cycle_only_the_target_passes_the_source_model(augment: str) -> None:
    model = adapt(net(), "cretta", buffer=SourceBuffer(images(10), augment=augment), fuse=False)
    sizes = counted(model, "running")
    for x in stream(8, 4):
        model(x)
    assert sizes == [4, 10] + [4] * 7


def test_a_larger_buffer_is_computed_block_by_block() -> None:
    model = adapt(net(), "cretta", buffer=SourceBuffer(images(BLOCK + 16)), fuse=False)
    sizes = counted(model, "running")
    for x in stream(12, 40):  # a cycle is two batches
        model(x)
    assert sizes == [40, BLOCK, 40, 16] + [40] * 10


def test_a_reset_does_not_forget_what_cannot_change() -> None:
    model = adapt(net(), "cretta", buffer=SourceBuffer(images(10)), fuse=False)
    sizes = counted(model, "running")
    for x in stream(3, 5):
        model(x)
        model.reset()
    assert sizes == [5, 10, 5, 5]


def test_with_batch_statistics_each_of_the_cycles_batches_is_computed_once() -> None:
    model = adapt(net(), "cretta", buffer=SourceBuffer(images(6)), fuse=False, reference="batch")
    sizes = counted(model, "batch")
    for x in stream(9, 4):
        model(x)
    assert sizes == [4, 4] * 3 + [4] * 6


@pytest.mark.parametrize("objective", ["pairwise", "target"])
def test_objectives_without_the_source_model_never_ask_it(objective: str) -> None:
    model = adapt(net(), "cretta", buffer=SourceBuffer(images(10)), fuse=False, objective=objective)
    sizes = counted(model, "running")
    for x in stream(3, 4):
        model(x)
    assert sizes == []


def test_a_large_batch_passes_in_even_parts_where_samples_are_independent() -> None:
    (x,) = stream(1, 2 * BLOCK + 4)
    for reference, expected in (("running", [44, 44, 44]), ("batch", [2 * BLOCK + 4])):
        model = adapt(net(), "cretta", buffer=SourceBuffer(images(10)), fuse=False, reference=reference)
        sizes = counted(model, reference)
        model(x)
        assert sizes[: len(expected)] == expected


@pytest.mark.parametrize("size", [4, BLOCK + 9])
@pytest.mark.parametrize(("reference", "statistics"), [("running", "running"), ("batch", "batch")])
def test_the_weight_is_that_of_energies_computed_directly(reference: str, statistics: str, size: int) -> None:
    """w = σ(-l) of Eq. 5, recomputed batch after batch with the reference energies made afresh."""
    buffer = SourceBuffer(images(10))
    source = net().eval()
    model = adapt(source, "cretta", buffer=buffer, reference=reference, beta=2.0, lr=0.05)
    start = 0
    for x in stream(7, size):
        adapting = copy.deepcopy(model.model.module)
        frozen = copy.deepcopy(source)
        if statistics == "batch":
            frozen[1].train()
        x_s = buffer.batch(start, size)
        start = (start + size) % 10
        with torch.no_grad():
            e = [energy(m(y)) for m in (frozen, adapting) for y in (x, x_s)]
        expected = torch.sigmoid(-2.0 * ((e[0] - e[1]) - (e[2] - e[3]))).mean()
        model(x)
        assert model.last.weight == pytest.approx(float(expected), abs=1e-5)
