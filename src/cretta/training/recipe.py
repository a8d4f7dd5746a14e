"""How a source model is trained: every number of the recipe, and what follows from how far it has come."""

from __future__ import annotations

from dataclasses import dataclass

from cretta.errors import OptionError
from cretta.options import OptionSet, flag, integer, number

# Small images first: most of the training is done at a fraction of the cost.
PROGRESSION = ((0.30, 20 / 32), (0.60, 24 / 32), (0.75, 28 / 32), (1.0, 1.0))


@dataclass(frozen=True, kw_only=True)
class Recipe(OptionSet):
    """SGD with Nesterov momentum, one triangle of the learning rate, AugMix, images that grow.

    The defaults are those of the shipped WRN-40-2; the budget is either epochs or minutes.

    >>> recipe = Recipe(epochs=10)
    >>> [round(recipe.rate(share), 3) for share in (0.0, 0.075, 0.15, 0.575, 1.0)]
    [0.0, 0.125, 0.25, 0.125, 0.0]
    >>> [recipe.side(share, 32) for share in (0.0, 0.3, 0.6, 0.75, 1.0)]
    [20, 24, 28, 32, 32]
    """

    epochs: float | None = number(
        None, "how often every image is seen; the same seed then gives the same weights", above=0
    )
    minutes: float | None = number(None, "time to train for, whatever the machine; epochs follow from it", above=0)
    batch_size: int = integer(128, "images a step", at_least=2)
    lr: float = number(0.25, "the highest learning rate", above=0)
    warmup: float = number(0.15, "share of the budget in which the rate climbs from 0", at_least=0, below=1)
    momentum: float = number(0.9, "Nesterov momentum", at_least=0, below=1)
    weight_decay: float = number(5e-4, "decay of tensors of rank above 1", at_least=0)
    augmix: float = number(0.8, "share of the images that AugMix changes", at_least=0, at_most=1)
    severity: float = number(3.0, "severity of AugMix", at_least=0.1, at_most=10)
    padding: int = integer(
        4, "pixels by which the random crop may be off, at 32 px; larger images scale it", at_least=0
    )
    progressive: bool = flag(True, "begin with images of 20/32 of their size, end with whole ones")
    ema: float | None = number(None, "decay a step of an average of the weights, which is then kept", above=0, below=1)
    seed: int = integer(0, "seed of everything random", at_least=0, at_most=2**31 - 1)

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.epochs is None) == (self.minutes is None):
            raise OptionError(
                f"epochs={self.epochs}, minutes={self.minutes}: give one of them, as in epochs=10 or minutes=100."
            )

    def rate(self, share: float) -> float:
        """The learning rate when ``share`` of the budget is spent."""
        climbing = share / self.warmup if self.warmup else 1.0
        return self.lr * max(0.0, min(climbing, (1 - share) / (1 - self.warmup)))

    def side(self, share: float, full: int) -> int:
        """The side of the images then."""
        if not self.progressive:
            return full
        return next((round(full * part) for until, part in PROGRESSION if share < until), full)
