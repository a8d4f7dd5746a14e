"""Source: the model as it was trained."""

from cretta.adapter import Adapter
from cretta.method import Facts


class Source(Adapter):
    """The source model, unchanged: what every other method is compared with."""

    name = "source"
    facts = Facts(updates="nothing", statistics="running", source_data=False, logits="before")
