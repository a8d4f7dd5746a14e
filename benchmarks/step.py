"""What a step costs: every method beside textbook steps of TENT, TEA and CreTTA, in turns, in one run, on one network.

    python benchmarks/step.py [--rounds 10] [--network wrn|resnet|both] [--device cpu] [--without-tea]

Textbook steps are written here in the obvious way: the network as it came, batches as they came, everything computed
again. All get the same images and begin with the same network. Times are medians of the rounds, after two steps that
are not timed; memory is the peak during a step above what was alive before; GFLOPs are of forwards, as the
paper counts. On WRN-40-2 with batches of 200 the limits that this project set itself are checked, and missing one ends
the run with an error. With TEA it takes about 45 minutes on two cores, without about ten.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from rich.progress import Progress
from torch import Tensor, nn

import cretta
from cretta.accelerate import missing_kernels
from cretta.data import corrupt, embedded
from cretta.metrics import count_operations, peak_meter
from cretta.metrics.operations import OperationCount

BUFFER = 100
"""Source images, and samples that TEA starts from; few enough that two steps have seen all."""

COUNTED = 10
"""Images with which operations are counted, a fifth of which is a whole number."""


# Textbook steps.


class Textbook:
    """A deep copy whose BatchNorm layers learn and normalize by the batch, and Adam."""

    def __init__(self, net: nn.Module) -> None:
        self.model = copy.deepcopy(net)
        self.model.requires_grad_(False)
        parameters = []
        for module in self.model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.track_running_stats = False
                module.running_mean = None
                module.running_var = None
                module.requires_grad_(True)
                parameters += [module.weight, module.bias]
        self.optimizer = torch.optim.Adam(parameters, lr=1e-3)

    def descend(self, loss: Tensor) -> None:
        """One step of the optimizer."""
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def networks(self) -> list[nn.Module]:
        """Those whose operations count."""
        return [self.model]


class TextbookTent(Textbook):
    """Forward, mean entropy, step."""

    def __call__(self, x: Tensor) -> Tensor:
        """One step; the batch's logits."""
        logits: Tensor = self.model(x)
        entropy = -(logits.softmax(1) * logits.log_softmax(1)).sum(1)
        self.descend(entropy.mean(0))
        return logits.detach()


class TextbookCreTTA(Textbook):
    """Energies of both batches under both networks, Eq. 4, step, forward."""

    def __init__(self, net: nn.Module, source: Tensor) -> None:
        super().__init__(net)
        self.reference = copy.deepcopy(net).eval()
        self.source = source
        self.position = 0

    def __call__(self, x: Tensor) -> Tensor:
        """One step; the batch's logits."""
        index = torch.arange(self.position, self.position + len(x)) % len(self.source)
        self.position += len(x)
        source = self.source[index]
        with torch.no_grad():
            reference_target = -torch.logsumexp(self.reference(x), 1)
            reference_source = -torch.logsumexp(self.reference(source), 1)
        target_energy = -torch.logsumexp(self.model(x), 1)
        source_energy = -torch.logsumexp(self.model(source), 1)
        logit = (reference_target - reference_source) - (target_energy - source_energy)
        self.descend(-nn.functional.logsigmoid(logit).mean())
        with torch.no_grad():
            logits: Tensor = self.model(x)
        return logits

    def networks(self) -> list[nn.Module]:
        """Both."""
        return [self.model, self.reference]


class TextbookTEA(Textbook):
    """Twenty steps of SGLD from a replay buffer, the difference of energies, step, forward."""

    def __init__(self, net: nn.Module, replay: Tensor) -> None:
        super().__init__(net)
        self.replay = replay.clone()

    def __call__(self, x: Tensor) -> Tensor:
        """One step; the batch's logits."""
        index = torch.randint(len(self.replay), (len(x),), device=x.device)
        redrawn = (torch.rand(len(x), device=x.device) < 0.05).float()[:, None, None, None]
        samples = redrawn * torch.empty_like(x).uniform_(-1, 1) + (1 - redrawn) * self.replay[index]
        samples.requires_grad_(True)
        for _ in range(20):
            slope = torch.autograd.grad(torch.logsumexp(self.model(samples), 1).sum(), [samples])[0]
            samples.data += 0.1 * slope + 0.01 * torch.randn_like(samples)
        samples = samples.detach()
        self.replay[index] = samples
        real = -torch.logsumexp(self.model(x), 1).mean()
        fake = -torch.logsumexp(self.model(samples), 1).mean()
        self.descend(real - fake)
        with torch.no_grad():
            logits: Tensor = self.model(x)
        return logits


# A network for 224 pixels.


class Block(nn.Module):
    """Two convolutions and a shortcut, as in ResNet-18."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module | None = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """As in ResNet-18."""
        shortcut = x if self.downsample is None else self.downsample(x)
        out: Tensor = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += shortcut
        activated: Tensor = self.relu(out)
        return activated


def resnet18() -> nn.Module:
    """ResNet-18 with weights drawn at random: its cost does not depend on them."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
    layers.append(nn.MaxPool2d(3, 2, 1))
    for inputs, outputs in ((64, 64), (64, 128), (128, 256), (256, 512)):
        layers += [Block(inputs, outputs, 1 if inputs == outputs else 2), Block(outputs, outputs, 1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000)).eval()


# What is compared.


@dataclasses.dataclass
class Contender:
    """A method's step and what came of it."""

    name: str
    make: Callable[[], Any]
    seconds: list[float] = dataclasses.field(default_factory=list)
    first: float = 0.0
    """Seconds from the network to the first batch's logits."""
    megabytes: float = 0.0
    gigaflops: float = 0.0

    def prepare(self, batches: Sequence[Tensor], device: torch.device) -> None:
        """Builds it, times the first batch, and counts what a step takes."""
        begun = now(device)
        self.step = self.make()
        self.step(batches[0])
        self.first = now(device) - begun
        self.gigaflops = self._forwards(batches[0][:COUNTED]) * len(batches[0]) / COUNTED / 1e9
        with peak_meter(device) as meter:
            self.step(batches[1])
        self.megabytes = meter.peak / 2**20

    def _forwards(self, few: Tensor) -> int:
        if isinstance(self.step, cretta.Adapter):
            return count_operations(self.step, few)[1]
        twin = self.make()
        count = OperationCount(twin.networks)
        with count:
            twin(few)
        return count.forward

    def take(self, batch: Tensor, device: torch.device) -> None:
        """One step, timed."""
        begun = now(device)
        self.step(batch)
        self.seconds.append(now(device) - begun)

    @property
    def median(self) -> float:
        """Seconds of a step."""
        return statistics.median(self.seconds)


def contenders(net: nn.Module, source: Tensor, x: Tensor, *, tea: bool) -> list[Contender]:
    """Textbook steps and all methods, cheap ones first."""
    buffer = cretta.SourceBuffer(source, augment="none")
    replay = torch.empty(BUFFER, *x.shape[1:], device=x.device).uniform_(-1, 1)

    def ours(name: str, **options: Any) -> Callable[[], Any]:
        return lambda: cretta.adapt(net, name, buffer=buffer, **options)

    found = [
        Contender("textbook TENT", lambda: TextbookTent(net)),
        Contender("textbook CreTTA", lambda: TextbookCreTTA(net, source)),
        *(Contender(name, ours(name)) for name in ("source", "bn_adapt", "tent", "pl", "shot", "shot_im")),
        *(Contender(name, ours(name)) for name in ("eta", "eata", "aea", "sar")),
        Contender("cretta", ours("cretta")),
        Contender("cretta lean", ours("cretta", lean=True)),
        Contender("cretta fast", ours("cretta", preset="fast")),
    ]
    if tea:
        found.append(Contender("textbook TEA", lambda: TextbookTEA(net, replay)))
        found.append(Contender("tea", ours("tea", replay=BUFFER)))
    return found


def now(device: torch.device) -> float:
    """The time when all that was asked of the device is done."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def measure(found: list[Contender], batches: Sequence[Tensor], rounds: int, device: torch.device) -> None:
    """Takes turns."""
    found[0].make()(batches[0])  # libraries are loaded
    with Progress(transient=True) as progress:
        task = progress.add_task("steps", total=len(found) * (rounds + 1))
        for contender in found:
            progress.update(task, description=f"{contender.name}: first steps")
            contender.prepare(batches, device)
            progress.advance(task)
        for turn in range(rounds):
            for contender in found:
                progress.update(task, description=f"round {turn + 1} of {rounds}: {contender.name}")
                contender.take(batches[turn % len(batches)], device)
                progress.advance(task)


# What is required.

SECONDS, MEMORY, FLOPS = "median", "megabytes", "gigaflops"
LIMITS: tuple[tuple[str, str, str, str, float], ...] = (
    (SECONDS, "cretta", "textbook TENT", "≤", 2.4),
    (SECONDS, "cretta", "textbook CreTTA", "≤", 0.6),
    (SECONDS, "cretta fast", "textbook TENT", "≤", 1.25),
    (SECONDS, "textbook TEA", "cretta", "≥", 9.0),
    (SECONDS, "textbook TEA", "cretta fast", "≥", 16.0),
    (SECONDS, "tea", "textbook TEA", "≤", 0.7),
    (MEMORY, "cretta", "textbook TENT", "≤", 1.9),
    (MEMORY, "cretta lean", "textbook TENT", "≤", 1.1),
    (FLOPS, "cretta", "source", "≤", 4.01),
    (FLOPS, "cretta fast", "source", "≤", 2.3),
)
QUANTITIES = {SECONDS: "time", MEMORY: "memory", FLOPS: "GFLOPs, paper's counting"}


def show(found: list[Contender], size: int) -> None:
    """The table."""
    base = found[0]
    print(
        f"{'':18}{'s per step':>10}{'images/s':>10}{'× TENT':>8}{'peak MB':>9}{'× TENT':>8}{'GFLOPs':>9}{'first s':>9}"
    )
    for one in found:
        print(
            f"{one.name:18}{one.median:10.3f}{size / one.median:10.1f}{one.median / base.median:8.2f}"
            f"{one.megabytes:9.0f}{one.megabytes / base.megabytes:8.2f}{one.gigaflops:9.1f}{one.first:9.2f}"
        )
    print("× TENT: textbook TENT. First s: from the network to the first logits, kept things computed on the way.")


def check(found: list[Contender]) -> bool:
    """Prints each ratio beside its limit; whether all hold."""
    by_name = {one.name: one for one in found}
    fine = True
    for quantity, one, other, sign, limit in LIMITS:
        if one not in by_name or other not in by_name:
            continue
        ratio = getattr(by_name[one], quantity) / getattr(by_name[other], quantity)
        holds = ratio <= limit if sign == "≤" else ratio >= limit
        fine &= holds
        verdict = "" if holds else "MISSED"
        print(f"{QUANTITIES[quantity]:26}{one + ' / ' + other:32}{ratio:7.3f}  {sign} {limit:<5}{verdict}")
    return fine


def images(split: Literal["train", "test"], count: int, device: torch.device) -> Tensor:
    """Embedded images, those of the stream corrupted."""
    data = embedded(split)
    found = data.images[:count]
    if split == "test":
        found = corrupt(found, "gaussian_noise", severity=5, seed=0)
    return torch.from_numpy(found).permute(0, 3, 1, 2).contiguous().to(device).float() / 255


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--network", choices=("wrn", "resnet", "both"), default="both")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--without-tea", action="store_true")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    print(f"custom CPU kernels: {missing_kernels() or 'in use, if the device is the CPU'}")
    fine = True
    if arguments.network != "resnet":
        net: nn.Module = cretta.models.load("wrn-40-2-cifar10").eval().to(device)
        stream, source = images("test", 2000, device), images("train", BUFFER, device)
        batches = stream.split(200)
        found = contenders(net, source, batches[0], tea=not arguments.without_tea)
        measure(found, batches, arguments.rounds, device)
        print(f"WRN-40-2, batches of 200 images of 32 × 32, {device}, {torch.get_num_threads()} threads")
        show(found, 200)
        fine = check(found)
    if arguments.network != "wrn":
        torch.manual_seed(0)
        net = resnet18().to(device)
        batches = [torch.rand(16, 3, 224, 224, device=device) for _ in range(4)]
        found = contenders(net, torch.rand(32, 3, 224, 224, device=device), batches[0], tea=not arguments.without_tea)
        measure(found, batches, arguments.rounds, device)
        print(f"\nResNet-18, random weights, batches of 16 images of 224 × 224, {device}")
        show(found, 16)
    if not fine:
        sys.exit("a limit was missed")


if __name__ == "__main__":
    main()
