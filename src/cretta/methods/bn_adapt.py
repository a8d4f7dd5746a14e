"""BN-Adapt: statistics of the batch, nothing learned."""

from cretta.adapter import Adapter
from cretta.errors import ModelError
from cretta.method import Facts
from cretta.normalization import has_batch_norm


class BNAdapt(Adapter):
    """BatchNorm with the statistics of the current batch (Schneider et al., 2020; Nado et al., 2020)."""

    name = "bn_adapt"
    facts = Facts(updates="nothing", statistics="batch", logits="before")

    def begin(self) -> None:
        """Raise for a network that has no statistics to replace."""
        if not has_batch_norm(self.net):
            raise ModelError(
                f"{type(self.net).__name__} has no BatchNorm layer, so bn_adapt would be the source model. Use "
                "'source', or a method that learns γ and β, such as 'tent' or 'cretta'."
            )
