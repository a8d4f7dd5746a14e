"""Advice before adaptation: look at a model, a buffer and some images, and say what to use, and why."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from cretta import methods
from cretta.buffer import SourceBuffer
from cretta.functional import energy
from cretta.inputs import Scale
from cretta.monitor import DriftTest, SourceReference
from cretta.normalization import norm_layers, prior_weight
from cretta.options import check_integer

FEW_CLASSES = 0.5
"""Below this share of their own prior weight, batches in order have fewer classes than shuffled ones."""
UNDERCONFIDENT = 0.8
"""Temperature on the labeled buffer."""
HARMLESS = 0.1
"""Estimated loss of accuracy that is not worth an adaptation."""
FEW_IMAGES = 50
"""Below so many images, estimates and drift say little."""


@dataclasses.dataclass(frozen=True)
class Advice:
    """One piece of advice: about what, what was seen, and what to do."""

    about: str
    seen: str
    do: str


def advise(
    net: nn.Module, images: Tensor, buffer: SourceBuffer | None = None, *, batch_size: int = 200
) -> list[Advice]:
    """Return advice for adapting ``net`` to a stream of ``images``, in their order; ``buffer`` are source images."""
    check_integer("batch_size", batch_size, at_least=1)
    source = methods.adapt(net, "source", buffer=buffer)
    begun = time.perf_counter()
    logits = torch.cat([source.predict(part) for part in images.split(100)])
    seconds = (time.perf_counter() - begun) / len(images)
    labeled = source.source_samples(200)
    reference = SourceReference.of(*labeled) if labeled is not None else None
    advice = [_layers(net), *_scale(images, buffer), *label_order(reference)]
    if len(images) < FEW_IMAGES:
        advice.append(Advice("images", f"{len(images)} images are few to judge by", f"give {FEW_IMAGES} or more"))
    if reference is not None and reference.at_chance:
        reference = None
    shifted, text = _shift(logits, reference)
    learns = any(norm_layers(net))
    method = "source" if not shifted or not learns else "cretta" if buffer is not None else "tent"
    reason = "a buffer is there" if method == "cretta" else "it needs no buffer" if method == "tent" else "no need"
    advice.append(Advice("shift", text, f"--method {method} ({reason})" if learns else "--method source"))
    if any("BatchNorm" in type(layer).__name__ for _, layer in norm_layers(net)):
        advice.append(_batches(logits, batch_size))
    advice += _calibration(reference)
    passes = methods.get(method).facts.cost
    cost = f"a forward pass takes {1000 * seconds:.1f} ms per image here; {method} costs about {passes:.2g} of them"
    guarded = "" if method == "source" else "; the guard adds up to a quarter"
    advice.append(Advice("cost", cost, f"about {1 / (passes * seconds):.0f} images/s{guarded}"))
    if method != "source":
        text = "adaptation can do harm that nobody sees without labels"
        advice.append(Advice("guard", text, "--guard rollback (the default of predict)"))
    return advice


def label_order(reference: SourceReference | None) -> Iterator[Advice]:
    """Yield advice if the labels of the buffer are probably not those of the model."""
    if reference is not None and reference.at_chance:
        yield Advice(
            "labels",
            f"the source model answers {100 * reference.accuracy:.0f} % of {len(reference.energies)} labeled source "
            "images correctly, not better than chance: probably the labels are numbered in another order than its "
            f"{len(reference.frequencies)} classes",
            "list the classes in the model's order in classes.txt and build the buffer again",
        )


def _layers(net: nn.Module) -> Advice:
    kinds = [type(layer).__name__ for _, layer in norm_layers(net)]
    counted = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
    if not kinds:
        return Advice("model", "no normalization layer", "only --method source works")
    batch = any("BatchNorm" in kind for kind in kinds)
    return Advice("model", counted, "statistics of the batch matter" if batch else "works with batches of any size")


def _scale(images: Tensor, buffer: SourceBuffer | None) -> Iterator[Advice]:
    if buffer is None:
        yield Advice("buffer", "none", "give source images: without them accuracy and drift cannot be estimated")
        return
    batch, source = Scale.of(images), Scale.of(buffer.with_augment("none").batch(0, min(64, len(buffer))))
    if source.differs(batch, len(images)):
        yield Advice("scale", f"images {batch}, buffer {source}", "prepare both alike: they differ in scale")
    shape, expected = tuple(buffer.images.shape[1:]), tuple(images.shape[1:])
    if shape != expected:
        yield Advice("buffer", f"images of shape {shape}, not {expected}", "give both one size (--size)")
    if buffer.labels is None:
        yield Advice(
            "buffer",
            f"{len(buffer)} image{'s' * (len(buffer) > 1)} without labels",
            "with labels, accuracy could be estimated",
        )


def _shift(logits: Tensor, reference: SourceReference | None) -> tuple[bool, str]:
    if reference is None:
        return True, f"unknown; mean confidence {100 * float(logits.softmax(-1).amax(-1).mean()):.0f} %"
    test = DriftTest(reference.energies)
    drifted = test.update(energy(logits))
    estimate = reference.estimate(logits, "atc")
    text = (
        f"estimated accuracy {100 * estimate:.0f} % (ATC), {100 * reference.accuracy:.0f} % on the buffer; energies "
        f"are higher than {100 * test.mean_rank:.0f} % of the buffer's{' (drift)' if drifted else ''}"
    )
    return drifted or estimate < reference.accuracy - HARMLESS, text


def _batches(logits: Tensor, batch_size: int) -> Advice:
    size = min(batch_size, len(logits))
    if size == 1:
        return Advice("batches", "one image each", "--statistics auto uses those of training")
    in_order = [prior_weight(len(part), part) for part in logits.split(size) if len(part) > 1] or [0.0]
    shuffled = logits[torch.randperm(len(logits), generator=torch.Generator().manual_seed(0))]
    at_random = [prior_weight(len(part), part) for part in shuffled.split(size) if len(part) > 1] or [0.0]
    mean, other = sum(in_order) / len(in_order), sum(at_random) / len(at_random)
    if mean < FEW_CLASSES * other:
        text = f"batches of {size} in this order have fewer classes than shuffled ones"
        return Advice("batches", text, "shuffle the images (--order random), or --statistics auto")
    if mean < 0.5:
        return Advice("batches", f"{size} images are few", "--statistics auto, or larger batches")
    return Advice("batches", f"{size} images of many classes", "statistics of the batch are good")


def _calibration(reference: SourceReference | None) -> Iterator[Advice]:
    if reference is not None and reference.temperature < UNDERCONFIDENT:
        text = f"underconfident on the buffer: temperature {reference.temperature:.2f}"
        yield Advice("calibration", text, "--option calibrate=auto")
