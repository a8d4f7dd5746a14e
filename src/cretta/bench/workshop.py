"""What runs share: networks, datasets, buffers and decoded images, opened once and kept while they fit."""

from __future__ import annotations

import dataclasses
import hashlib
from collections import OrderedDict
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cretta import states
from cretta.adapter import Adapter
from cretta.bench.benchmarks import Benchmark, benchmark
from cretta.bench.run import Buffer, Run
from cretta.buffer import SourceBuffer
from cretta.data import ImageDataset
from cretta.data.dataset import Pixels
from cretta.methods import adapt, get
from cretta.models.opened import Opened, open_model
from cretta.options import unknown

ROOM = 512 * 2**20
"""Bytes of decoded or corrupted images to keep."""
ADAPTERS = 12
"""Adapters to keep: as many as a comparison usually has methods."""


class Domain:
    """The images of a domain, the first so many; kept as pixels when they are few bytes."""

    def __init__(self, dataset: ImageDataset, images: int | None) -> None:
        self.dataset = dataset
        self.count = len(dataset) if images is None else min(images, len(dataset))
        self.labels = torch.from_numpy(dataset.labels[: self.count].copy())
        first = dataset[0][0]
        self.bytes = self.count * first.nbytes

    @cached_property
    def _pixels(self) -> Pixels:
        return self.dataset.read(range(self.count))

    def batch(self, indices: Tensor) -> Tensor:
        """Images in [0, 1], (N, 3, H, W)."""
        chosen = indices.numpy()
        pixels = self._pixels[chosen] if self.bytes <= ROOM // 4 else self.dataset.read(chosen)
        return torch.from_numpy(pixels).permute(0, 3, 1, 2).float().div_(255)


class Workshop:
    """Opens what runs name. Keeps a few of each: runs that share them should come one after another."""

    def __init__(self, root: Path | None = None, device: str | torch.device = "cpu") -> None:
        self.root = root
        self.device = torch.device(device)
        self._benchmarks: dict[tuple[str, int | None], Benchmark] = {}
        self._models: dict[str, Opened] = {}
        self._buffers: OrderedDict[tuple[object, ...], SourceBuffer] = OrderedDict()
        self._domains: OrderedDict[tuple[object, ...], Domain] = OrderedDict()
        self._adapters: OrderedDict[Run, Adapter[Any]] = OrderedDict()
        self._fingerprints: dict[tuple[object, ...], str] = {}
        self.operations: dict[tuple[object, ...], dict[str, float]] = {}
        """Of a step, by what they depend on."""

    def benchmark(self, name: str, size: int | None = None) -> Benchmark:
        """The benchmark of that name."""
        if (name, size) not in self._benchmarks:
            self._benchmarks[name, size] = benchmark(name, self.root, size)
        return self._benchmarks[name, size]

    def model(self, spec: str) -> nn.Module:
        """The network; it is never changed."""
        if spec not in self._models:
            self._models[spec] = open_model(spec, device=self.device)
        return self._models[spec].net

    def domain(self, run: Run, name: str) -> Domain:
        """The images of a run's domain."""
        key = (run.data, run.size, name, run.images)
        if key not in self._domains:
            domain = Domain(self.benchmark(run.data, run.size).images(name), run.images)
            while self._domains and domain.bytes + sum(each.bytes for each in self._domains.values()) > ROOM:
                self._domains.popitem(last=False)
            self._domains[key] = domain
        self._domains.move_to_end(key)
        return self._domains[key]

    def images(self, run: Run) -> int:
        """How many images the run's stream has."""
        target = self.benchmark(run.data, run.size)
        counts = [len(target.images(name)) for name in run.domains]
        return sum(count if run.images is None else min(count, run.images) for count in counts)

    def buffer(self, run: Run) -> SourceBuffer | None:
        """The source images for the run; None where its method uses none."""
        if not get(run.method).facts.source_data or dict(run.options).get("source") == "target":
            return None
        plan = run.buffer
        key = (plan.data or run.data, run.size, plan, run.seed, run.model if plan.select != "random" else "")
        if key not in self._buffers:
            if len(self._buffers) >= 4:
                self._buffers.popitem(last=False)
            self._buffers[key] = self._sampled(run, plan)
        return self._buffers[key]

    def _sampled(self, run: Run, plan: Buffer) -> SourceBuffer:
        training = self.benchmark(plan.data or run.data, run.size).training()
        model = self.model(run.model) if plan.select != "random" else None
        # A share of the images, or so many of them; no more than there are.
        size = plan.size if plan.size < 1 else min(int(plan.size), len(training))
        return SourceBuffer.sample(training, size=size, select=plan.select, model=model, seed=run.seed)

    def adapter(self, run: Run) -> Adapter[Any]:
        """The run's adapter, before its first batch.

        Reset rather than made anew where it can be: what it computed once, energies of source samples or a Fisher
        information, is the same for all runs that differ in their stream only.
        """
        key = dataclasses.replace(run, domains=("any",), stream="iid", delta=None, clean_after=0)
        if key in self._adapters:
            self._adapters.move_to_end(key)
            self._adapters[key].reset()
            return self._adapters[key]
        if len(self._adapters) >= ADAPTERS:
            self._adapters.popitem(last=False)
        options: dict[str, Any] = {"seed": run.seed, **dict(run.options)}
        made = adapt(self.model(run.model), run.method, buffer=self.buffer(run), preset=run.preset, **options)
        self._adapters[key] = made
        return made

    def check(self, run: Run) -> None:
        """Raises, before any work, what a run would raise when it begins: names, options, data that are not there."""
        method = get(run.method)
        if run.preset is not None and run.preset not in method.presets:
            raise unknown(f"preset of {run.method}", run.preset, method.presets)
        preset = method.presets[run.preset] if run.preset else {}
        method.option_type.make(run.method, preset, dict(run.options))
        target = self.benchmark(run.data, run.size)
        for domain in dict.fromkeys(run.domains):
            target.images(domain)
        self.materials(run)

    def materials(self, run: Run) -> dict[str, str]:
        """Fingerprints of what the run's names stand for just now: weights, target and source images."""
        plan = run.buffer
        found = {"model": self._fingerprint("model", run.model)}
        target = self.benchmark(run.data, run.size)
        found["corruptions"] = target.corruptions
        found["target"] = self._fingerprint("clean", run.data, run.size)
        if get(run.method).facts.source_data:
            found["source"] = self._fingerprint("training", plan.data or run.data, run.size)
        return found

    def _fingerprint(self, kind: str, name: str, size: int | None = None) -> str:
        key = (kind, name, size)
        if key not in self._fingerprints:
            if kind == "model":
                state = self.model(name).state_dict()
                parts = [part for each, value in state.items() for part in (each, value) if isinstance(value, Tensor)]
                self._fingerprints[key] = states.fingerprint([str(list(state)), *parts])[:16]
            else:
                chosen = self.benchmark(name, size)
                self._fingerprints[key] = _of(chosen.clean() if kind == "clean" else chosen.training())
        return self._fingerprints[key]


def _of(dataset: ImageDataset) -> str:
    """Of a few images and all labels: enough to tell datasets apart, and quick."""
    digest = hashlib.sha256(f"{dataset.name} {len(dataset)} {dataset.classes}".encode())
    digest.update(dataset.labels.tobytes())
    for index in (0, len(dataset) // 2, len(dataset) - 1):
        digest.update(dataset[index][0].tobytes())
    return digest.hexdigest()[:16]
