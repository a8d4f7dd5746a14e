"""A network as the adapter uses it: a copy that shares its frozen tensors and answers with logits."""

from __future__ import annotations

import copy
import dataclasses
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.nn.modules.conv import _ConvNd

from cretta import native
from cretta.errors import BatchError, ModelError
from cretta.norm import NormStatistics, Role
from cretta.rewrite import rewritten

LOG = logging.getLogger("cretta")


def share(net: nn.Module, own: Iterable[str] = ()) -> nn.Module:
    """A copy of ``net``, asleep (eval mode, no gradients), on the same parameter storage.

    Parameters named in ``own``, and all buffers, are copied; a network that writes to its buffers while
    it predicts must not reach the user's.
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
                mine = name in owned or parameter.is_inference()
                values = parameter.clone() if mine else parameter.detach()
                memo[id(parameter)] = nn.Parameter(values, requires_grad=False)
        for buffer in net.buffers():
            memo[id(buffer)] = buffer.detach().clone()
        try:
            return copy.deepcopy(net, memo).eval()
        except (TypeError, RuntimeError, AttributeError) as wrong:
            raise ModelError(
                f"this {type(net).__name__} cannot be copied ({wrong}); an adapter works on a copy, so that "
                "net stays as it is. Remove what cannot be copied (open files, tensors with a graph)."
            ) from wrong


def compiled(net: object) -> str:
    """Return why the layers of a compiled network cannot be reached, and the remedy; an empty string for others."""
    if isinstance(net, nn.Module) and any(isinstance(module, torch.jit.ScriptModule) for module in net.modules()):
        return (
            "net is or contains TorchScript, whose normalization layers are compiled and cannot be adapted. 'source' "
            "works with it; 'bn_adapt' with a module that was scripted, not traced or frozen: torch.jit.save(net, "
            "'net.pt'), then adapt cretta.models.open_model('net.pt').net. For all methods, adapt the network it was "
            "compiled from, or export that by torch.export."
        )
    # A program calls normalization as a function; torch.export itself need not be imported to recognize it.
    calls = net.graph.nodes if isinstance(net, GraphModule) else ()
    functions = (node.target for node in calls if isinstance(node.target, torch._ops.OpOverload))
    if type(net).__name__ == "ExportedProgram" or any("_norm" in function._schema.name for function in functions):
        return (
            f"net is an exported program ({type(net).__name__}), which calls normalization as a function, without "
            "layers that could be adapted. Save it by torch.export.save(program, 'net.pt2') and adapt "
            "cretta.models.open_model('net.pt2').net, or adapt the network it was exported from."
        )
    return ""


@dataclasses.dataclass
class Arguments:
    """How a batch goes to the network: by position or under a name, with constants beside it.

    All networks of an adapter share one, so that methods handle nothing but the batch's tensor.
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
        raise ModelError(
            f"the network returned logits of shape {tuple(logits.shape)} for a batch of {batch}; needed is "
            f"({batch}, classes). If the input lacked its batch dimension, add it with x.unsqueeze(0)."
        )
    if not logits.is_floating_point():
        raise ModelError(
            f"the network returned {logits.dtype} numbers, which are no logits; return those, not class indices."
        )
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


class Classifier:
    """Calls a network and returns its logits in at least single precision.

    ``fuse`` lets it run as :func:`cretta.rewrite.rewritten` makes it, once that gave two samples the same logits and
    gradients, but for rounding, with and without kernels of our own.
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
    ) -> None:
        self.module = module
        self.statistics = statistics
        self.arguments = arguments if arguments is not None else Arguments()
        self._learns = learns
        self._precision = precision
        self._contiguous = False
        self._looked_at = False
        self._fused: nn.Module | None = None
        self._fused_for: tuple[int, Arguments] | None = None
        self._overwrites = compiles in ("reduce-overhead", "max-autotune")
        self._settled = not fuse or compiles is not None or precision != "full"
        self._plain: Callable[[Tensor], Any] = module if compiles is None else torch.compile(module, mode=compiles)

    def __call__(self, x: Tensor, role: Role = "target") -> Tensor:
        """Logits of ``x``, a batch of the target stream or of source samples."""
        if not self._settled and not torch.is_autocast_enabled(x.device.type):
            self._settle(x[:2].detach())
        self.statistics.role = role
        try:
            logits = self._answer(self._network(x), x)
        except (ValueError, RuntimeError) as wrong:
            if isinstance(wrong, ModelError):
                raise
            explained = self._explain(x, str(wrong))
            if explained is None:
                raise
            raise explained from wrong
        finally:
            self.statistics.role = "target"
        if not self._looked_at:
            self._look_at(logits.detach())
        # CUDA graphs write every answer to the same place.
        return logits.clone() if self._overwrites else logits

    def _network(self, x: Tensor) -> Callable[[Tensor], Any]:
        # Autocast looks at every operation by itself; a batch of the wrong rank should be told so, not folded.
        if torch.is_autocast_enabled(x.device.type) or (x.dim(), self.arguments) != self._fused_for:
            return self._plain
        return self._fused or self._plain

    def _answer(self, network: Callable[[Tensor], Any], x: Tensor) -> Tensor:
        if self._precision != "full":
            with torch.autocast(x.device.type, torch.bfloat16):
                return self._laid_out(network, x)
        return self._laid_out(network, x)

    def _laid_out(self, network: Callable[[Tensor], Any], x: Tensor) -> Tensor:
        if self._contiguous:
            return logits_of(self.arguments.call(network, x.contiguous()), len(x))
        try:
            return logits_of(self.arguments.call(network, x), len(x))
        except RuntimeError as wrong:
            if "view size is not compatible" not in str(wrong) or x.is_contiguous():
                raise
            # A network that flattens by .view() cannot take channels-last; it will not learn to.
            self._contiguous = True
            return self._laid_out(network, x)

    def _settle(self, x: Tensor) -> None:
        """Decides, once, whether the rewritten network is to be trusted; leaves it open where ``x`` cannot tell."""
        self.statistics.role = "probe"
        try:
            expected = self._try(self.module, x)
            if all(bool(torch.isfinite(values).all()) for values in expected):
                self._settled = True
                self._fused = self._trusted(x, expected)
                self._fused_for = (x.dim(), dataclasses.replace(self.arguments))
        except (ValueError, RuntimeError, TypeError, IndexError):
            return  # whatever is wrong with the batch will be said when it is used
        finally:
            self.statistics.role = "target"

    def _trusted(self, x: Tensor, expected: list[Tensor]) -> nn.Module | None:
        try:
            fused = rewritten(self.module, learns=self._learns, call=dataclasses.replace(self.arguments).call)
            if fused is None:
                return None
            with native.resting():
                wrong: object = None if _same(self._try(fused, x), expected) else "other numbers"
            if wrong is None and native.KERNELS is not None and not _similar(self._try(fused, x), expected):
                wrong = "kernels of our own give other numbers"
            if wrong is None:
                return fused
        except Exception as error:  # followed along another way than it goes, a network may fail anyhow
            wrong = error
        LOG.debug("%s is not rewritten: %s", type(self.module).__name__, wrong)
        return None

    def _try(self, network: nn.Module, x: Tensor) -> list[Tensor]:
        """Logits of ``x`` and, if the network learns, how they would move its parameters and ``x``."""
        with torch.set_grad_enabled(self._learns):
            x = x.clone().requires_grad_(self._learns and x.is_floating_point())
            logits = self._answer(network, x)
            moved = [p for p in (x, *self.module.parameters()) if p.requires_grad]
            if not logits.requires_grad or not moved:
                return [logits.detach()]
            # Logits count unequally: those of a batch normalised by itself may sum to a constant.
            weights = torch.linspace(0.5, 1.5, logits.numel(), dtype=logits.dtype, device=logits.device)
            height = (logits.flatten() * weights).square().sum()
            slopes = torch.autograd.grad(height, moved, allow_unused=True)
        return [logits.detach(), *(slope for slope in slopes if slope is not None)]

    def _look_at(self, logits: Tensor) -> None:
        """Once: whether these can be logits at all."""
        if logits.shape[1] < 2:
            raise ModelError(
                "the network returns one number for each sample; needed are logits of at least two classes."
            )
        if bool((logits >= 0).all()) and bool(((logits.sum(1) - 1).abs() < 1e-4).all()):
            raise ModelError(
                "the network returns probabilities (rows that sum to 1); needed are logits, from before the softmax."
            )
        if bool((logits.logsumexp(1).abs() < 1e-4).all()):
            raise ModelError(
                "the network returns log-probabilities (rows whose logsumexp is 0, as log_softmax makes them); "
                "expected logits, from before the log_softmax: remove it from the end of the network."
            )
        self._looked_at = True

    def _explain(self, x: Tensor, message: str) -> BatchError | None:
        if "more than 1 value per channel" in message:
            return BatchError(
                f"a batch of {len(x)} is too small for batch statistics in this network; use "
                "statistics='mixture', 'moving' or 'running', or larger batches."
            )
        convolution = next((m for m in self.module.modules() if isinstance(m, _ConvNd)), None)
        if convolution is None:
            return None
        wanted, channels = convolution.weight, convolution.in_channels
        if x.dim() != wanted.dim():
            return BatchError(
                f"the network cannot take a batch of shape {tuple(x.shape)}: its convolutions want {wanted.dim()} "
                f"dimensions, the batch first ({message})."
            )
        if x.dtype != wanted.dtype and not torch.is_autocast_enabled(x.device.type):
            advice = (
                "x.float() / 255 for images of whole numbers" if not x.is_floating_point() else f"x.to({wanted.dtype})"
            )
            return BatchError(
                f"the batch is {x.dtype}, the network {wanted.dtype}; convert it by {advice} ({message})."
            )
        if x.shape[1] != channels:
            return BatchError(
                f"the batch has shape {tuple(x.shape)}, and the network's first convolution wants {channels} channels "
                f"in the second place. Images that end in their channels: x.permute(0, 3, 1, 2) ({message})."
            )
        return None


def _similar(found: list[Tensor], expected: list[Tensor]) -> bool:
    """Whether logits, and then gradients, are the same but for the rounding of another arithmetic.

    That opens a ReLU here and shuts one there, so that single gradients may differ by more than it.
    """
    off = float((found[0] - expected[0]).abs().max())
    sizes = [float(values.norm()) for values in expected[1:]]
    allowed = [0.1 * size + 1e-2 * max(sizes) for size in sizes]
    near = (float((a - b).norm()) <= most for a, b, most in zip(found[1:], expected[1:], allowed, strict=True))
    return off <= 1e-3 * (1 + float(expected[0].abs().max())) and all(near)


def _same(found: list[Tensor], expected: list[Tensor]) -> bool:
    """Whether logits, and then gradients, differ by rounding only."""
    if [values.shape for values in found] != [values.shape for values in expected]:
        return False
    largest = max([float(values.abs().max()) for values in expected[1:]], default=0.0)
    allowed = [1e-3 * (1 + float(expected[0].abs().max()))]
    # A gradient that cancels out is all rounding.
    allowed += [1e-2 * float(values.abs().max()) + 1e-4 * largest for values in expected[1:]]
    return all(bool((a - b).abs().max() <= most) for a, b, most in zip(found, expected, allowed, strict=True))


class FlatParameters:
    """Parameters that learn, laid out in one tensor for each device and dtype.

    The network's parameters and their gradients are views of it, so that the optimiser, a snapshot, a reset
    and a check for finite values are one operation each, whatever the number of layers.
    """

    def __init__(self, named: Sequence[tuple[str, nn.Parameter]]) -> None:
        self.names = tuple(name for name, _ in named)
        self.flat: list[nn.Parameter] = []
        groups: dict[tuple[torch.device, torch.dtype], list[nn.Parameter]] = {}
        for _, parameter in named:
            groups.setdefault((parameter.device, parameter.dtype), []).append(parameter)
        self._members = list(groups.values())
        for parameters in self._members:
            flat = nn.Parameter(torch.cat([parameter.detach().reshape(-1) for parameter in parameters]))
            flat.grad = torch.zeros_like(flat)
            start = 0
            for parameter in parameters:
                window = slice(start, start + parameter.numel())
                parameter.data = flat.data[window].view(parameter.shape)
                parameter.requires_grad_(True)
                parameter.grad = flat.grad[window].view(parameter.shape)
                start = window.stop
            self.flat.append(flat)

    def joined(self) -> list[Tensor]:
        """The parameters laid out as in ``flat``, as part of a graph: for penalties on them."""
        return [torch.cat([parameter.reshape(-1) for parameter in parameters]) for parameters in self._members]

    def gradients(self) -> list[Tensor]:
        """All gradients, laid out as in ``flat``."""
        return [flat.grad for flat in self.flat if flat.grad is not None]

    def zero_grad(self) -> None:
        """Clears the gradients in place: they are views and must stay so."""
        for gradient in self.gradients():
            gradient.zero_()

    @contextmanager
    def at(self, values: Sequence[Tensor]) -> Iterator[None]:
        """Moves the parameters to ``values`` for a while, then back to the bit."""
        here = [flat.detach().clone() for flat in self.flat]
        try:
            self.move_to(values)
            yield
        finally:
            self.move_to(here)

    def move_to(self, values: Sequence[Tensor]) -> None:
        """Sets the parameters, laid out as in ``flat``."""
        for flat, value in zip(self.flat, values, strict=True):
            flat.data.copy_(value)
        torch.clear_autocast_cache()  # it may hold the parameters as they were
