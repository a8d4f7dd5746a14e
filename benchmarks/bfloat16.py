"""What bfloat16 in passes without a gradient does to CreTTA: accuracy and ECE on shifts of CIFAR-10.

    python benchmarks/bfloat16.py [--images 1000] [--shift fog …]

Shipped WRN-40-2, embedded test images at severity 5, batches of 200, a buffer of 1 000. Where the processor has no
bfloat16, passes without a gradient round the inputs, weights and outputs of all layers to bfloat16 and multiply in
float32: the products are the same numbers, only the order of sums differs.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import torch
from rich.progress import track
from torch import Tensor, nn

import cretta
import results
from cretta.data import corrupt, embedded

SHIFTS = ("gaussian_noise", "fog", "jpeg_compression")
BATCH = 200


def rounded(x: Tensor) -> Tensor:
    return x.bfloat16().float()


class Rounding:
    """Rounds what the layers of a network take and return, while it is enabled."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.weights = {p: (p.detach().clone(), rounded(p.detach())) for p in module.parameters() if p.dim() > 1}

    def __call__(self, x: Tensor) -> Tensor:
        """Return the logits of a batch."""
        hooks = []
        for layer in self.module.modules():
            if not any(layer.children()):
                hooks.append(layer.register_forward_pre_hook(lambda _, args: tuple(map(rounded, args))))
                hooks.append(layer.register_forward_hook(lambda _, args, output: rounded(output)))
        for parameter, (_, half) in self.weights.items():
            parameter.data = half
        try:
            logits: Tensor = self.module(x)
            return logits
        finally:
            for parameter, (full, _) in self.weights.items():
                parameter.data = full
            for hook in hooks:
                hook.remove()


def round_passes(model: cretta.Adapter[Any]) -> None:
    """Make the passes without a gradient of an adapter's networks round to bfloat16."""
    for network in (model.model, *model._frozen.values()):
        rounding, run = Rounding(network.module), network._run

        def passes(
            x: Tensor, role: Any, *, plain: bool = False, run: Callable[..., Tensor] = run, half: Rounding = rounding
        ) -> Tensor:
            return run(x, role, plain=plain) if torch.is_grad_enabled() else half(x)

        network._run = passes  # type: ignore[method-assign]  # a measurement only


def measure(shift: str, images: int, precision: str) -> tuple[float, float]:
    """Return accuracy and ECE in percent."""
    data = embedded("test")
    pixels = corrupt(data.images[:images], shift, severity=5, seed=0)
    x = torch.from_numpy(pixels).permute(0, 3, 1, 2).float() / 255
    buffer = cretta.SourceBuffer(embedded("train").images[:1000], augment="none")
    model = cretta.adapt(cretta.models.load("wrn-40-2-cifar10"), "cretta", buffer=buffer)
    if precision == "bfloat16":
        round_passes(model)
    logits = torch.cat([model(batch) for batch in track(x.split(BATCH), f"{shift}, {precision}", transient=True)])
    labels = torch.as_tensor(data.labels[:images])
    probabilities = logits.softmax(1)
    accuracy = float((probabilities.argmax(1) == labels).float().mean())
    return 100 * accuracy, 100 * float(cretta.metrics.calibration_error(probabilities, labels))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--shift", action="append")
    arguments = parser.parse_args()
    rows = []
    for shift in arguments.shift or SHIFTS:
        full, half = (measure(shift, arguments.images, precision) for precision in ("float32", "bfloat16"))
        cells = [f"{full[0]:.2f}", f"{half[0]:.2f}", f"{half[0] - full[0]:+.2f}"]
        cells += [f"{full[1]:.2f}", f"{half[1]:.2f}", f"{half[1] - full[1]:+.2f}"]
        rows.append(f"| {shift} | {' | '.join(cells)} |")
    with results.printed("bfloat16"):
        head = "| shift | accuracy, float32 | bfloat16_no_grad | Δ | ECE, float32 | bfloat16_no_grad | Δ |"
        print("\n".join([head, f"|{'---|' * 7}", *rows]))


if __name__ == "__main__":
    main()
