"""How a source model is trained: every number of the recipe, and its schedules."""

from __future__ import annotations

from dataclasses import dataclass

from cretta.accelerate import TRAINING_BACKENDS
from cretta.errors import OptionError
from cretta.options import OptionSet, choice, flag, integer, number

# Small images first: most of the training is done at a fraction of the cost. Shares of the progressive part.
PROGRESSION = ((0.4, 20 / 32), (0.8, 24 / 32), (1.0, 28 / 32))


@dataclass(frozen=True, kw_only=True)
class Recipe(OptionSet):
    """SGD with Nesterov momentum, one triangle of the learning rate, AugMix, images that grow.

    The budget is either epochs or minutes.

    >>> recipe = Recipe(epochs=10)
    >>> [round(recipe.rate(share), 3) for share in (0.0, 0.075, 0.15, 0.575, 1.0)]
    [0.0, 0.125, 0.25, 0.125, 0.0]
    >>> [recipe.side(share, 32) for share in (0.0, 0.31, 0.61, 0.75, 1.0)]
    [20, 24, 28, 32, 32]
    """

    epochs: float | None = number(
        None, "passes over the training images; the same seed then gives the same weights", above=0
    )
    minutes: float | None = number(
        None, "time spent in training steps, over all restarts; epochs follow from it", above=0
    )
    batch_size: int = integer(128, "images per step", at_least=2)
    lr: float = number(0.25, "the highest learning rate", above=0)
    warmup: float = number(0.15, "share of the budget in which the learning rate rises from 0", at_least=0, below=1)
    momentum: float = number(0.9, "Nesterov momentum", at_least=0, below=1)
    weight_decay: float = number(5e-4, "weight decay of tensors of rank above 1", at_least=0)
    augmix: float = number(0.8, "share of the images that AugMix changes", at_least=0, at_most=1)
    severity: float = number(3.0, "severity of AugMix", at_least=0.1, at_most=10)
    jsd: float = number(
        0.0,
        "weight of the Jensen-Shannon divergence between an image and two AugMix versions of it (12 in the AugMix "
        "paper; three forward passes per image instead of one)",
        at_least=0,
    )
    label_smoothing: float = number(
        0.0,
        "share of each label that is spread over all classes; a large one makes an underconfident model",
        at_least=0,
        below=1,
    )
    padding: int = integer(
        4, "pixels by which the random crop may be shifted, at 32 px; scaled for larger images", at_least=0, at_most=31
    )
    progressive: float = number(
        0.75, "share of the budget trained on smaller images, from 20/32 of their side upward", at_least=0, below=1
    )
    average: float = number(
        0.0,
        "share of the budget, at its end, whose weights are averaged; BatchNorm statistics are then estimated again",
        at_least=0,
        below=1,
    )
    holdout: int = integer(
        0, "training images that are not trained on; accuracy on them is logged after each epoch", at_least=0
    )
    learn: str = choice(
        "all", "which parameters are trained; the others keep their initial values", among=("all", "norm and head")
    )
    best: bool = flag(False, "keep the weights of the epoch with the highest accuracy on the held-out images")
    backend: str = choice(
        "auto",
        "how a step is computed; auto times the candidates and takes the fastest",
        among=("auto", *TRAINING_BACKENDS),
    )
    seed: int = integer(0, "seed of everything random", at_least=0, at_most=2**31 - 1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.epochs is None) == (self.minutes is None):
            raise OptionError(
                f"epochs={self.epochs}, minutes={self.minutes}: give one of them, as in epochs=10 or minutes=100."
            )
        if self.best and not self.holdout:
            raise OptionError(
                "best=True, holdout=0: the best epoch is chosen on held-out images; give holdout=100, say."
            )
        if self.best and self.average:
            raise OptionError(f"best=True, average={self.average}: give one of them.")

    def rate(self, share: float) -> float:
        """Return the learning rate when ``share`` of the budget is spent."""
        rising = share / self.warmup if self.warmup else 1.0
        return self.lr * max(0.0, min(rising, (1 - share) / (1 - self.warmup)))

    def side(self, share: float, full: int) -> int:
        """Return the side of the images when ``share`` of the budget is spent."""
        if not self.progressive:
            return full
        return next((round(full * part) for until, part in PROGRESSION if share < until * self.progressive), full)
