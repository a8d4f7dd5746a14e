"""Source: the model as it was trained."""

from cretta.adapter import Adapter
from cretta.method import Facts


class Source(Adapter):
    """The source model, unchanged: the baseline of every other method."""

    name = "source"
    facts = Facts(updates="nothing", statistics="running", logits="before")
