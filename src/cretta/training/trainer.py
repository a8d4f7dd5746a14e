"""The training loop: resumable at any step, bit for bit when the budget is in epochs."""

from __future__ import annotations

import dataclasses
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cretta import states
from cretta.data import ImageDataset
from cretta.errors import OptionError, StateError
from cretta.measure import Accuracy, Calibration
from cretta.models.weights import WEIGHTS
from cretta.training.augmix import augmix
from cretta.training.recipe import Recipe

KIND = "training checkpoint"


@dataclasses.dataclass(frozen=True)
class News:
    """How far training is after a step."""

    step: int
    share: float
    """Of the budget, 0 to 1."""
    epoch: float
    loss: float
    """Mean over the last steps."""
    side: int
    """Of the images just now."""
    images: int
    """In this step."""


@dataclasses.dataclass(frozen=True)
class Trained:
    """What came of it."""

    epochs: float
    minutes: float
    accuracy: float
    calibration_error: float


def train(
    dataset: ImageDataset,
    model: nn.Module,
    recipe: Recipe,
    output: str | Path,
    *,
    test: ImageDataset | None = None,
    facts: dict[str, Any] | None = None,
    device: str | torch.device = "cpu",
    save_every: float = 60.0,
    progress: Callable[[News], None] = lambda news: None,
) -> Trained:
    """Trains ``model`` in place and writes its weights, with ``facts`` about them, to ``output``, replacing it.

    Every ``save_every`` seconds, and when interrupted, all that is needed to go on is written to
    ``<output>.checkpoint``; a call with the same arguments goes on from there.
    """
    target, kept = Path(output), Path(f"{output}.checkpoint")
    if not target.parent.is_dir():
        raise OptionError(f"output {target}: the folder {target.parent} does not exist; make it first.")
    if len(dataset) < recipe.batch_size:
        raise OptionError(
            f"batch_size={recipe.batch_size}: {dataset.name} has only {len(dataset)} images; give a smaller batch_size."
        )
    if int(dataset.labels.min()) < 0:
        raise OptionError(f"{dataset.name} has images without labels: training needs one an image.")
    height, width = dataset[0][0].shape[:2]
    if height != width:
        raise OptionError(f"images of {dataset.name} are {height} × {width}: training takes square ones; give a size.")
    run = _Run(dataset, model, recipe, torch.device(device))
    if kept.is_file():
        run.restore(kept)
    saved = time.monotonic()
    with _interrupt_between_steps() as interrupted:
        try:
            for news in run.steps():
                progress(news)
                if interrupted():
                    raise KeyboardInterrupt
                if time.monotonic() - saved > save_every:
                    run.save(kept)
                    saved = time.monotonic()
        except KeyboardInterrupt:
            run.save(kept)
            raise
    run.finish()
    accuracy, error = evaluate(model, test, device) if test is not None else (math.nan, math.nan)
    trained = Trained(run.epoch, run.seconds / 60, accuracy, error)
    told = {
        "kind": WEIGHTS,
        "side": height,
        **(facts or {}),
        "recipe": dataclasses.asdict(recipe),
        **dataclasses.asdict(trained),
    }
    states.write(target, model.state_dict(), {key: _plain(value) for key, value in told.items()})
    kept.unlink(missing_ok=True)
    return trained


@contextmanager
def _interrupt_between_steps() -> Iterator[Callable[[], bool]]:
    """Ctrl-C waits for the end of a step, whose half is no place to go on from; tells whether it was pressed."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False  # signals reach the main thread only
        return
    pressed: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: pressed.append(number))
    try:
        yield lambda: bool(pressed)
    finally:
        signal.signal(signal.SIGINT, before)


def evaluate(
    model: nn.Module, dataset: ImageDataset, device: str | torch.device = "cpu", batch_size: int = 500
) -> tuple[float, float]:
    """Accuracy and calibration error (10 bins) as it is, in eval mode."""
    accuracy, calibration = Accuracy(), Calibration(10)
    model.eval()
    for start in range(0, len(dataset), batch_size):
        indices = range(start, min(start + batch_size, len(dataset)))
        pixels = torch.from_numpy(dataset.read(indices)).to(device).permute(0, 3, 1, 2)
        labels = torch.from_numpy(dataset.labels[start : indices.stop])
        with torch.inference_mode():
            logits = model(pixels.float().div_(255)).cpu()
        accuracy.update(logits, labels)
        calibration.update(logits.softmax(-1), labels)
    return accuracy.value, calibration.value


class _Run:
    """What evolves, and how."""

    def __init__(self, dataset: ImageDataset, model: nn.Module, recipe: Recipe, device: torch.device) -> None:
        self.recipe = recipe
        self.model = model.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.device = device
        self.images = torch.from_numpy(dataset.read(range(len(dataset)))).permute(0, 3, 1, 2)
        self.labels = torch.from_numpy(dataset.labels)
        self.about = {"dataset": dataset.name, "images": len(dataset), "recipe": dataclasses.asdict(recipe)}
        self.step = 0
        self.seconds = 0.0
        self.losses: list[float] = []
        self.total = None if recipe.epochs is None else max(1, round(recipe.epochs * len(dataset) / recipe.batch_size))
        decayed = [weight for weight in model.parameters() if weight.dim() > 1]
        others = [weight for weight in model.parameters() if weight.dim() <= 1]
        self.optimizer = torch.optim.SGD(
            [{"params": decayed, "weight_decay": recipe.weight_decay}, {"params": others, "weight_decay": 0.0}],
            lr=recipe.lr,
            momentum=recipe.momentum,
            nesterov=recipe.momentum > 0,
        )
        self.average = None if recipe.ema is None else {k: v.clone() for k, v in model.state_dict().items()}
        self._order: tuple[int, Tensor] = (-1, torch.empty(0))

    @property
    def share(self) -> float:
        if self.total is not None:
            return min(1.0, self.step / self.total)
        assert self.recipe.minutes is not None
        return min(1.0, self.seconds / (60 * self.recipe.minutes))

    @property
    def epoch(self) -> float:
        return self.step * self.recipe.batch_size / len(self.images)

    def steps(self) -> Iterator[News]:
        """Trains until the budget is spent, a step for each news."""
        while (share := self.share) < 1:
            begun = time.perf_counter()
            side = self.recipe.side(share, self.images.shape[2])
            chosen = self._next()
            pixels = self._augmented(self.images[chosen], side).to(self.device)
            loss = self._learn(pixels, self.labels[chosen].to(self.device), self.recipe.rate(share))
            self.step += 1
            self.seconds += time.perf_counter() - begun
            self.losses = [*self.losses[-49:], loss]
            if not math.isfinite(loss):
                raise StateError(
                    f"the loss is {loss} at step {self.step}: training has diverged; give a smaller lr than "
                    f"{self.recipe.lr}, and remove the checkpoint."
                )
            yield News(self.step, self.share, self.epoch, sum(self.losses) / len(self.losses), side, len(chosen))

    def _learn(self, pixels: Tensor, labels: Tensor, rate: float) -> float:
        self.model.train()
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        loss = F.cross_entropy(self.model(pixels.contiguous(memory_format=torch.channels_last)), labels)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        if self.average is not None and self.recipe.ema is not None:
            for name, value in self.model.state_dict().items():
                if value.is_floating_point():
                    self.average[name].lerp_(value, 1 - self.recipe.ema)
                else:
                    self.average[name].copy_(value)
        return float(loss.detach())

    def _next(self) -> Tensor:
        """Which images come: permutation after permutation, cut where a batch is full."""
        chosen: list[Tensor] = []
        position, wanted = self.step * self.recipe.batch_size, self.recipe.batch_size
        while wanted:
            epoch, start = divmod(position, len(self.images))
            if self._order[0] != epoch:
                self._order = (epoch, torch.randperm(len(self.images), generator=self._generator(2 * epoch)))
            piece = self._order[1][start : start + wanted]
            chosen.append(piece)
            position, wanted = position + len(piece), wanted - len(piece)
        return torch.cat(chosen)

    def _generator(self, number: int) -> torch.Generator:
        """Random numbers that depend on the seed and the place only: a resumed run draws the same."""
        return torch.Generator().manual_seed(self.recipe.seed * 2**32 + number)

    def _augmented(self, images: Tensor, side: int) -> Tensor:
        generator = self._generator(2 * self.step + 1)
        images = flip_and_crop(images, generator, round(self.recipe.padding * images.shape[2] / 32))
        chosen = torch.rand(len(images), generator=generator) < self.recipe.augmix
        pixels = images.float().div_(255)
        if bool(chosen.any()):
            pixels[chosen] = augmix(images[chosen], generator, severity=self.recipe.severity)
        if side != images.shape[2]:
            pixels = F.interpolate(pixels, (side, side), mode="bilinear", antialias=True)
        return pixels

    def finish(self) -> None:
        """The average, if there is one, becomes the model; eval mode."""
        if self.average is not None:
            self.model.load_state_dict(self.average)
        self.model.eval()

    def save(self, path: Path) -> None:
        tensors = {f"model.{name}": value for name, value in self.model.state_dict().items()}
        for number, weight in enumerate(self.model.parameters()):
            if "momentum_buffer" in (state := self.optimizer.state.get(weight, {})):
                tensors[f"momentum.{number}"] = state["momentum_buffer"]
        tensors |= {f"average.{name}": value for name, value in (self.average or {}).items()}
        place = {"step": self.step, "seconds": self.seconds, "losses": self.losses}
        states.write(path, tensors, {"kind": KIND, "about": self.about, **place})

    def restore(self, path: Path) -> None:
        tensors, facts = states.read(path, KIND)
        if facts["about"] != self.about:
            differing = [key for key in self.about if facts["about"].get(key) != self.about[key]]
            raise StateError(
                f"{path} is of another training ({', '.join(differing)} differ): give the same settings to go on, "
                "another output, or remove the file to begin anew."
            )
        state = {name.removeprefix("model."): value for name, value in tensors.items() if name.startswith("model.")}
        try:
            self.model.load_state_dict(state)
        except RuntimeError as wrong:
            raise StateError(f"{path} is of another model ({str(wrong).splitlines()[-1].strip()}).") from wrong
        for number, weight in enumerate(self.model.parameters()):
            if (buffer := tensors.get(f"momentum.{number}")) is not None:
                like = torch.empty_like(weight)  # in the weight's memory order
                self.optimizer.state[weight]["momentum_buffer"] = like.copy_(buffer)
        if self.average is not None:
            self.average = {name: tensors[f"average.{name}"].clone().to(self.device) for name in self.average}
        self.step, self.seconds, self.losses = facts["step"], facts["seconds"], facts["losses"]


def flip_and_crop(images: Tensor, generator: torch.Generator, padding: int) -> Tensor:
    """Mirrored left to right by chance, and shifted by up to ``padding`` pixels with reflected borders."""
    count, _, height, width = images.shape
    moves = torch.randint(-padding, padding + 1, (2, count), generator=generator)
    mirrored = torch.rand(count, 1, generator=generator) < 0.5
    rows = _reflected(torch.arange(height) + moves[0].view(-1, 1), height)
    columns = _reflected(torch.arange(width) + moves[1].view(-1, 1), width)
    columns = torch.where(mirrored, columns.flip(1), columns)
    sample = torch.arange(count).view(-1, 1, 1)
    return images.permute(0, 2, 3, 1)[sample, rows.unsqueeze(2), columns.unsqueeze(1)].permute(0, 3, 1, 2)


def _reflected(places: Tensor, size: int) -> Tensor:
    places = places.abs()
    return torch.where(places >= size, 2 * (size - 1) - places, places)


def _plain(value: object) -> object:
    """JSON has no NaN."""
    return None if isinstance(value, float) and math.isnan(value) else value
