"""A network as the adapter uses it: a copy that shares the frozen tensors and returns logits."""

from __future__ import annotations

import copy
import dataclasses
import warnings
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.nn.modules.conv import _ConvNd

from cretta.accelerate import Accelerator, Backend, bfloat16_is_faster, missing_bfloat16
from cretta.distributed import Group
from cretta.errors import BatchError, CrettaError, ModelError
from cretta.functional import at_least_float32
from cretta.normalization import NormStatistics, Role


def copy_sharing_parameters(net: nn.Module, own: Iterable[str] = ()) -> nn.Module:
    """Return a copy of ``net`` in eval mode, without gradients, on the same parameter storage.

    Parameters named in ``own``, and all buffers, are copied: a network that writes to its buffers while it predicts
    must not change the user's.
    """
    owned = set(own)
    memo: dict[int, Any] = {}
    with torch.inference_mode(False), torch.no_grad():
        for name, parameter in net.named_parameters(remove_duplicate=False):
            if isinstance(parameter, nn.UninitializedParameter):
                raise ModelError(
                    f"parameter {name!r} has no shape yet (a lazy module); run one batch through net first."
                )
            if id(parameter) not in memo or name in owned:
                # Inference tensors cannot take part in autograd, so they cannot be shared.
                copied = name in owned or parameter.is_inference()
                values = parameter.clone() if copied else parameter.detach()
                memo[id(parameter)] = nn.Parameter(values, requires_grad=False)
        for buffer in net.buffers():
            memo[id(buffer)] = buffer.detach().clone()
        try:
            return copy.deepcopy(net, memo).eval()
        except (TypeError, RuntimeError, AttributeError) as error:
            raise ModelError(
                f"this {type(net).__name__} cannot be copied ({error}); an adapter works on a copy, so that "
                "net stays unchanged. Remove what cannot be copied (open files, tensors with a graph)."
            ) from error


def compiled(net: object) -> str:
    """Return why the layers of a compiled network cannot be reached, and the remedy; an empty string for others."""
    if isinstance(net, nn.Module) and any(isinstance(module, torch.jit.ScriptModule) for module in net.modules()):
        return (
            "net is or contains TorchScript, whose normalization layers are compiled and cannot be adapted; only "
            "'source' works with it. Adapt the network that it was made from."
        )
    # A program calls normalization as a function; torch.export itself need not be imported to recognize it.
    calls = net.graph.nodes if isinstance(net, GraphModule) else ()
    functions = (node.target for node in calls if isinstance(node.target, torch._ops.OpOverload))
    program = type(net).__name__ == "ExportedProgram"
    if program or any("_norm" in function._schema.name for function in functions):
        return (
            f"net is an exported program ({type(net).__name__}), which calls normalization as a function, without "
            "layers that could be adapted. Adapt the network that it was exported from"
            + ("; only 'source' works with its .module()." if program else ".")
        )
    return ""


@dataclasses.dataclass
class Arguments:
    """How a batch is passed to the network: by position or by name, with constants beside it.

    All networks of an adapter share one object, so that methods handle the batch's tensor only.
    """

    name: str | None = None
    constants: dict[str, Any] = dataclasses.field(default_factory=dict)

    def read(self, batch: object, named: Mapping[str, Any]) -> Tensor:
        """Store how a batch was passed to the adapter, and return its tensor."""
        if isinstance(batch, Mapping):
            named = {**batch, **named}
            batch = None
        tensors = [name for name, value in named.items() if isinstance(value, Tensor)]
        if len(tensors) > (batch is None):
            passed = tensors if batch is None else ["one by position", *tensors]
            raise BatchError(f"expected one torch.Tensor, got {', '.join(passed)}; pass the images alone.")
        name = next(iter([*tensors, *named]), None) if batch is None else None
        x = batch if name is None else named[name]
        if not isinstance(x, Tensor):
            raise BatchError(
                f"a batch must be a torch.Tensor, not {type(x).__name__}; convert an array with "
                "torch.from_numpy(array), stack a list of tensors with torch.stack(images)."
            )
        self.name, self.constants = name, {key: value for key, value in named.items() if key != name}
        return x

    def call(self, network: Callable[..., Any], x: Tensor) -> Any:
        """Return what ``network`` returns for ``x`` passed in this way."""
        return network(x, **self.constants) if self.name is None else network(**{self.name: x}, **self.constants)


def logits_of(output: object, batch: int) -> Tensor:
    """Return the (batch, classes) tensor in a network's output.

    That is the output itself, its ``.logits`` or ``["logits"]``, or the first element of a tuple.
    """
    logits = output
    if isinstance(output, Mapping):
        logits = output.get("logits")
    elif not isinstance(output, Tensor):
        logits = getattr(output, "logits", output[0] if isinstance(output, tuple) and output else None)
    if not isinstance(logits, Tensor):
        raise ModelError(
            f"the network returned {type(output).__name__}; expected a tensor of logits (batch, classes), an object "
            "with such a .logits or ['logits'], or a tuple that begins with it. Wrap the network so that it returns "
            "its logits."
        )
    if logits.dim() != 2 or logits.shape[0] != batch:
        first = isinstance(output, tuple) and logits is output[0]
        raise ModelError(
            f"the network returned {'a tuple that begins with a tensor' if first else 'logits'} of shape "
            f"{tuple(logits.shape)} for a batch of {batch}; expected {'logits ' if first else ''}({batch}, classes). "
            + (
                "Wrap the network so that it returns its logits first."
                if first
                else "If the input lacked its batch dimension, add it with x.unsqueeze(0)."
            )
        )
    if not logits.is_floating_point():
        raise ModelError(
            f"the network returned {logits.dtype} numbers; expected floating-point logits, not class indices."
        )
    return at_least_float32(logits)


class Network:
    """Calls a network and returns its logits in at least single precision.

    With ``fuse``, the network may be replaced by a faster one that computes the same (:mod:`cretta.accelerate`). The
    processes of a ``group`` each run their own rows of the batch, and all get the logits of all.
    """

    def __init__(
        self,
        module: nn.Module,
        statistics: NormStatistics,
        arguments: Arguments | None = None,
        *,
        learns: bool = True,
        fuse: bool = False,
        compiles: str | None = None,
        precision: str = "full",
        group: Group | None = None,
    ) -> None:
        self.module = module
        self.statistics = statistics
        self.arguments = arguments if arguments is not None else Arguments()
        self._precision = precision
        self._group = group
        self._contiguous = False
        self._checked = False
        plain_because = "fuse=False" if not fuse else f"precision={precision!r}" if precision == "bfloat16" else None
        if statistics.synchronizes:
            plain_because = "statistics are those of several processes"
        self._accelerator = Accelerator(module, learns=learns, compile_mode=compiles, plain_because=plain_because)

    @property
    def backend(self) -> Backend:
        """What runs the network, and why."""
        backend = self._accelerator.backend
        if self._precision != "bfloat16_no_grad":
            return backend
        missing = missing_bfloat16(next(iter([*self.module.parameters(), torch.empty(0)])).device)
        passes = f"full precision, because {missing}" if missing else "bfloat16 where it is faster"
        return dataclasses.replace(backend, reason=f"{backend.reason}; passes without a gradient in {passes}")

    def __call__(self, x: Tensor) -> Tensor:
        """Return the logits of a batch of the target stream."""
        return self._run(x, "target")

    def probe(self, x: Tensor, *, plain: bool = False) -> Tensor:
        """Return the logits of a batch of the stream again, without effect on moving statistics.

        ``plain`` runs the module itself, not what replaces it.
        """
        return self._run(x, "probe", plain=plain)

    def source(self, x: Tensor) -> Tensor:
        """Return the logits of samples that are not of the stream: source samples, or generated ones."""
        return self._run(x, "source")

    def _run(self, x: Tensor, role: Role, *, plain: bool = False) -> Tensor:
        counts: list[int] = []
        if self._group is not None:
            x, counts = self._group.rows(x)
        try:
            if not self._accelerator.chosen and not plain:
                self.statistics.role = "probe"
                self._accelerator.choose(x.detach(), dataclasses.replace(self.arguments), self._logits)
            self.statistics.role, self.statistics.size = role, sum(counts) or len(x)
            network = self.module if plain else self._accelerator.network(x, self.arguments)
            half = self._is_faster_in_half(network, x)
            logits = self._logits(self.module if half else network, x, half=half)
            if self._group is not None:
                logits = self._group.gather(logits, counts)
        except (ValueError, RuntimeError) as error:
            if isinstance(error, CrettaError):
                raise
            explained = self._explain(x, str(error))
            if explained is None:
                raise
            raise explained from error
        finally:
            self.statistics.role = "target"
        if not self._checked:
            self._check_first_logits(logits.detach())
        return logits

    def _is_faster_in_half(self, network: Callable[..., Any], x: Tensor) -> bool:
        # Timing is left to one process: where processes share statistics, each pass waits for the others.
        if self._precision != "bfloat16_no_grad" or torch.is_grad_enabled() or self.statistics.synchronizes:
            return False
        role, self.statistics.role = self.statistics.role, "probe"  # timing must not change moving statistics
        try:
            name = type(self.module).__name__
            full, half = partial(self._logits, network), partial(self._logits, self.module, half=True)
            return bfloat16_is_faster(name, x, full, half)
        finally:
            self.statistics.role = role

    def _logits(self, network: Callable[..., Any], x: Tensor, *, half: bool = False) -> Tensor:
        half = half or self._precision == "bfloat16"
        try:
            with torch.autocast(x.device.type, torch.bfloat16) if half else nullcontext():
                return logits_of(self.arguments.call(network, x.contiguous() if self._contiguous else x), len(x))
        except RuntimeError as error:
            if self._contiguous or "view size is not compatible" not in str(error) or x.is_contiguous():
                raise
            # A network that flattens by .view() cannot take channels-last batches.
            self._contiguous = True
            return self._logits(network, x, half=half)

    def _check_first_logits(self, logits: Tensor) -> None:
        """Raise if the network's first output cannot be logits."""
        if logits.shape[1] < 2:
            raise ModelError("the network returns one number per sample; expected logits of at least two classes.")
        # Under autocast the rows are rounded to eight bits.
        tolerance = 1e-4 if self._precision == "full" else 4 * torch.finfo(torch.bfloat16).eps
        if bool((logits >= 0).all()) and bool(((logits.sum(1) - 1).abs() < tolerance).all()):
            raise ModelError(
                "the network returns probabilities (rows that sum to 1); expected logits, from before the softmax: "
                "remove it from the end of the network."
            )
        if bool((logits.logsumexp(1).abs() < tolerance).all()):
            raise ModelError(
                "the network returns log-probabilities (rows whose logsumexp is 0, as after log_softmax); "
                "expected logits, from before the log_softmax: remove it from the end of the network."
            )
        if len(logits) > 1 and bool(((logits > 0) & (logits < 1)).all()):
            warnings.warn(
                "all outputs of the network lie between 0 and 1, as after a sigmoid; expected logits. If there is a "
                "sigmoid, remove it from the end of the network: energies and confidences would be wrong.",
                stacklevel=5,
            )
        self._checked = True

    def _explain(self, x: Tensor, message: str) -> CrettaError | None:
        message = message.rstrip(".")
        if any(".quantized" in type(module).__module__ for module in self.module.modules()):
            return ModelError(
                "the network has quantized layers, which its normalization layers cannot be adapted with. Adapt the "
                "network from before its quantization; 'source' predicts with this one."
            )
        if "more than 1 value per channel" in message:
            return BatchError(
                f"a batch of {len(x)} is too small for batch statistics in this network; use "
                "statistics='mixture', 'moving' or 'running', or larger batches."
            )
        convolution = next((m for m in self.module.modules() if isinstance(m, _ConvNd)), None)
        if convolution is None:
            return None
        weight, channels = convolution.weight, convolution.in_channels
        if x.dim() != weight.dim():
            missing = x.dim() == weight.dim() - 1
            return BatchError(
                f"the network cannot take a batch of shape {tuple(x.shape)}: its convolutions expect {weight.dim()} "
                f"dimensions, the batch first{'; use x.unsqueeze(0) for one image' if missing else ''} ({message})."
            )
        if x.dtype != weight.dtype and not torch.is_autocast_enabled(x.device.type):
            advice = "x.float() / 255 for integer images" if not x.is_floating_point() else f"x.to({weight.dtype})"
            return BatchError(
                f"the batch is {x.dtype}, the network {weight.dtype}; convert it by {advice} ({message})."
            )
        if x.shape[1] != channels:
            return BatchError(
                f"the batch has shape {tuple(x.shape)}, but the network's first convolution expects {channels} "
                f"channels in dimension 1. If the channels are last, use x.permute(0, 3, 1, 2); for gray images, "
                f"x.expand(-1, {channels}, -1, -1) ({message})."
            )
        return None
