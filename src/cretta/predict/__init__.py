"""Predictions for a set of images, into one file; resumable."""

from cretta.predict.images import open_images
from cretta.predict.run import predict
from cretta.predict.summary import Summary

__all__ = ["Summary", "open_images", "predict"]
