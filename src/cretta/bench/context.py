"""What runs share: networks, datasets, buffers and decoded images, opened once and cached while they fit."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Iterable
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cretta.adapter import Adapter
from cretta.bench.benchmarks import Benchmark, benchmark, is_folder
from cretta.bench.run import Buffer, Run
from cretta.buffer import SourceBuffer
from cretta.data import ArrayDataset, FileDataset, ImageDataset
from cretta.data.corrupted import CorruptedDataset
from cretta.data.dataset import Pixels, as_batch
from cretta.data.domains import CLEAN, Domain
from cretta.data.folder import CLASSES, class_file, some
from cretta.data.registry import DATASETS
from cretta.errors import OptionError
from cretta.methods import adapt, get
from cretta.models.open import open_model
from cretta.sampling import confidence
from cretta.storage import tensorfile

CACHED_BYTES = 512 * 2**20
"""Bytes of decoded or corrupted images to cache."""
CACHED_BUFFERS = 12
CACHED_ADAPTERS = 12
"""As many as a comparison usually has methods."""


class DomainImages:
    """The images of a domain, or some of them; cached as pixels if these are few bytes."""

    def __init__(self, dataset: ImageDataset, images: int | None) -> None:
        self.dataset = dataset
        self.count = len(dataset) if images is None else min(images, len(dataset))
        labels = dataset.labels
        # The first of a sorted dataset would all be of one class.
        sorted_by_class = bool((np.diff(labels) >= 0).all())
        self._indices = np.arange(self.count) * len(dataset) // self.count if sorted_by_class else np.arange(self.count)
        self.labels = torch.from_numpy(labels[self._indices])
        self.bytes = self.count * dataset[0][0].nbytes

    @cached_property
    def _pixels(self) -> Pixels:
        return self.dataset.read(self._indices)

    def batch(self, indices: Tensor, device: torch.device) -> Tensor:
        """Return images with values in [0, 1], (N, 3, H, W)."""
        chosen = indices.numpy()
        cached = self.bytes <= CACHED_BYTES // 4
        return as_batch(self._pixels[chosen] if cached else self.dataset.read(self._indices[chosen]), device)


class RunContext:
    """Opens what runs name, and caches a few of each: runs that share them should come one after another."""

    def __init__(
        self, root: Path | None = None, device: str | torch.device = "cpu", benchmarks: Iterable[Benchmark] = ()
    ) -> None:
        """``benchmarks`` are further ones, which runs refer to by name."""
        self.root = root
        self.device = torch.device(device)
        self._benchmarks: dict[tuple[str, int | None], Benchmark] = {(extra.name, None): extra for extra in benchmarks}
        self._opened = cache(lambda spec: open_model(spec, device=self.device))
        self._buffer = lru_cache(CACHED_BUFFERS)(lambda *inputs: self._sampled(*inputs))
        self._confidence = cache(lambda model, *source: confidence(self._source(*source), self.model(model)))
        self._adapter = lru_cache(CACHED_ADAPTERS)(self._made_adapter)
        self._domains: OrderedDict[tuple[object, ...], DomainImages] = OrderedDict()
        self._model_fingerprint = cache(lambda spec: _network_fingerprint(self.model(spec)))
        self._target_fingerprint = cache(lambda domain, *data: data_fingerprint(self.benchmark(*data).images(domain)))
        self._source_fingerprint = cache(lambda *inputs: data_fingerprint(self._source(*inputs)))
        self._keys: dict[Run, str] = {}
        self.operations: dict[tuple[object, ...], dict[str, float]] = {}
        """Operations of a step, by what they depend on."""

    def benchmark(self, name: str, size: int | None = None) -> Benchmark:
        """Return a benchmark by its name."""
        if (name, size) not in self._benchmarks:
            self._benchmarks[name, size] = benchmark(name, self.root, size)
        return self._benchmarks[name, size]

    def model(self, spec: str) -> nn.Module:
        """Return the network; it is never changed."""
        return self._opened(spec).net

    def classes(self, spec: str) -> tuple[str, ...]:
        """Return the names of the network's classes, if it has them."""
        return self._opened(spec).classes

    def domain(self, run: Run, domain: Domain) -> DomainImages:
        """Return the images of a domain of the run."""
        key = (run.data, run.size, domain, run.images)
        if key not in self._domains:
            images = DomainImages(self.benchmark(run.data, run.size).images(domain), run.images)
            while self._domains and images.bytes + sum(d.bytes for d in self._domains.values()) > CACHED_BYTES:
                self._domains.popitem(last=False)
            self._domains[key] = images
        self._domains.move_to_end(key)
        return self._domains[key]

    def images(self, run: Run) -> int:
        """Return how many images the stream of the run has."""
        target = self.benchmark(run.data, run.size)
        counts = [len(target.images(domain)) for domain in run.domains]
        return sum(count if run.images is None else min(count, run.images) for count in counts)

    def check_counts(self, run: Run) -> None:
        """Refuse to read more images than there are; without this check, as in the paper's scales, all are read."""
        target = self.benchmark(run.data, run.size)
        counts: list[tuple[str, float, ImageDataset]]
        counts = [("images", run.images or 1, target.images(domain)) for domain in run.domains]
        if _reads_source(run):
            source = self._source(run.data, run.size, run.buffer.data, run.buffer.split)
            counts.append(("buffer", run.buffer.size, source))
        for name, count, images in counts:
            if count > len(images):
                raise OptionError(f"{name}={count}: expected at most {len(images)}, the number of images available.")

    def buffer(self, run: Run) -> SourceBuffer | None:
        """Return the source images for the run; None if its method uses none."""
        if not _reads_source(run):
            return None
        # The same for all runs that agree in what it depends on.
        model = run.model if run.buffer.select != "random" else None
        return self._buffer(run.data, run.size, run.buffer, model, run.seed)

    def _sampled(self, data: str, size: int | None, plan: Buffer, model: str | None, seed: int) -> SourceBuffer:
        images = self._source(data, size, plan.data, plan.split)
        known = None if model is None else self._confidence(model, data, size, plan.data, plan.split)
        # A share of the images, or a number of them, at most all.
        count = plan.size if plan.size < 1 else min(int(plan.size), len(images))
        return SourceBuffer.sample(images, size=count, select=plan.select, confidence=known, seed=seed)

    def _source(self, data: str, size: int | None, other: str, split: str) -> ImageDataset:
        """Return the images that a buffer is drawn from; those of another benchmark get the size of the run's own."""
        chosen = self.benchmark(data, size)
        if other and other != data:
            side = chosen.clean()[0][0].shape[0]
            fixed = other in DATASETS and not DATASETS[other].resizable
            chosen = self.benchmark(other, None if fixed else side)
        return chosen.training() if split == "train" else chosen.clean()

    def adapter(self, run: Run) -> Adapter[Any]:
        """Return the adapter of the run, in its initial state.

        It is reset rather than made again where possible: what it computed once, energies of source samples or a Fisher
        information, is the same for all runs that differ in their stream only.
        """
        adapter = self._adapter(run.without_stream())
        adapter.reset()
        return adapter

    def _made_adapter(self, run: Run) -> Adapter[Any]:
        options: dict[str, Any] = {"seed": run.seed, **dict(run.options)}
        return adapt(self.model(run.model), run.method, buffer=self.buffer(run), preset=run.preset, **options)

    def key(self, run: Run) -> str:
        """Return the key of a valid run, computed once; raise, before any work, what the run would raise later.

        That is for unknown names, options that are not allowed, and data that does not exist.
        """
        if run not in self._keys:
            self._check(run)
            self._keys[run] = run.key(self.input_fingerprints(run))
        return self._keys[run]

    def _check(self, run: Run) -> None:
        method = get(run.method)
        method.option_type.make(run.method, method.preset_options(run.preset), dict(run.options))
        target = self.benchmark(run.data, run.size)
        for domain in dict.fromkeys(run.domains):
            target.images(domain)
        if is_folder(run.data):
            self._check_classes(run)

    def _check_classes(self, run: Run) -> None:
        """Refuse folders that name the model's classes in another order, unless a file states the order."""
        folders, classes = self.benchmark(run.data, run.size).training().classes, self.classes(run.model)
        other = folders != classes[: len(folders)] and set(folders) & set(classes)
        if other and class_file(Path(run.data) / "train") is None:
            raise OptionError(
                f"the class folders of {run.data} are {some(folders)}, and the model's classes {some(classes)}: list "
                f"the model's classes in their order, one per line, in {Path(run.data) / CLASSES}."
            )

    def input_fingerprints(self, run: Run) -> dict[str, str]:
        """Return what the names of the run refer to: fingerprints of weights and images, and a preset's options."""
        corruptions = self.benchmark(run.data, run.size).corruptions
        fingerprints = {"model": self._model_fingerprint(run.model), "corruptions": corruptions}
        for domain in dict.fromkeys(run.domains):
            name = "target" if domain.name == CLEAN else f"target {domain}"
            fingerprints[name] = self._target_fingerprint(domain, run.data, run.size)
        if run.preset is not None:
            fingerprints["preset"] = json.dumps(get(run.method).preset_options(run.preset), sort_keys=True)
        if _reads_source(run):
            fingerprints["source"] = self._source_fingerprint(run.data, run.size, run.buffer.data, run.buffer.split)
        return fingerprints


def _reads_source(run: Run) -> bool:
    return get(run.method).facts.source_data == "required" and dict(run.options).get("source") != "target"


def _network_fingerprint(net: nn.Module) -> str:
    """Return a hash of the weights and of the structure: code may change while weights do not."""
    state = net.state_dict()
    parts = [part for name, value in state.items() for part in (name, value) if isinstance(value, Tensor)]
    graph = getattr(net, "code", "")  # of compiled and exported modules; others print their structure
    return tensorfile.fingerprint([str(list(state)), repr(net), str(graph), *parts])[:16]


def data_fingerprint(dataset: ImageDataset) -> str:
    """Return a hash of labels and classes, all pixels of arrays, names and sizes of files, and the corruption."""
    if isinstance(dataset, CorruptedDataset):
        described = (dataset.corruption, dataset.severity, dataset.seed, dataset.parameters)
        return hashlib.sha256(repr((*described, data_fingerprint(dataset.source))).encode()).hexdigest()[:16]
    digest = hashlib.sha256(f"{dataset.name} {len(dataset)} {dataset.classes}".encode())
    digest.update(dataset.labels.tobytes())
    if isinstance(dataset, ArrayDataset):
        digest.update(np.ascontiguousarray(dataset.images).reshape(-1).data)
    elif isinstance(dataset, FileDataset):
        for file in dataset.files:
            digest.update(f"{file.parent.name}/{file.name} {file.stat().st_size}".encode())
        digest.update(str(dataset.size).encode())
    else:
        for index in (0, len(dataset) // 2, len(dataset) - 1):
            digest.update(dataset[index][0].tobytes())
    return digest.hexdigest()[:16]
