"""TorchScript modules as networks: they predict, and BN-Adapt works where statistics are not compiled in."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from cretta.errors import ModelError, StateError


class StandIn(nn.BatchNorm2d):
    """Stands for a compiled BatchNorm layer: it can exchange the statistics, not blend them."""

    def __init__(self) -> None:
        super().__init__(1, affine=False)

    def register_forward_pre_hook(self, *_: Any, **__: Any) -> RemovableHandle:
        """Refuse to change the input of a compiled layer."""
        raise ModelError(
            "statistics='mixture' and 'moving' do not work with TorchScript, whose layers are compiled. Use 'batch' or "
            "'running'; for others, adapt the network it was compiled from, or export that by torch.export."
        )


class Scripted(nn.Module):
    """A TorchScript module that an adapter can copy and give other BatchNorm statistics.

    Compiled layers are of no class that an adapter knows. Each BatchNorm that still asks whether it is in training has
    a stand-in here: who takes the stand-in's running statistics away lets the layer use those of the batch. That
    is all the compiled code can be told, so nothing can learn.
    """

    def __init__(self, script: torch.jit.ScriptModule) -> None:
        super().__init__()
        self.script = script
        self.follows_training = False
        graph = script.inlined_graph  # must outlive its nodes
        for node in graph.findAllNodes("aten::batch_norm"):  # type: ignore[attr-defined]  # not in the stubs
            training = node.inputsAt(5)
            self.follows_training = training.node().kind() != "prim::Constant"
            if not self.follows_training:
                if training.toIValue():
                    raise ModelError(
                        "the TorchScript module was traced in train mode, and would predict with dropout and with "
                        "statistics of the batch whatever it is told; call net.eval() before torch.jit.trace."
                    )
                break
        # A list of its own: as an attribute, the layers would be registered a second time.
        self.stand_ins = nn.ModuleList(StandIn() for _ in self._layers())

    def _layers(self) -> list[nn.Module]:
        """Layers with running statistics, in order; none where these are compiled in."""
        return [m for m in self.script.modules() if hasattr(m, "running_mean")] if self.follows_training else []

    def forward(self, x: Tensor) -> Tensor:
        """What the compiled module returns."""
        for layer, stand_in in zip(self._layers(), self.stand_ins, strict=True):
            layer.training = stand_in.running_mean is None
        try:
            answer: Tensor = self.script(x)
        except torch.jit.Error as wrong:
            # Of its own kind, and pages long; the last line is what Python would have said.
            raise RuntimeError(str(wrong).strip().splitlines()[-1]) from wrong
        return answer


def open_scripted(path: Path, device: torch.device) -> Scripted:
    """Reads a file of ``torch.jit.save``."""
    try:
        with warnings.catch_warnings():
            # Who has such a file knows, or can do nothing about it.
            warnings.filterwarnings("ignore", r"`torch\.jit\.load` is deprecated", DeprecationWarning)
            script = torch.jit.load(str(path), map_location=device)
    except (RuntimeError, ValueError, OSError) as wrong:
        reason = str(wrong).strip().splitlines() or [type(wrong).__name__]
        raise StateError(f"{path} cannot be read as TorchScript ({reason[0]}); save it anew.") from wrong
    return Scripted(script.eval())
