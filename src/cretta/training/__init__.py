"""Source models: a short, resumable recipe."""

from cretta.training.recipe import Recipe
from cretta.training.trainer import News, Trained, train

__all__ = ["News", "Recipe", "Trained", "train"]
