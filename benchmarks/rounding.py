"""How far float32 gradients are from float64, and the rewritten network and the kernels from PyTorch's operations.

    python benchmarks/rounding.py [--batches 5] [--only-tiles]

The tolerances of cretta.accelerate were chosen by these numbers; printed is the largest value of several batches. The
error of logits is divided by the largest logit; the error of gradients is the root mean square, over all parameters and
the images, of the norm of the difference divided by the norm. "Kernel": the largest error of one result of a kernel.
Each row is measured with one size of Winograd's tiles in all convolutions, forward and backward.

The second table is about the larger tiles in forward passes without a gradient: the largest difference of a logit from
PyTorch's, and how many predictions of the 2 000 embedded test images differ. 0.001, or one prediction, ends the run
with an error.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor, nn

import cretta
import results
from cretta.accelerate import Accelerator, choices, kernels, winograd
from cretta.accelerate.accelerator import gradient_error
from cretta.accelerate.graph import rewrite
from cretta.data import corrupt, embedded
from cretta.network import copy_sharing_parameters
from cretta.normalization import NormStatistics, StreamAverage, norm_parameter_names


def images(count: int, seed: int) -> Tensor:
    """Return embedded test images with noise, in channels-last layout."""
    pixels = embedded("test").images
    chosen = np.random.default_rng(seed).choice(len(pixels), count, replace=False)
    noisy = corrupt(pixels[chosen], "gaussian_noise", severity=5, seed=seed)
    x = torch.from_numpy(noisy).permute(0, 3, 1, 2).float() / 255
    return x.contiguous(memory_format=torch.channels_last)


def shipped() -> nn.Module:
    return cretta.models.load("wrn-40-2-cifar10")


def resnet() -> nn.Module:
    """Return ResNet-26 with random weights and running statistics of test images."""
    torch.manual_seed(0)
    net = cretta.models.build("resnet-26").train()
    with torch.no_grad():
        for seed in range(1000, 1010):
            net(images(64, seed))
    return net.eval()


def adapting(net: nn.Module, statistics: str) -> nn.Module:
    """Return a copy whose normalization layers learn, as in an adapter."""
    names = norm_parameter_names(net)
    module = copy_sharing_parameters(net, own=names)
    NormStatistics(module, statistics, StreamAverage())
    for name in names:
        module.get_parameter(name).requires_grad_(True)
    return module


def compared(results: list[Tensor], expected: list[Tensor]) -> list[float]:
    """Return the errors of logits and gradients."""
    logits = float((results[0] - expected[0]).abs().max() / expected[0].abs().max())
    return [logits, gradient_error(results, expected)]


def larger_tiles() -> bool:
    """Print what the larger tiles change on the embedded images; return whether it is as little as required."""
    pixels = embedded("test").images
    shifts = {"clean": pixels, "gaussian_noise": corrupt(pixels, "gaussian_noise", severity=5, seed=0)}
    fine = True
    print(f"{'WRN-40-2, 2 000 images':34}{'F(2 × 2)':>12}{'F(4 × 4)':>12}{'predictions changed':>21}")
    for shift, chosen in shifts.items():
        x = torch.from_numpy(chosen).permute(0, 3, 1, 2).float() / 255
        x = x.contiguous(memory_format=torch.channels_last)
        for statistics in ("running", "batch"):
            module = adapting(shipped(), statistics).requires_grad_(False)
            network = rewrite(module, learns=False)
            assert isinstance(network, nn.Module)
            off, changed = [0.0, 0.0], 0
            for batch in x.split(200):
                with torch.no_grad():
                    plain = kernels.without(network)(batch)
                    with kernels.use(kernels.paths()[0]):
                        large = network(batch)
                with kernels.use(kernels.paths()[0]):
                    small = network(batch.clone().requires_grad_()).detach()
                off = [max(off[0], float((small - plain).abs().max())), max(off[1], float((large - plain).abs().max()))]
                changed += int((large.argmax(1) != plain.argmax(1)).sum())
            print(f"{shift + ', ' + statistics + ' statistics':34}{off[0]:12.1e}{off[1]:12.1e}{changed:21}")
            fine &= off[1] < 1e-3 and changed == 0
    return fine


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=5)
    parser.add_argument("--only-tiles", action="store_true", help="only the table of the larger tiles")
    arguments = parser.parse_args()
    if kernels.missing() is not None:
        sys.exit(f"there are no kernels to compare: {kernels.missing()}")
    with results.printed("rounding-tiles"):
        fine = larger_tiles()
    if not arguments.only_tiles:
        with results.printed("rounding"):
            both_tiles(arguments.batches)
    if not fine:
        sys.exit("the larger tiles change more than is allowed")


def use_tiles(large: bool) -> None:
    """Make one size of tiles the choice for all convolutions of this process, whatever it takes."""

    def preferred(runs: Mapping[str, object]) -> dict[str, float]:
        return {
            name: 9.0 if name == choices.PYTORCH else 1.0 + (name.endswith(winograd.LARGE_TILES) != large)
            for name in runs
        }

    choices.forget()
    choices.timed = preferred  # replaced in this process


def both_tiles(batches: int) -> None:
    """Print the errors of the rewritten network and of the kernels."""
    columns = ("plain, float64", "kernels, float64", "kernels, plain", "rewritten, plain")
    print(" " * 41 + "".join(f"{column:^20}" for column in columns))
    print(" " * 41 + len(columns) * f"{'logits':>10}{'gradients':>10}" + f"{'kernel':>10}")
    networks: dict[str, Callable[[], nn.Module]] = {"WRN-40-2": shipped, "ResNet-26": resnet}
    for name, make in networks.items():
        net = make()
        for statistics in ("batch", "running"):
            module = adapting(net, statistics)
            exact = copy.deepcopy(module).double()
            network = rewrite(module, learns=True)
            assert isinstance(network, nn.Module)
            run, run_exact = Accelerator(module, learns=True).results, Accelerator(exact, learns=True).results
            for size in (8, 32):
                rows: dict[bool, list[list[float]]] = {False: [], True: []}
                for seed in range(batches):
                    x = images(size, seed)
                    double, plain = run_exact(exact, x.double()), run(module, x)
                    rewritten = run(kernels.without(network), x)
                    with kernels.compared(kernels.paths()[0]) as (errors, _):
                        run(network, x)
                    for large, found in rows.items():
                        use_tiles(large)
                        fast = run(network, x)
                        pairs = ((plain, double), (fast, double), (fast, plain), (rewritten, plain))
                        found.append([value for pair in pairs for value in compared(*pair)] + [max(errors, default=0)])
                for large, found in rows.items():
                    row = torch.tensor(found).amax(0).tolist()
                    title = f"{name}, {statistics}, {size} images, {'F(4 × 4)' if large else 'F(2 × 2)'}"
                    print(title.ljust(41) + "".join(f"{value:10.1e}" for value in row), flush=True)


if __name__ == "__main__":
    main()
