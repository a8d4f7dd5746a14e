# Written by scripts/write_method_table.py; cretta.CreTTA has this signature for type checkers.
from collections.abc import Sequence

from torch import nn

from cretta.buffer import SourceBuffer
from cretta.methods import cretta
from cretta.monitor.guard import Guard

class CreTTA(cretta.CreTTA):
    def __init__(
        self,
        net: nn.Module,
        buffer: SourceBuffer | None = None,
        *,
        preset: str | None = None,
        lr: float = 0.001,
        optimizer: str = "adam",
        momentum: float = 0.9,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        steps: int = 1,
        adapt_every: int = 1,
        episodic: bool = False,
        statistics: str | None = None,
        batch_weight: float = 0.1,
        predict: str | None = None,
        temperature: float = 1.0,
        skip: Sequence[str] = (),
        channels_last: bool = True,
        fuse: bool = True,
        compile: str | None = None,
        precision: str = "full",
        guard: Guard | str | None = None,
        calibrate: str | None = None,
        calibrate_every: int = 10,
        reset_every: int = 0,
        busy: str = "wait",
        seed: int = 0,
        beta: float = 1.0,
        reference: str = "running",
        contrast: float = 1.0,
        pairs: str = "one_to_one",
        objective: str = "residual",
        weighting: str = "adaptive",
        source: str = "buffer",
        source_fraction: float = 1.0,
        lean: bool = False,
        augment: str | None = None,
    ) -> None: ...
