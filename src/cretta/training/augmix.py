"""AugMix (Hendrycks et al., 2020) for a batch at once.

Operations and their ranges are those of the published code, which works image by image with Pillow: nine of them, none
of which is one of the corruptions to be tested on. Here the five geometric ones are one resampling of all images, the
four tonal ones tables of 256 entries per image and channel.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

AUTOCONTRAST, EQUALIZE, POSTERIZE, SOLARIZE, ROTATE, SHEAR_X, SHEAR_Y, TRANSLATE_X, TRANSLATE_Y = range(9)
OPERATIONS = 9
WIDTH, DEPTH = 3, 3
"""Chains per image, and the most operations of a chain: those of the paper."""


def augmix(images: Tensor, generator: torch.Generator, *, severity: float = 3.0) -> Tensor:
    """Return (1 − m) x + m Σ w_k chain_k(x): uint8 (N, 3, H, W) → float in [0, 1].

    Three chains of 1 to 3 random operations, weights w ~ Dirichlet(1), m ~ Beta(1, 1), all drawn for each image on its
    own; ``severity`` goes from 0.1 to 10.
    """
    count = len(images)

    def uniform(*shape: int) -> Tensor:
        return torch.rand(shape, generator=generator)

    chains = images.repeat_interleave(WIDTH, 0)
    lengths = torch.randint(1, DEPTH + 1, (len(chains),), generator=generator)
    for step in range(DEPTH):
        operations = torch.randint(OPERATIONS, (len(chains),), generator=generator)
        levels = 0.1 + (severity - 0.1) * uniform(len(chains))
        signs = torch.where(uniform(len(chains)) < 0.5, -1.0, 1.0)
        going = torch.nonzero(lengths > step).flatten()
        chains[going] = apply(chains[going], operations[going], levels[going], signs[going])
    # A Dirichlet(1, …, 1) is the normalized row of exponential variates.
    weights = -torch.log1p(-uniform(count, WIDTH))
    weights = weights / weights.sum(1, keepdim=True)
    share = uniform(count, 1)
    weights = (weights * share).to(images.device)
    mixed = torch.einsum("nk,nkchw->nchw", weights, chains.view(count, WIDTH, *images.shape[1:]).float())
    return (mixed + (1 - share.to(images.device)).view(-1, 1, 1, 1) * images.float()).div_(255)


def apply(images: Tensor, operations: Tensor, levels: Tensor, signs: Tensor) -> Tensor:
    """Apply one operation per image, by number, at levels from 0 to 10; bytes in and out."""
    result = images.clone()
    geometric = torch.nonzero(operations >= ROTATE).flatten()
    if len(geometric):
        matrices = _matrices(operations[geometric], levels[geometric], signs[geometric], images.shape[2])
        result[geometric] = _resampled(images[geometric], matrices.to(images.device))
    for operation, table in enumerate((_autocontrast, _equalize, _posterize, _solarize)):
        chosen = torch.nonzero(operations == operation).flatten()
        if len(chosen):
            flat = images[chosen].flatten(2)
            tables = table(flat, levels[chosen].to(images.device))
            result[chosen] = tables.expand(*flat.shape[:2], 256).gather(2, flat.long()).view_as(images[chosen])
    return result


def _matrices(operations: Tensor, levels: Tensor, signs: Tensor, side: int) -> Tensor:
    """Return where output pixels come from: (N, 2, 3), in pixels, as Pillow's affine transform takes them."""
    matrices = torch.zeros(len(operations), 2, 3)
    matrices[:, 0, 0] = matrices[:, 1, 1] = 1
    shear = levels * 0.3 / 10 * signs
    shift = torch.trunc(levels * (side / 3) / 10) * signs
    angle = torch.trunc(levels * 30 / 10) * signs * (math.pi / 180)
    matrices[:, 0, 1] = torch.where(operations == SHEAR_X, shear, 0.0)
    matrices[:, 1, 0] = torch.where(operations == SHEAR_Y, shear, 0.0)
    matrices[:, 0, 2] = torch.where(operations == TRANSLATE_X, shift, 0.0)
    matrices[:, 1, 2] = torch.where(operations == TRANSLATE_Y, shift, 0.0)
    rotation = torch.stack((angle.cos(), -angle.sin(), angle.sin(), angle.cos()), 1).view(-1, 2, 2)
    turned = torch.cat((rotation, side / 2 * (1 - rotation.sum(2, keepdim=True))), 2)
    return torch.where((operations == ROTATE).view(-1, 1, 1), turned, matrices)


def _resampled(images: Tensor, matrices: Tensor) -> Tensor:
    """Resample bilinearly; what comes from outside of the image is black, as with Pillow."""
    height, width = images.shape[2:]
    y, x = torch.meshgrid(torch.arange(height) + 0.5, torch.arange(width) + 0.5, indexing="ij")
    positions = torch.stack((x, y, torch.ones_like(x)), 2).to(images.device)
    source = torch.einsum("nij,hwj->nhwi", matrices, positions)
    size = torch.tensor((width, height), device=images.device)
    sampled = F.grid_sample(images.float(), source / size * 2 - 1, "bilinear", "border", align_corners=False)
    inside = ((source >= 0) & (source < size)).all(3).unsqueeze(1)
    return (sampled * inside + 0.5).to(torch.uint8)


def _autocontrast(pixels: Tensor, levels: Tensor) -> Tensor:
    low, high = pixels.amin(2, keepdim=True).double(), pixels.amax(2, keepdim=True).double()
    gray = torch.arange(256, device=pixels.device).expand(*pixels.shape[:2], 256)
    scale = 255 / (high - low).clamp(min=1)
    stretched = torch.trunc(gray * scale - low * scale).clamp(0, 255)
    return torch.where(high > low, stretched, gray).to(torch.uint8)


def _equalize(pixels: Tensor, levels: Tensor) -> Tensor:
    counts = torch.zeros(*pixels.shape[:2], 256, dtype=torch.long, device=pixels.device)
    counts.scatter_add_(2, pixels.long(), torch.ones(1, dtype=torch.long, device=pixels.device).expand(pixels.shape))
    brightest = counts.gather(2, pixels.amax(2, keepdim=True).long())
    step = (pixels.shape[2] - brightest) // 255
    below = counts.cumsum(2) - counts
    flat = ((step // 2 + below) // step.clamp(min=1)).clamp(max=255)
    gray = torch.arange(256, device=pixels.device).expand_as(flat)
    return torch.where(step > 0, flat, gray).to(torch.uint8)


def _posterize(pixels: Tensor, levels: Tensor) -> Tensor:
    bits = (4 - torch.trunc(levels * 4 / 10).long()).clamp(min=1)
    mask = (0xFF << (8 - bits)) & 0xFF
    return (torch.arange(256, device=pixels.device) & mask.view(-1, 1, 1)).to(torch.uint8)


def _solarize(pixels: Tensor, levels: Tensor) -> Tensor:
    threshold = 256 - torch.trunc(levels * 256 / 10).long().view(-1, 1, 1)
    gray = torch.arange(256, device=pixels.device)
    return torch.where(gray < threshold, gray, 255 - gray).to(torch.uint8)


def jensen_shannon(logits: tuple[Tensor, ...]) -> Tensor:
    """Return the mean over the batch of JSD(p_1, …, p_n) = H(mean p) − mean H(p), in nats."""
    probabilities = [view.softmax(1) for view in logits]
    log_mixture = torch.stack(probabilities).mean(0).clamp(1e-7, 1).log()
    divergences = [F.kl_div(log_mixture, p, reduction="batchmean") for p in probabilities]
    return torch.stack(divergences).mean()
