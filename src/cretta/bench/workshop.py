"""What runs share: networks, datasets, buffers and decoded images, opened once and kept while they fit."""

from __future__ import annotations

import dataclasses
import json
from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cretta.adapter import Adapter
from cretta.bench.benchmarks import Benchmark, benchmark, is_folder
from cretta.bench.fingerprint import fingerprint
from cretta.bench.run import Buffer, Run
from cretta.buffer import SourceBuffer
from cretta.data import ImageDataset
from cretta.data.dataset import Pixels
from cretta.data.domains import CLEAN
from cretta.data.folder import CLASSES, class_file, some
from cretta.data.registry import DATASETS
from cretta.errors import OptionError
from cretta.methods import adapt, get
from cretta.models.open import OpenedModel, open_model
from cretta.storage import tensorfile

ROOM = 512 * 2**20
"""Bytes of decoded or corrupted images to keep."""
BUFFERS = 12
ADAPTERS = 12
"""Adapters to keep: as many as a comparison usually has methods."""


class Domain:
    """The images of a domain, or so many of them; kept as pixels when they are few bytes."""

    def __init__(self, dataset: ImageDataset, images: int | None) -> None:
        self.dataset = dataset
        self.count = len(dataset) if images is None else min(images, len(dataset))
        labels = dataset.labels
        # The first of a sorted dataset would all be of one class.
        sorted_by_class = bool((np.diff(labels) >= 0).all())
        self._places = np.arange(self.count) * len(dataset) // self.count if sorted_by_class else np.arange(self.count)
        self.labels = torch.from_numpy(labels[self._places])
        self.bytes = self.count * dataset[0][0].nbytes

    @cached_property
    def _pixels(self) -> Pixels:
        return self.dataset.read(self._places)

    def batch(self, indices: Tensor) -> Tensor:
        """Images in [0, 1], (N, 3, H, W)."""
        chosen = indices.numpy()
        kept = self.bytes <= ROOM // 4
        pixels = self._pixels[chosen] if kept else self.dataset.read(self._places[chosen])
        return torch.from_numpy(pixels).permute(0, 3, 1, 2).float().div_(255)


class Workshop:
    """Opens what runs name. Keeps a few of each: runs that share them should come one after another."""

    def __init__(
        self, root: Path | None = None, device: str | torch.device = "cpu", benchmarks: Iterable[Benchmark] = ()
    ) -> None:
        """``benchmarks`` are further ones, which runs name as they do the others."""
        self.root = root
        self.device = torch.device(device)
        self._benchmarks: dict[tuple[str, int | None], Benchmark] = {(each.name, None): each for each in benchmarks}
        self._models: dict[str, OpenedModel] = {}
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
        return self._opened(spec).net

    def classes(self, spec: str) -> tuple[str, ...]:
        """Names of the network's classes, if it brings them."""
        return self._opened(spec).classes

    def _opened(self, spec: str) -> OpenedModel:
        if spec not in self._models:
            self._models[spec] = open_model(spec, device=self.device)
        return self._models[spec]

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
        if not _reads_source(run):
            return None
        plan = run.buffer
        key = (run.data, run.size, plan, run.seed, run.model if plan.select != "random" else "")
        if key not in self._buffers:
            if len(self._buffers) >= BUFFERS:
                self._buffers.popitem(last=False)
            self._buffers[key] = self._sampled(run, plan)
        self._buffers.move_to_end(key)
        return self._buffers[key]

    def _sampled(self, run: Run, plan: Buffer) -> SourceBuffer:
        images = self._source(run)
        model = self.model(run.model) if plan.select != "random" else None
        # A share of the images, or so many of them; no more than there are.
        size = plan.size if plan.size < 1 else min(int(plan.size), len(images))
        return SourceBuffer.sample(images, size=size, select=plan.select, model=model, seed=run.seed)

    def _source(self, run: Run) -> ImageDataset:
        """Where the run's buffer is drawn from; images of another benchmark take the size of the run's own."""
        plan = run.buffer
        chosen = self.benchmark(run.data, run.size)
        if plan.data and plan.data != run.data:
            side = chosen.clean()[0][0].shape[0]
            fixed = plan.data in DATASETS and not DATASETS[plan.data].resizable
            chosen = self.benchmark(plan.data, None if fixed else side)
        return chosen.training() if plan.split == "train" else chosen.clean()

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
        method.option_type.make(run.method, method.preset_options(run.preset), dict(run.options))
        target = self.benchmark(run.data, run.size)
        for domain in dict.fromkeys(run.domains):
            target.images(domain)
        if is_folder(run.data):
            self._check_classes(run)
        self.materials(run)

    def _check_classes(self, run: Run) -> None:
        """Refuse folders that name the model's classes in another order, unless a file states the order."""
        folders, classes = self.benchmark(run.data, run.size).training().classes, self.classes(run.model)
        other = folders != classes[: len(folders)] and set(folders) & set(classes)
        if other and class_file(Path(run.data) / "train") is None:
            raise OptionError(
                f"the class folders of {run.data} are {some(folders)}, and the model's classes {some(classes)}: list "
                f"the model's classes in their order, one per line, in {Path(run.data) / CLASSES}."
            )

    def materials(self, run: Run) -> dict[str, str]:
        """What the run's names stand for just now: fingerprints of weights and images, and a preset's options."""
        target = self.benchmark(run.data, run.size)
        found = {
            "model": self._fingerprint(("model", run.model), lambda: _of_network(self.model(run.model))),
            "corruptions": target.corruptions,
        }
        for domain in dict.fromkeys((*run.domains, *((CLEAN,) if run.clean_after else ()))):
            images = self._domain_fingerprint(run, domain)
            found["target" if domain == CLEAN else f"target {domain}"] = images
        method = get(run.method)
        if run.preset is not None:
            found["preset"] = json.dumps(method.preset_options(run.preset), sort_keys=True)
        if _reads_source(run):
            place = ("source", run.data, run.size, run.buffer.data, run.buffer.split)
            found["source"] = self._fingerprint(place, lambda: fingerprint(self._source(run)))
        return found

    def _domain_fingerprint(self, run: Run, domain: str) -> str:
        images = self.benchmark(run.data, run.size).images
        return self._fingerprint(("target", run.data, run.size, domain), lambda: fingerprint(images(domain)))

    def _fingerprint(self, place: tuple[object, ...], compute: Callable[[], str]) -> str:
        if place not in self._fingerprints:
            self._fingerprints[place] = compute()
        return self._fingerprints[place]


def _reads_source(run: Run) -> bool:
    return get(run.method).facts.source_data and dict(run.options).get("source") != "target"


def _of_network(net: nn.Module) -> str:
    """Of its weights and of what it does with them: code may change while weights do not."""
    state = net.state_dict()
    parts = [part for name, value in state.items() for part in (name, value) if isinstance(value, Tensor)]
    graph = getattr(net, "code", "")  # of compiled and exported modules; others print what they are made of
    return tensorfile.fingerprint([str(list(state)), repr(net), str(graph), *parts])[:16]
