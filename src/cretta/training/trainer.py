"""The training loop: resumable at any step, bit for bit when the budget is in epochs."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.swa_utils import update_bn

from cretta import streams
from cretta.accelerate import fastest_training_backend, training_forward
from cretta.data import ImageDataset
from cretta.data.dataset import as_batch
from cretta.errors import OptionError, StateError
from cretta.metrics import BatchScores
from cretta.models.weights import WEIGHTS
from cretta.normalization import norm_layers
from cretta.optimizers import SGD
from cretta.storage import check_target, require_lock, require_same, tensorfile
from cretta.training.augmix import jensen_shannon
from cretta.training.batches import TrainingBatches
from cretta.training.log import Row, write_log
from cretta.training.recipe import Recipe

KIND = "training checkpoint"
STATISTICS_BATCHES = 64
"""Batches from which BatchNorm statistics of averaged weights are estimated."""


@dataclasses.dataclass(frozen=True)
class Progress:
    """The state of training after a step."""

    step: int
    share: float
    """Of the budget, 0 to 1."""
    epoch: float
    loss: float
    """Mean over the last 50 steps."""
    side: int
    """Of the images in this step."""
    rate: float
    """Images per second over the last 50 steps."""
    accuracy: float
    """On the held-out images, at the last evaluation; NaN before the first."""


@dataclasses.dataclass(frozen=True)
class Trained:
    """The result of a finished training."""

    epochs: float
    minutes: float
    accuracy: float
    calibration_error: float
    log: tuple[Row, ...]


def train(
    dataset: ImageDataset,
    model: nn.Module,
    recipe: Recipe,
    output: str | Path,
    *,
    test: ImageDataset | None = None,
    facts: dict[str, Any] | None = None,
    settings: dict[str, Any] | None = None,
    device: str | torch.device = "cpu",
    save_every: float = 60.0,
    progress: Callable[[Progress], None] = lambda progress: None,
) -> Trained:
    """Train ``model`` in place and write its weights, with ``facts`` about them, to ``output``.

    Every ``save_every`` seconds the complete state is written to ``<output>.checkpoint``; a call with the same
    arguments resumes from it, if no other process is doing so. ``settings`` are stored in it for
    :func:`checkpoint_settings`. The output's name with the suffix .csv holds the log, one row per epoch.
    """
    target, checkpoint = Path(output), checkpoint_of(output)
    log_file = target.with_suffix(".csv")
    check_target(target)
    if int(dataset.labels.min()) < 0:
        raise OptionError(f"{dataset.name} has images without labels: training needs a label per image.")
    if len(dataset) - recipe.holdout < recipe.batch_size:
        besides = f" besides holdout={recipe.holdout}" if recipe.holdout else ""
        raise OptionError(
            f"batch_size={recipe.batch_size}: {dataset.name} has only {len(dataset) - recipe.holdout} images{besides}; "
            "give a smaller number."
        )
    height, width = dataset[0][0].shape[:2]
    if height != width:
        raise OptionError(f"images of {dataset.name} are {height} × {width}: training takes square ones; give a size.")
    with require_lock(Path(f"{output}.lock")):
        run = _Training(dataset, model, recipe, torch.device(device), settings or {})
        if checkpoint.is_file():
            run.restore(checkpoint)
        elif recipe.backend == "auto":
            run.choose_backend()
        run.save(checkpoint)  # the choice of a backend depends on the clock: it must survive a kill
        saved = time.monotonic()
        for news in run.steps():
            progress(news)
            if run.log and run.log[-1].step == run.step:
                write_log(log_file, run.log)
            if time.monotonic() - saved > save_every:
                run.save(checkpoint)
                saved = time.monotonic()
        run.finish()
        accuracy, error = evaluate(model, test, device) if test is not None else (math.nan, math.nan)
        trained = Trained(run.epoch, run.seconds / 60, accuracy, error, tuple(run.log))
        write_log(log_file, run.log)
        summary = {name: value for name, value in dataclasses.asdict(trained).items() if name != "log"}
        about = {"kind": WEIGHTS, "side": height, **(facts or {}), "recipe": dataclasses.asdict(recipe), **summary}
        if recipe.holdout:
            row = max(run.log, key=lambda row: row.accuracy) if recipe.best else run.log[-1]
            about |= {"holdout_accuracy": row.accuracy, "holdout_calibration_error": row.calibration_error}
        about["backend"] = run.backend
        tensorfile.write(target, model.state_dict(), {key: _finite(value) for key, value in about.items()})
        checkpoint.unlink(missing_ok=True)
        return trained


def checkpoint_of(output: str | Path) -> Path:
    """Return where the state of an unfinished training is stored."""
    return Path(f"{output}.checkpoint")


def checkpoint_settings(output: str | Path) -> dict[str, Any]:
    """Return the ``settings`` that an unfinished training was started with."""
    path = checkpoint_of(output)
    if not path.is_file():
        raise StateError(f"{path}: no such file; expected the checkpoint of an unfinished training of {output}.")
    settings: dict[str, Any] = tensorfile.read(path, KIND)[1]["settings"]
    return settings


def evaluate(
    model: nn.Module, dataset: ImageDataset, device: str | torch.device = "cpu", batch_size: int = 500
) -> tuple[float, float]:
    """Return accuracy and calibration error (10 bins) of ``model`` in eval mode, without adaptation."""

    def read(batch: streams.Batch) -> tuple[Tensor, Tensor]:
        return as_batch(dataset.read(batch.indices), device), torch.from_numpy(dataset.labels[batch.indices])

    model.eval()
    with torch.inference_mode():
        steps = streams.follow(streams.ordered(range(len(dataset)), batch_size), read, model)
        scores = BatchScores.sum([BatchScores.of(step.logits, step.extra) for step in steps])
    return scores.accuracy, scores.calibration_error


class _Training:
    """The state of one training and how it advances."""

    def __init__(
        self, dataset: ImageDataset, model: nn.Module, recipe: Recipe, device: torch.device, settings: dict[str, Any]
    ) -> None:
        self.recipe = recipe
        self.model = model.to(device).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.device = device
        self.batches = TrainingBatches(dataset, recipe)
        self.settings = settings
        self.about = {"dataset": dataset.name, "images": len(dataset), "recipe": dataclasses.asdict(recipe)}
        self.step = 0
        self.seconds = 0.0
        self.averaged = 0
        self.losses: list[float] = []
        self.times: list[float] = []
        self.log: list[Row] = []
        steps_per_epoch = len(self.batches) / recipe.batch_size
        self.total = None if recipe.epochs is None else max(1, round(recipe.epochs * steps_per_epoch))
        if recipe.learn == "norm and head":
            linear = [layer for layer in model.modules() if isinstance(layer, nn.Linear)]
            model.requires_grad_(False)
            for layer in [*(layer for _, layer in norm_layers(model)), *linear[-1:]]:
                layer.requires_grad_(True)
        learned = [weight for weight in model.parameters() if weight.requires_grad]
        decayed = [weight for weight in learned if weight.dim() > 1]
        others = [weight for weight in learned if weight.dim() <= 1]
        self.optimizer = SGD(
            [{"params": decayed, "weight_decay": recipe.weight_decay}, {"params": others, "weight_decay": 0.0}],
            lr=recipe.lr,
            momentum=recipe.momentum,
            nesterov=recipe.momentum > 0,
        )
        self.average = {name: weight.detach().clone() for name, weight in model.named_parameters()}
        self.best: dict[str, Tensor] = {}
        self.use(recipe.backend if recipe.backend != "auto" else "plain")

    def use(self, backend: str) -> None:
        """Compute the steps to come by ``backend``."""
        self.backend = backend
        self.forward = training_forward(self.model, backend)

    def choose_backend(self) -> None:
        """Take the fastest backend on a batch of this training."""
        chosen = self.batches.indices(self.step)[:32]
        pixels = self.batches.images[chosen].to(self.device).float().div_(255)
        labels = self.batches.labels[chosen].to(self.device)
        self.use(fastest_training_backend(self.model, _channels_last(pixels), labels)[0])

    @property
    def share(self) -> float:
        if self.total is not None:
            return min(1.0, self.step / self.total)
        assert self.recipe.minutes is not None
        return min(1.0, self.seconds / (60 * self.recipe.minutes))

    @property
    def epoch(self) -> float:
        return self.step * self.recipe.batch_size / len(self.batches)

    def steps(self) -> Iterator[Progress]:
        """Train until the budget is spent; yield after each step."""
        while (share := self.share) < 1:
            begun = time.perf_counter()
            side = self.recipe.side(share, self.batches.side)
            labels = self.batches.labels[self.batches.indices(self.step)]
            loss = self._learn(self.batches.views(self.step, side), labels, self.recipe.rate(share))
            if share >= 1 - self.recipe.average:
                self.averaged += 1
                for name, weight in self.model.named_parameters():
                    self.average[name].lerp_(weight.detach(), 1 / self.averaged)
            self.step += 1
            self.times = [*self.times[-49:], time.perf_counter() - begun]
            self.seconds += self.times[-1]
            self.losses = [*self.losses[-49:], loss]
            if not math.isfinite(loss):
                raise StateError(
                    f"the loss is {loss} at step {self.step}: training has diverged; give a smaller lr than "
                    f"{self.recipe.lr}, and remove the checkpoint."
                )
            if int(self.epoch) > int((self.step - 1) * len(labels) / len(self.batches)):
                self.evaluate()
            yield Progress(
                step=self.step,
                share=self.share,
                epoch=self.epoch,
                loss=sum(self.losses) / len(self.losses),
                side=side,
                rate=len(labels) * len(self.times) / sum(self.times),
                accuracy=self.log[-1].accuracy if self.log else math.nan,
            )

    def _learn(self, views: list[Tensor], labels: Tensor, rate: float) -> float:
        """Take one step of SGD on the cross-entropy of the first view, and the divergence between all of them."""
        self.model.train()
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        logits = self.forward(_channels_last(torch.cat(views).to(self.device)))
        by_view = logits.chunk(len(views))
        loss = F.cross_entropy(by_view[0], labels.to(self.device), label_smoothing=self.recipe.label_smoothing)
        if len(views) > 1:
            loss = loss + self.recipe.jsd * jensen_shannon(by_view)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())

    def evaluate(self) -> None:
        """Append a row to the log, with accuracy and calibration error on the held-out images."""
        accuracy = error = math.nan
        if len(self.batches.held_out):
            accuracy, error = evaluate(self.model, self.batches.held_out, self.device)
        share, loss = self.share, sum(self.losses) / len(self.losses)
        side, rate = self.recipe.side(share, self.batches.side), self.recipe.rate(share)
        if self.recipe.best and all(accuracy > row.accuracy for row in self.log):
            self.best = {name: value.clone() for name, value in self.model.state_dict().items()}
        self.log.append(Row(self.epoch, self.step, self.seconds / 60, rate, side, loss, accuracy, error))

    def finish(self) -> None:
        """Take the averaged weights, if any, with BatchNorm statistics estimated for them; leave eval mode on."""
        if self.averaged:
            with torch.no_grad():
                for name, weight in self.model.named_parameters():
                    weight.copy_(self.average[name])
            # Plain means of BatchNorm statistics over the batches that would come next, at the full side.
            steps, side = range(self.step, self.step + STATISTICS_BATCHES), self.batches.side
            views = (self.batches.views(step, side)[0] for step in steps)
            update_bn((_channels_last(view.to(self.device)) for view in views), self.model)
        if self.recipe.average or not self.log or self.log[-1].step != self.step:
            self.evaluate()
        if self.best:
            self.model.load_state_dict(self.best)
        self.model.eval()

    def save(self, path: Path) -> None:
        momentum = [self.optimizer.state.get(weight, {}).get("momentum_buffer") for weight in self.model.parameters()]
        groups = {
            "model": self.model.state_dict(),
            "momentum": {str(number): buffer for number, buffer in enumerate(momentum) if buffer is not None},
            "average": self.average if self.averaged else {},
            "best": self.best,
        }
        tensors = {f"{group}.{name}": value for group, values in groups.items() for name, value in values.items()}
        log = [{name: _finite(value) for name, value in dataclasses.asdict(row).items()} for row in self.log]
        progress = {"step": self.step, "seconds": self.seconds, "losses": self.losses, "averaged": self.averaged}
        about = {"kind": KIND, "about": self.about, "settings": self.settings, "backend": self.backend, "log": log}
        tensorfile.write(path, tensors, {**about, **progress})

    def restore(self, path: Path) -> None:
        tensors, facts = tensorfile.read(path, KIND)
        require_same(path, facts["about"], self.about, "To start over, remove the file or give another output.")
        groups: dict[str, dict[str, Tensor]] = {"model": {}, "momentum": {}, "average": {}, "best": {}}
        for key, value in tensors.items():
            group, _, name = key.partition(".")
            groups[group][name] = value
        try:
            self.model.load_state_dict(groups["model"])
        except RuntimeError as error:
            raise StateError(f"{path} belongs to another model ({str(error).splitlines()[-1].strip()}).") from error
        for number, weight in enumerate(self.model.parameters()):
            if (buffer := groups["momentum"].get(str(number))) is not None:
                like = torch.empty_like(weight)  # in the weight's memory order
                self.optimizer.state[weight]["momentum_buffer"] = like.copy_(buffer)
        self.best = {name: value.clone() for name, value in groups["best"].items()}
        self.step, self.seconds, self.losses = facts["step"], facts["seconds"], facts["losses"]
        self.averaged = facts["averaged"]
        for name, value in groups["average"].items():
            self.average[name].copy_(value)
        for row in facts["log"]:
            values: dict[str, Any] = {name: math.nan if value is None else value for name, value in row.items()}
            self.log.append(Row(**values))
        self.use(facts["backend"])


def _channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def _finite(value: Any) -> Any:
    """Return None for NaN, which JSON does not have."""
    return None if isinstance(value, float) and math.isnan(value) else value
