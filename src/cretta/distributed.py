"""Several processes that adapt one model: N processes with B/N images each equal one process with B images.

Start them by ``torchrun``. Each process passes its own images of a batch, and gets the logits of these::

    group = cretta.distributed.join()
    model = cretta.adapt(net, "cretta", buffer=buffer).distribute(group)
    logits = model(images[group.part(len(images))])

A method computes with the whole batch and does not know of ranks. A :class:`Shard` stands for the batch: a tensor of
the batch's shape that holds the rows of one rank. Networks run on these rows; their logits are gathered, so that every
rank computes the loss of all images and takes the same branch. In the backward pass each rank continues with the
gradient of its own rows, times N, and the gradients of parameters and inputs are averaged over the ranks: what does not
pass through a network, such as a penalty on parameters, then counts once.
"""

from __future__ import annotations

import atexit
import datetime
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_map

from cretta.errors import BatchError, DistributedError, OptionError
from cretta.storage import tensorfile

TIMEOUT = 30.0
"""Seconds that a rank waits for the others: one that is killed is noticed at once, one that hangs after this time."""
CHECK_EVERY = 100
"""Steps after which ranks compare their parameters."""
LOST = (
    "another process of this group has ended, or did not answer in time ({error}). This process cannot continue alone; "
    "what was saved is intact. Start all processes again, and model.restore(…) the last saved state."
)


def join(backend: str | None = None, *, timeout: float = TIMEOUT, check_every: int = CHECK_EVERY) -> Group:
    """Join the processes that ``torchrun`` started; return once all have joined.

    ``backend`` is "nccl" if there is a GPU for each process of this machine, else "gloo". ``timeout`` are the seconds
    to wait for a rank; raise it if reading a batch takes longer. Parameters are compared every ``check_every`` steps.
    """
    if not dist.is_initialized():
        missing = [name for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT") if name not in os.environ]
        if missing:
            raise OptionError(
                f"expected the environment of torchrun, got no {missing[0]}; start the program by "
                "torchrun --nproc-per-node 2 program.py, or call torch.distributed.init_process_group first."
            )
        gpus = torch.cuda.device_count()
        backend = backend or ("nccl" if gpus >= int(os.environ.get("LOCAL_WORLD_SIZE", "1")) else "gloo")
        if backend == "nccl":
            torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
        with _errors():
            dist.init_process_group(backend, timeout=datetime.timedelta(seconds=timeout))
        atexit.register(_leave)
    return Group(check_every=check_every)


def _leave() -> None:
    """End the threads of the group, if the program has not: they may abort a process whose interpreter has ended."""
    if dist.is_initialized():
        dist.destroy_process_group()


@contextmanager
def _errors() -> Iterator[None]:
    """Replace errors of a collective operation, which name sockets, by one that says what to do."""
    try:
        yield
    except (RuntimeError, ConnectionError) as error:
        if isinstance(error, DistributedError):
            raise
        raise DistributedError(LOST.format(error=str(error).partition(". ")[0].strip())) from error


class Group:
    """The processes that share the batches of a model."""

    def __init__(self, processes: dist.ProcessGroup | None = None, *, check_every: int = CHECK_EVERY) -> None:
        """``processes`` are those of ``torch.distributed``; None stands for all."""
        self._processes = processes
        self._check_every = check_every
        self._steps = 0
        self.rank: int = dist.get_rank(processes)
        self.size: int = dist.get_world_size(processes)
        self.has_rows = True
        """Whether this rank has rows of the batch that passes a network now."""

    def part(self, count: int) -> slice:
        """Return which of ``count`` rows belong to this rank: an equal share, one more for some ranks if uneven."""
        return slice(self.rank * count // self.size, (self.rank + 1) * count // self.size)

    def counts(self, count: int) -> list[int]:
        """Return how many of ``count`` rows each rank has by :meth:`part`."""
        return [(rank + 1) * count // self.size - rank * count // self.size for rank in range(self.size)]

    # Collective operations: every rank has to call them, in the same order.

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum over all ranks; ``values`` is overwritten."""
        with _errors():
            dist.all_reduce(values, group=self._processes)
        return values

    def stack(self, values: Tensor) -> Tensor:
        """Return the tensors of all ranks, of one shape, along a new first dimension."""
        gathered = [torch.empty_like(values, memory_format=torch.contiguous_format) for _ in range(self.size)]
        with _errors():
            dist.all_gather(gathered, values.contiguous(), group=self._processes)
        return torch.stack(gathered)

    def objects(self, value: Any) -> list[Any]:
        """Return the objects of all ranks."""
        gathered: list[Any] = [None] * self.size
        with _errors():
            dist.all_gather_object(gathered, value, group=self._processes)
        return gathered

    def concatenate(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        """Return the rows of all ranks, one rank after the other; ``counts`` says how many each has."""
        padded = rows.new_zeros((max(counts), *rows.shape[1:]))
        padded[: len(rows)] = rows
        return torch.cat([part[:count] for part, count in zip(self.stack(padded), counts, strict=True)])

    def average_gradients(self, gradients: Sequence[Tensor]) -> None:
        """Replace the gradients of this rank's rows by those of all rows."""
        for gradient in gradients:
            self.sum(gradient).div_(self.size)

    def shard(self, x: Tensor, problem: str = "") -> Shard:
        """Return the batch of which ``x`` are the rows of this rank; raise on all ranks if one has a ``problem``."""
        kind = f"shape (…, {', '.join(map(str, x.shape[1:]))}) and {x.dtype}"
        # The counts are needed for every batch, the rest only where ranks differ: numbers are quicker than objects.
        number = int(tensorfile.fingerprint([kind])[:15], 16)
        counts, problems, kinds = self.stack(torch.tensor([len(x), bool(problem), number], device=x.device)).T.tolist()
        if any(problems):
            rank, message = next((r, text) for r, text in enumerate(self.objects(problem)) if text)
            raise BatchError(message if problem else f"rank {rank} has a batch that cannot be used: {message}")
        if len(set(kinds)) > 1:
            described = "; ".join(dict.fromkeys(self.objects(kind)))
            raise BatchError(f"expected batches of one shape and dtype on all ranks, got {described}.")
        if not any(counts):
            raise BatchError("the batch is empty on all ranks; pass at least one sample on one of them.")
        return Shard.of(x, counts, self)

    def rows(self, x: Tensor) -> tuple[Tensor, list[int]]:
        """Return the rows of ``x`` to pass through a network here, and how many each rank has.

        A rank without rows gets one of zeros, so that it takes part in the collective operations of the network.
        """
        if isinstance(x, Shard):
            rows, counts = x.rows, x.counts
        else:
            counts = self.counts(len(x))
            rows = _Take.apply(x, self)  # type: ignore[no-untyped-call]
        self.has_rows = len(rows) > 0
        return rows if self.has_rows else torch.cat([rows, rows.new_zeros((1, *rows.shape[1:]))]), counts

    def gather(self, logits: Tensor, counts: Sequence[int]) -> Tensor:
        """Return the logits of all ranks, from those of the rows that :meth:`rows` returned."""
        gathered: Tensor = _Gather.apply(logits[: counts[self.rank]], list(counts), self)  # type: ignore[no-untyped-call]
        return gathered

    def moments(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean and variance of each channel over the rows of all ranks."""
        mean, variance = _Moments.apply(x, self)  # type: ignore[no-untyped-call]
        return mean, variance

    def on_first(self, action: Callable[[], object]) -> None:
        """Call ``action`` on rank 0 while the others wait; raise on all if it fails."""
        error: Exception | None = None
        if self.rank == 0:
            try:
                action()
            except Exception as raised:
                error = raised
        failures = self.objects(None if error is None else str(error))
        if error is not None:
            raise error
        if failures[0] is not None:
            raise DistributedError(f"rank 0: {failures[0]}")

    def require_same(self, description: Mapping[str, Any]) -> None:
        """Raise unless all ranks have the same ``description`` of their work, threads and version of PyTorch."""
        own = {**description, "threads": torch.get_num_threads(), "torch": torch.__version__}
        others = self.objects(own)
        for rank, other in enumerate(others):
            differing = [name for name in own if other[name] != others[0][name]]
            if differing:
                name = differing[0]
                raise DistributedError(
                    f"expected the same {name} on all ranks, got {others[0][name]!s:.60} on rank 0 and "
                    f"{other[name]!s:.60} on rank {rank}; start all processes alike."
                )

    def count_step(self, parameters: Sequence[Tensor]) -> None:
        """Count a step; raise if it is one after which parameters are compared, and they differ between ranks."""
        self._steps += 1
        if self._steps % self._check_every:
            return
        digest = int(tensorfile.fingerprint(parameters)[:15], 16)
        device = parameters[0].device if parameters else torch.device("cpu")
        digests = self.stack(torch.tensor(digest, device=device)).tolist()
        if len(set(digests)) > 1:
            other = next(rank for rank, value in enumerate(digests) if value != digests[0])
            raise DistributedError(
                f"after {self._steps} steps the parameters of rank {other} differ from those of rank 0. Start all "
                "processes again on processors of one kind with one version of PyTorch, and restore a saved state."
            )


_METADATA = {
    torch.Tensor.dim,
    torch.Tensor.size,
    torch.Tensor.numel,
    torch.Tensor.__len__,
    torch.Tensor.is_floating_point,
    *(getattr(torch.Tensor, name).__get__ for name in ("shape", "ndim", "dtype", "device", "requires_grad")),
}
"""What is answered without gathering."""


class Shard(Tensor):
    """The rows of one rank, as a tensor of the whole batch: it is gathered when something is computed from it.

    Passing it to a network of the adapter, its shape, dtype and device gather nothing, its norm only numbers.
    """

    rows: Tensor
    """Those of this rank."""
    counts: list[int]
    """Rows of each rank."""
    group: Group
    _whole: Tensor | None

    @classmethod
    def of(cls, rows: Tensor, counts: list[int], group: Group) -> Shard:
        """Return the batch that has these rows on this rank."""
        # Takes no memory; a function that reads it without gathering gets values that cannot be overlooked.
        value = float("nan") if rows.is_floating_point() else 0
        empty = torch.full((), value, dtype=rows.dtype, device=rows.device)
        shard = empty.expand(sum(counts), *rows.shape[1:]).as_subclass(cls)
        shard.rows, shard.counts, shard.group, shard._whole = rows, counts, group, None
        return shard

    def own(self, values: Tensor) -> Tensor:
        """Return the part of ``values``, one per row of the batch, that belongs to this rank's rows."""
        start = sum(self.counts[: self.group.rank])
        return values[start : start + self.counts[self.group.rank]]

    def whole(self) -> Tensor:
        """Return the batch of all ranks."""
        if self._whole is None:
            self._whole = self.group.concatenate(self.rows, self.counts)
        return self._whole

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _METADATA:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        if func is torch.linalg.vector_norm and not {"dim", "keepdim"} & kwargs.keys() and len(args) <= 2:
            shard, *others = args
            norm = func(shard.rows, *others, **kwargs) if len(shard.rows) else shard.rows.new_zeros(())
            return func(shard.group.stack(norm), *others, **kwargs)  # the norm of the ranks' norms
        args, kwargs = tree_map(lambda value: value.whole() if isinstance(value, Shard) else value, (args, kwargs))
        return func(*args, **kwargs)


class _Take(torch.autograd.Function):
    """The rows of this rank, of a tensor that all ranks have; the gradient is that of all rows, on all ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> Tensor:
        ctx.group, ctx.count = group, len(x)
        return x[group.part(len(x))].clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        group: Group = ctx.group
        return group.concatenate(gradients[0], group.counts(ctx.count)) / group.size, None


class _Gather(torch.autograd.Function):
    """The rows of all ranks; the gradient is that of this rank's rows, times the number of ranks."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, counts: list[int], group: Group) -> Tensor:
        ctx.group, ctx.counts = group, counts
        return group.concatenate(rows, counts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        group: Group = ctx.group
        start = sum(ctx.counts[: group.rank])
        return gradients[0][start : start + ctx.counts[group.rank]] * group.size, None, None


class _Moments(torch.autograd.Function):
    """Mean and variance per channel: all-reduces [Σx, Σx², n] forward, and the gradients of both backward.

    Those are multiples of [Σdy, Σdy·x̂] for each channel of a BatchNorm layer with output y.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Group) -> tuple[Tensor, Tensor]:
        axes = [axis for axis in range(x.dim()) if axis != 1]
        sums = x.new_zeros(2 * x.shape[1] + 1, dtype=torch.float64)
        if group.has_rows:
            squares = torch.linalg.vector_norm(x, dim=axes, dtype=torch.float64).square()
            torch.cat(
                [x.sum(axes, dtype=torch.float64), squares, squares.new_tensor([x.numel() // x.shape[1]])], out=sums
            )
        total, squares, count = group.sum(sums).split([x.shape[1], x.shape[1], 1])
        if int(count) == 1:
            raise ValueError("Expected more than 1 value per channel")  # as PyTorch does
        mean = total / count
        variance = (squares / count - mean.square()).clamp(min=0)
        ctx.group, ctx.has_rows = group, group.has_rows
        ctx.save_for_backward(x, mean.to(x.dtype), count)
        return mean.to(x.dtype), variance.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        x, mean, count = ctx.saved_tensors
        by_mean, by_variance = (ctx.group.sum(torch.stack(gradients).double()) / count).to(x.dtype)
        if not ctx.has_rows:
            return torch.zeros_like(x), None
        shape = [-1 if axis == 1 else 1 for axis in range(x.dim())]
        scale = (2 * by_variance).view(shape)
        return torch.addcmul((by_mean - 2 * by_variance * mean).view(shape), x, scale), None
