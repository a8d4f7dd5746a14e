"""Source models: a short, resumable recipe."""

from cretta.training.log import Row
from cretta.training.recipe import Recipe
from cretta.training.trainer import Progress, Trained, checkpoint_settings, evaluate, train

__all__ = ["Progress", "Recipe", "Row", "Trained", "checkpoint_settings", "evaluate", "train"]
