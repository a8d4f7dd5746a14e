"""Images and labels of an arbitrary dataset, and a class-balanced choice among them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Subset

from cretta.errors import OptionError
from cretta.network import Network, copy_sharing_parameters
from cretta.normalization import NormStatistics, StreamAverage

Array = np.ndarray[Any, Any]
Progress = Callable[[str, int, int], object]
"""Called with what is being done, how many items are done, and how many there are."""
MODEL_BATCH = 200
"""Images per forward pass of the source model."""


class Dataset(Protocol):
    """Anything with a length and numbered items: images, or (image, label) pairs."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int, /) -> Any: ...


def check_dataset(dataset: Any) -> None:
    """Raise unless ``dataset`` has a length and numbered items."""
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")) or isinstance(dataset, dict | str):
        raise OptionError(
            f"expected a dataset with a length and numbered items, (image, label) or images alone, got "
            f"{type(dataset).__name__}; use the .dataset of a DataLoader, and put what only iterates into a list."
        )


def read_labels(dataset: Dataset, progress: Progress | None = None) -> Array | None:
    """Return the labels, without decoding images where the dataset offers them; None if it has none."""
    offered = _offered_labels(dataset.dataset if isinstance(dataset, Subset) else dataset)
    if offered is not None:
        return np.asarray(offered[dataset.indices] if isinstance(dataset, Subset) else offered)
    if len(dataset) == 0 or not isinstance(dataset[0], tuple | list) or len(dataset[0]) < 2:
        return None
    return class_numbers([dataset[i][1] for i in _reported(range(len(dataset)), "reading labels", progress)])


def read_images(dataset: Dataset, indices: Array, progress: Progress | None = None) -> Tensor:
    """Return the images at ``indices`` as one tensor (N, C, H, W)."""
    from cretta.data.dataset import ImageDataset  # loads all readers of data, which an adapter does not need

    if isinstance(dataset, ImageDataset):
        return channels_first(dataset.read(indices))
    tensors = [_image(dataset[int(i)]) for i in _reported(indices.tolist(), "reading source images", progress)]
    shapes = sorted({tuple(image.shape) for image in tensors})
    if len(shapes) > 1:
        raise OptionError(f"expected images of one shape, got {shapes[0]} and {shapes[1]}; resize them.")
    return torch.stack(tensors)


def confidence(dataset: Dataset, model: nn.Module, progress: Progress | None = None) -> Array:
    """Return max softmax of the source ``model`` for every image of the dataset."""
    # In eval mode, without layers whose statistics are set. Not rewritten: kernels are chosen by their speed, and the
    # last digit of a confidence, which may decide what image is drawn, would depend on the machine's load.
    statistics = NormStatistics(nn.Identity(), "running", StreamAverage())
    network = Network(copy_sharing_parameters(model), statistics, learns=False, fuse=False)
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    batches = []
    with torch.no_grad():  # not inference mode, whose tensors could not be used where the model learns later
        starts = range(0, len(dataset), MODEL_BATCH)
        for start in _reported(starts, "predicting with the source model", progress):
            indices = np.arange(start, min(start + MODEL_BATCH, len(dataset)))
            images = as_floats(compact(read_images(dataset, indices)).to(device), torch.float32)
            if images.dim() == 4:
                images = images.contiguous(memory_format=torch.channels_last)
            batches.append(network.source(images).softmax(-1).amax(-1).cpu())
    return np.asarray(torch.cat(batches).double())


def balanced(order: Array, groups: Array, total: int, generator: np.random.Generator) -> Array:
    """Return the first ``total`` of ``order``, equally many of every group, groups taking turns."""
    classes = generator.permutation(np.unique(groups))
    members = [order[groups[order] == label] for label in classes]
    # The k-th member of each class comes in round k; short classes drop out of the later rounds.
    rounds = np.concatenate([np.arange(len(m)) for m in members])
    turns = np.concatenate([np.full(len(m), turn) for turn, m in enumerate(members)])
    flat = np.concatenate(members)
    chosen: Array = flat[np.lexsort((turns, rounds))][:total]
    return chosen


def channels_first(images: Tensor | Array) -> Tensor:
    """Return images as a tensor; uint8 arrays (N, H, W, C) become (N, C, H, W)."""
    if isinstance(images, np.ndarray):
        if images.ndim == 4 and images.shape[-1] in (1, 3, 4) and images.dtype == np.uint8:
            images = images.transpose(0, 3, 1, 2)
        images = torch.from_numpy(np.array(images, order="C"))
    if not isinstance(images, Tensor) or images.dim() < 2:
        got = f"shape {tuple(images.shape)}" if isinstance(images, Tensor) else type(images).__name__
        raise OptionError(f"expected images as a tensor (N, …) of what net takes, got {got}.")
    return images


def compact(images: Tensor) -> Tensor:
    """Return images as uint8 where that loses nothing, else a copy of them."""
    if images.dtype == torch.uint8:
        return images
    if not images.is_floating_point():
        raise OptionError(f"expected images in uint8, or in floating point as net takes it, got {images.dtype}.")
    images = images.detach()
    if not bool(torch.isfinite(images).all()):
        raise OptionError("expected finite images, got NaN or infinite values; drop or repair them.")
    precise = images.to(torch.promote_types(images.dtype, torch.float32))
    levels = (precise * 255).round()
    # One unit in the last place is the difference between x / 255 and x * (1 / 255).
    near = (levels / 255 - precise).abs() <= torch.finfo(precise.dtype).eps * precise.abs()
    if bool((levels >= 0).all() and (levels <= 255).all() and near.all()) and images.dtype == precise.dtype:
        return levels.to(torch.uint8)
    return images.clone()


def as_floats(images: Tensor, dtype: torch.dtype) -> Tensor:
    """Return bytes as floats in [0, 1], floats as they are."""
    return images.to(dtype).div_(255) if images.dtype == torch.uint8 else images


def _reported(items: Sequence[Any], description: str, progress: Progress | None) -> Iterator[Any]:
    for done, item in enumerate(items):
        yield item
        if progress is not None:
            progress(description, done + 1, len(items))


def _offered_labels(dataset: Any) -> Array | None:
    tensors = getattr(dataset, "tensors", None)
    candidates = [getattr(dataset, "targets", None), getattr(dataset, "labels", None)]
    candidates.append(tensors[1] if tensors is not None and len(tensors) > 1 else None)
    for labels in candidates:
        if labels is not None and len(labels) == len(dataset):
            return class_numbers(labels)
    return None


def class_numbers(labels: Any) -> Array:
    """Return labels as int64, one per image."""
    try:
        array = labels.cpu().numpy() if isinstance(labels, Tensor) else np.asarray(labels)
    except ValueError as error:
        raise OptionError(f"expected one class number per image, got labels of unequal length ({error}).") from error
    if array.dtype.kind not in "iub" or array.ndim != 1:
        first = array.flat[0] if array.size else None
        raise OptionError(
            f"expected one class number per image, got labels such as {first!r} (shape {array.shape}). For names, "
            "number them; for one-hot rows, take .argmax(1)."
        )
    return array.astype(np.int64)


def _image(item: Any) -> Tensor:
    if isinstance(item, dict):
        raise OptionError(
            f"expected (image, label) pairs, got dicts with {sorted(map(str, item))}; convert the dataset, as in "
            "[(item['image'], item['label']) for item in dataset]."
        )
    image = item[0] if isinstance(item, tuple | list) else item
    if isinstance(image, Tensor):
        return image
    if getattr(image, "mode", None) == "P":  # a PIL image whose pixels are indices into a palette
        image = image.convert("RGB")
    array = np.asarray(image)
    if array.dtype.kind not in "uif" or array.ndim < 1:
        raise OptionError(f"expected images as tensors, arrays or PIL images, got {type(image).__name__}.")
    if array.dtype == np.uint8 and array.ndim == 2:
        array = array[..., None]
    return channels_first(array[None])[0]
