"""The adapter: wraps a network, predicts, and learns from what it sees. Methods are its subclasses."""

from __future__ import annotations

import dataclasses
import inspect
import json
import threading
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Generic, Self

import torch
from torch import Tensor, nn
from typing_extensions import TypeVar

from cretta.accelerate import Backend
from cretta.buffer import SourceBuffer
from cretta.errors import BatchError, BusyError, ModelError, OptionError, StateError
from cretta.functional import energy
from cretta.inputs import InputRange
from cretta.learner import NO_LOGITS, NOT_FINITE, Learner, Mark, parts
from cretta.method import Facts, Objective, Options, Record
from cretta.monitor.collapse import CollapseMonitor, CollapseWarning
from cretta.network import Arguments, Classifier, compiled, copy_sharing_parameters
from cretta.normalization import NormStatistics, StreamAverage, norm_layers, norm_parameter_names, under
from cretta.options import unknown
from cretta.parameters import FlatParameters
from cretta.storage import tensorfile

NO_NORM = "no normalisation layer with learnable γ and β"
OptionsT = TypeVar("OptionsT", bound=Options, default=Options)


class Adapter(Learner, Generic[OptionsT]):
    """Predicts with a copy of ``net`` that adapts to the batches it sees; ``net`` itself never changes.

    Call it with a batch to predict and adapt, :meth:`predict` to predict only. A subclass is a method: it
    states its :class:`Facts` and turns a batch into an :class:`Objective`; see ``CONTRIBUTING.md``.

    The frozen parameters are ``net``'s own storage, not copies, but for convolutions of the source model into which
    BatchNorm was folded: to go on training ``net``, make a deep copy of it first.
    """

    name: ClassVar[str] = ""
    """The name the method is registered by; empty for a base class."""
    facts: ClassVar[Facts]
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    option_type: ClassVar[type[Options]] = Options

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.__doc__ and "facts" in vars(cls):
            presets = "".join(f"\n{name}: {dict(values)}" for name, values in cls.presets.items())
            options = f"Options:\n\n{cls.option_type.describe()}" + (f"\n\nPresets:\n{presets}" if presets else "")
            cls.__doc__ = f"{inspect.cleandoc(cls.__doc__)}\n\n{options}\n\n{cls.facts}"
        keywords = [
            inspect.Parameter(f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=f.type)
            for f in dataclasses.fields(cls.option_type)
        ]
        positional = inspect.Parameter.POSITIONAL_OR_KEYWORD
        cls.__signature__ = inspect.Signature(  # type: ignore[attr-defined]  # read by help() and inspect
            [
                inspect.Parameter("net", positional, annotation="nn.Module"),
                inspect.Parameter("buffer", positional, default=None, annotation="SourceBuffer | None"),
                inspect.Parameter("preset", inspect.Parameter.KEYWORD_ONLY, default=None, annotation="str | None"),
                *keywords,
            ]
        )

    def __init__(
        self, net: nn.Module, buffer: SourceBuffer | None = None, *, preset: str | None = None, **options: Any
    ) -> None:
        if not isinstance(net, nn.Module):
            raise ModelError(
                compiled(net)
                or f"net is {type(net).__name__}; expected a torch.nn.Module that returns logits. A name or a file is "
                "opened by cretta.models.open_model(…).net."
            )
        if not self.name:
            raise OptionError(
                f"{type(self).__name__} is not a method: it has no name. Use cretta.adapt(net, 'cretta', …), or a "
                "method's class; in a class of your own, set name and facts."
            )
        if buffer is not None and not isinstance(buffer, SourceBuffer):
            raise OptionError(
                f"buffer is {type(buffer).__name__}; needed is a cretta.SourceBuffer, as "
                "SourceBuffer.sample(training_set) or SourceBuffer(images) make it, or None."
            )
        self.options: OptionsT = self.option_type.make(self.name, self.preset_options(preset), options)  # type: ignore[assignment]  # option_type is the subclass's
        self.buffer = buffer
        self.net: nn.Module = getattr(net, "_orig_mod", net)  # under torch.compile lies the module itself
        if self.options.guard is not None and self.facts.updates == "nothing":
            raise OptionError(
                f"guard={self.options.guard.action!r}: a guard watches what learning does to the model, and "
                f"{self.name} learns nothing. Leave guard out, or use a method that learns, such as 'tent' or 'cretta'."
            )
        self.skip = self._skipped_layers(by_user="skip" in options, preset=preset)
        """Full names of the layers that do not learn, with all below them."""
        self.statistics = self.options.statistics or self.facts.statistics
        self.logits_from = self.options.predict or self.facts.logits
        self.last = Record(size=0, moved=None, skipped=False, note="no batch yet")
        self._busy = threading.Lock()
        self._user: int | None = None
        self._arguments = Arguments()
        self._frozen: dict[str, Classifier] = {}
        self._net_fingerprint: str | None = None
        with torch.inference_mode(False):
            self._build()
            self.begin()
            self.initial = self.state()
            """The state before the first batch."""
        self._watch = CollapseMonitor(self.options.guard) if self.options.guard else None
        self._inputs = InputRange(self.buffer if self.facts.source_data else None)

    @classmethod
    def preset_options(cls, preset: str | None) -> dict[str, Any]:
        """The options of a preset, or of several: "imagenet+fast", of which the later win."""
        found: dict[str, Any] = {}
        for name in [] if preset is None else str(preset).split("+"):
            if name not in cls.presets:
                raise unknown(f"preset of {cls.name}", name, cls.presets)
            found |= cls.presets[name]
        return found

    def _skipped_layers(self, *, by_user: bool, preset: str | None) -> tuple[str, ...]:
        """Return full names: a user gives them; a preset's match at any depth, for networks that were wrapped."""
        names = {name for name, _ in [*self.net.named_modules(), *self.net.named_parameters()] if name}
        skip = self.options.skip
        if by_user:
            for layer in skip:
                if layer not in names:
                    raise unknown("layer in skip=", layer, names)
            return skip
        matches = {layer: sorted(name for name in names if f".{name}".endswith(f".{layer}")) for layer in skip}
        missing = [layer for layer in skip if not matches[layer]]
        if missing:
            warnings.warn(
                f"preset={preset!r} keeps {', '.join(missing)} from learning, and {type(self.net).__name__} has no "
                "layer of that name; say which layers should not learn by skip=(…), or skip=() for none.",
                stacklevel=4,
            )
        return tuple(name for layer in skip for name in matches[layer])

    def _build(self) -> None:
        learning = self._learning_names()
        if self.statistics != "running" and not any(norm_layers(self.net)) and compiled(self.net):
            raise ModelError(compiled(self.net))
        first = next(iter([*self.net.parameters(), *self.net.buffers()]), torch.empty(0))
        module, average = copy_sharing_parameters(self.net, own=learning), StreamAverage()
        parameters = dict(module.named_parameters(remove_duplicate=False))
        flat = FlatParameters([(name, parameters[name]) for name in learning])
        Learner.__init__(self, self.options, flat, average, first.device)
        self.model = self._classifier(module, self.statistics, learns=bool(learning))
        self.model.statistics.follows_stream = True

    def _classifier(self, module: nn.Module, statistics: str, *, learns: bool) -> Classifier:
        o = self.options
        norms = NormStatistics(module, statistics, o.batch_weight, self.average)
        return Classifier(
            module,
            norms,
            self._arguments,
            learns=learns,
            fuse=o.fuse,
            compiles=o.compile,
            precision=o.precision,
        )

    def _learning_names(self) -> list[str]:
        if self.facts.updates == "nothing":
            return []
        if self.facts.updates == "all":
            names = [name for name, _ in self.net.named_parameters() if not under(name, self.skip)]
        else:
            names = norm_parameter_names(self.net, self.skip)
        if not names:
            raise ModelError(
                compiled(self.net)
                or f"{type(self.net).__name__} has {'no parameter' if self.facts.updates == 'all' else NO_NORM}"
                f"{' outside ' + repr(self.skip) if self.skip else ''}, and {self.name} updates "
                "nothing else. Needed is BatchNorm, GroupNorm, LayerNorm, InstanceNorm or RMSNorm with affine "
                "parameters; cretta.adapt(net, 'source') predicts with any model."
            )
        parameters = dict(self.net.named_parameters(remove_duplicate=False))
        half = next((n for n in names if parameters[n].dtype in (torch.float16, torch.bfloat16)), None)
        if half is not None:
            raise ModelError(
                f"{half} is {parameters[half].dtype}: steps of lr={self.options.lr:g} would be rounded away. Use "
                "net.float() and run the adapter under torch.autocast for half-precision speed."
            )
        return names

    # What a method may say. Only `objective` is needed.

    def begin(self) -> None:
        """Puts the first entries into ``memory``; called once, before the first batch."""

    def objective(self, x: Tensor) -> Objective:
        """The loss of a batch, and the logits of it that came by the way; gradients are on."""
        return Objective(loss=None, logits=self.model(x))

    def update(self, x: Tensor, objective: Objective) -> str:
        """Takes one step down the objective; returns why not, or an empty string."""
        if objective.loss is None:
            return objective.reason or "the batch gave nothing to learn from"
        self.backward(objective.loss)
        if objective.rest is not None:
            self.backward(objective.rest(), more=True)
        if not self.finite():
            return NOT_FINITE
        self.step()
        return ""

    # What everybody calls.

    def __call__(self, x: Tensor | Mapping[str, Any] | None = None, /, **named: Any) -> Tensor:
        """Predict a batch of what ``net`` takes, and adapt to it; return logits (B, C), all of them finite.

        The batch is one tensor, passed as ``net`` takes it: ``model(x)``, ``model(pixel_values=x)``, or
        ``model({"pixel_values": x})``, which is the same as the second. Keywords that are not tensors are passed on to
        ``net``, with source samples too. The output of ``net`` may be the logits, an object with ``.logits``, a mapping
        with ``["logits"]``, or a tuple that begins with them.
        """
        with self._alone():
            x = self._usable(x, named)
            self._unmeasured = x if x.is_floating_point() else None
            self._undo.clear()
            start = self.mark()
            ways_back = [start.back] + ([self._watch.checkpoint()] if self._watch is not None else [])
            try:
                counted = self.memory.get("batches")
                if self.options.episodic:
                    self.load(self.initial)
                due = self._is_due(counted)
                if self.options.episodic or self.options.adapt_every > 1:
                    start = self.mark()
                logits, record = self._follow(x, start, due)
                if self._far:
                    ways_back[0]()
                    self._inputs.warn_far(x)
                else:
                    self._inputs.follow(x)
                self.last = record
            except BaseException:
                for back in ways_back:
                    back()
                raise
            return logits

    def _follow(self, x: Tensor, start: Mark, due: bool) -> tuple[Tensor, Record]:
        watch = self._watch
        before = self.state() if watch is not None and watch.due else None
        objective, updates, reason = self._learn(x, start) if due else self._only_predict(x)
        if self._far:
            self.average.seen, watch = {}, None
        logits = objective.logits.detach()
        reference = self.unadapted(x) if before is not None and watch is not None else None
        self.average.commit()
        noticed, undone = "", False
        if watch is not None:
            # Logits from before the update speak of the state before it.
            late = updates > 0 and not reason and self.logits_from == "after"
            judged = self.state() if before is not None and late else before
            watch.batches += 1
            if reference is not None and judged is not None:
                alarm = watch.check(logits, reference, judged, self.initial)
                if alarm is not None:
                    noticed, undone = alarm.message, alarm.restore is not None
                    if alarm.restore is not None:
                        self.load(alarm.restore)
                        logits = self.answer(x)
                        self.average.seen = {}
                    warnings.warn(f"batch {watch.batches}: {noticed}", CollapseWarning, stacklevel=3)
        if not bool(torch.isfinite(logits).all()) if undone else reason == NO_LOGITS:
            raise self._without_answer(x)
        values = {"energy": energy(logits, self.options.temperature).mean(), **objective.notes}
        if objective.loss is not None:
            values["loss"] = objective.loss.detach()
        moved = self.moved(start) if updates > 0 and not undone else None
        return logits, Record(len(x), moved, bool(reason), reason or objective.reason, noticed, values)

    def _is_due(self, counted: Tensor | None) -> bool:
        """Counts this batch, after those ``counted``, and tells whether it is one to learn from."""
        if self.optimizer is None or self.options.adapt_every == 1:
            return True
        before = 0 if counted is None else int(counted)
        self.memory["batches"] = torch.tensor(before + 1)
        return before % self.options.adapt_every == 0

    def _only_predict(self, x: Tensor) -> tuple[Objective, int, str]:
        objective = Objective(None, self.answer(x), f"learns from one batch in {self.options.adapt_every}")
        self._unchecked.append(objective.logits)
        return objective, 0, self._check(x, objective.logits)

    def _learn(self, x: Tensor, start: Mark) -> tuple[Objective, int, str]:
        """Return the last objective, with the logits to answer with, the number of steps, and why one was left out."""
        if self.optimizer is None:
            with torch.no_grad():
                objective = self.objective(x)
            self._unchecked.append(objective.logits)
            return objective, 0, self._check(x, objective.logits)
        for step in range(self.options.steps):
            if step > 0:
                start = self.mark()
            self._postponed = self.logits_from == "after" and step == self.options.steps - 1
            try:
                with torch.enable_grad():
                    objective = self.objective(x)
                    self._unchecked.append(objective.logits.detach())
                    reason = self.update(x, objective)
                after = self.answer(x) if self._postponed and not reason else None
            finally:
                self._postponed = False
            self._unchecked += [] if after is None else [after]
            refused = reason == NOT_FINITE
            reason = self._check(x, objective.logits, refused=refused) or reason
            if reason:
                # The stream's statistics are no part of a step, but those of a batch that makes it fail are suspect.
                seen = self.average.seen if reason not in (NOT_FINITE, NO_LOGITS) else {}
                start.back()
                self.average.seen = seen
                return objective, step, reason
            if after is not None:
                objective.logits = after
        return objective, self.options.steps, ""

    def _check(self, x: Tensor, logits: Tensor, *, refused: bool = False) -> str:
        """Say why not to learn from a batch that fails the check :meth:`finite`, or was ``refused`` by it before."""
        if self.finite() and not refused:
            return ""
        self._refuse(x)
        if not bool(torch.isfinite(logits).all()):
            return NO_LOGITS
        return self._inputs.reason if self._far else NOT_FINITE

    def _without_answer(self, x: Tensor) -> BatchError:
        low, high = (float(value) for value in torch.aminmax(x))
        return BatchError(
            f"{NO_LOGITS}; nothing was changed. Expected are inputs on the scale that net was trained on, got values "
            f"from {low:.3g} to {high:.3g}; rescale or drop the batch. If every batch ends so, call reset()."
        )

    def largest_norm(self, x: Tensor) -> Tensor | None:
        """Return the Euclidean norm above which a batch is far outside the usual range; None if that is not known."""
        return self._inputs.limit(x)

    def answer(self, x: Tensor) -> Tensor:
        """Logits of the model as it is now."""
        with torch.no_grad():
            return self.model(x)

    def predict(self, x: Tensor | Mapping[str, Any] | None = None, /, **named: Any) -> Tensor:
        """Predict with the model as it is now and change nothing; takes and returns the same as a call."""
        with self._alone():
            try:
                x = self._usable(x, named)
                logits = self.answer(x)
                self._unchecked = [logits, *([x] if x.is_floating_point() else [])]
                if self._check(x, logits) == NO_LOGITS:
                    raise self._without_answer(x)
                return logits
            finally:
                self.average.seen = {}

    def reset(self) -> None:
        """Back to the source model: parameters, optimiser, statistics, memory and generator."""
        with self._alone():
            self.load(self.initial)
            self._inputs = InputRange(self._inputs.buffer)
            if self._watch is not None:
                self._watch = CollapseMonitor(self._watch.guard)

    def save(self, path: str | Path) -> None:
        """Writes everything that evolves to a safetensors file; :meth:`restore` continues bit for bit."""
        with self._alone():
            state = self.state() | {f"range.{name}": value for name, value in self._inputs.state().items()}
            if self._watch is not None:
                state |= {f"guard.{name}": value for name, value in self._watch.snapshot().items()}
            tensorfile.write(path, state, self._description())

    def restore(self, path: str | Path) -> None:
        """Takes up a state that :meth:`save` wrote for the same method and source model."""
        with self._alone():
            state, saved = tensorfile.read(path, "state of an adapter")
            here = self._description()
            for key, what in (("method", "the method"), ("source", "the source model"), ("buffer", "the buffer")):
                if saved.get(key) != here[key]:
                    # Of a fingerprint's 64 digits, eight tell as much to a reader.
                    before, now = (f"{v!s:.8}…" if len(str(v)) == 64 else repr(v) for v in (saved.get(key), here[key]))
                    raise StateError(
                        f"{path} does not fit: {what} was {before} when it was saved and is {now} here. Restore it "
                        "into the adapter it came from, or start without it."
                    )
            other = {k: v for k, v in saved.get("options", {}).items() if here["options"].get(k) != v}
            if "optimizer" in other or "statistics" in other:
                raise StateError(
                    f"{path} does not fit: it was saved with {other}; build the adapter with the same options."
                )
            guard, inputs = dict(parts("guard.", state)), dict(parts("range.", state))
            state = {n: t for n, t in state.items() if not n.startswith(("guard.", "range."))}
            try:
                self.check(state, self.initial, same_device=saved.get("device") == here["device"])
            except StateError as wrong:
                raise StateError(f"{path} is damaged: {wrong}. Save it anew.") from None
            if other:
                warnings.warn(f"{path} was saved with {other}; the options of this adapter stay.", stacklevel=2)
            self.load(state)
            self._inputs.load(inputs, self.generator.device)
            if self._watch is not None:
                self._watch.restore(guard, self.generator.device)

    def clone(self, **options: Any) -> Self:
        """Return an independent adapter of the same method, network, buffer and state, with some ``options`` changed.

        What is computed once and not part of the state, such as energies of source samples, is computed again.
        """
        with self._alone():
            defaults = {field.name: field.default for field in dataclasses.fields(self.options)}
            changed = {name: value for name, value in vars(self.options).items() if value != defaults[name]}
            changed["skip"] = self.skip  # full names; those of a preset match parts of names
            clone = type(self)(self.net, self.buffer, **(changed | options))
            clone.load(self.state())
            clone._inputs.load(self._inputs.state(), self.generator.device)
            if self._watch is not None and clone._watch is not None:
                clone._watch.restore(self._watch.snapshot(), self.generator.device)
            return clone

    def networks(self) -> Iterator[nn.Module]:
        """Yield the modules that the adapter calls: the adapting copy of ``net``, and the frozen ones it has so far."""
        yield from (classifier.module for classifier in (self.model, *self._frozen.values()))

    def __repr__(self) -> str:
        defaults = {f.name: f.default for f in dataclasses.fields(self.options)}
        given = [f"{k}={v!r}" for k, v in vars(self.options).items() if v != defaults[k]]
        return f"{type(self).__name__}({', '.join([type(self.net).__name__, *given])})"

    @property
    def backend(self) -> Backend:
        """What runs the network (plain, rewritten, kernels or compiled), and why; the first batch decides."""
        return self.model.backend

    # What methods and the guard use.

    @property
    def source_parameters(self) -> list[Tensor]:
        """The parameters that learn, as they were in the source model, laid out as ``parameters.flat``."""
        return [self.initial[f"parameters.{index}"] for index in range(len(self.parameters.flat))]

    def frozen(self, statistics: str) -> Classifier:
        """The source model φ with the given BatchNorm statistics."""
        if statistics not in self._frozen:
            self._frozen[statistics] = self._classifier(copy_sharing_parameters(self.net), statistics, learns=False)
        return self._frozen[statistics]

    def unadapted(self, x: Tensor) -> Tensor:
        """Logits of the source model under the statistics in use, without gradients."""
        with torch.no_grad():
            return self.frozen(self.statistics)(x)

    def _description(self) -> dict[str, Any]:
        if self._net_fingerprint is None:
            everything = self.net.state_dict()
            self._net_fingerprint = tensorfile.fingerprint(
                part for name, value in everything.items() if isinstance(value, Tensor) for part in (name, value)
            )
        options = {**dataclasses.asdict(self.options), "statistics": self.statistics}
        return {
            "kind": "state of an adapter",
            "method": self.name,
            "source": self._net_fingerprint,
            "buffer": self.buffer.fingerprint if self.buffer is not None and self.facts.source_data else None,
            "device": self.generator.device.type,
            "options": json.loads(json.dumps(options)),  # through JSON and back, as the saved ones went
        }

    @contextmanager
    def _alone(self) -> Iterator[None]:
        here = threading.get_ident()
        if self._user == here:
            raise BusyError(
                "this adapter is in the middle of a batch in this very thread, as when the network or a hook calls it. "
                "Nothing was changed; call it after the batch."
            )
        if not self._busy.acquire(blocking=self.options.busy == "wait"):
            raise BusyError(
                "this adapter is in the middle of a batch in another thread, and busy='raise'. Nothing was changed; "
                "use busy='wait', put a queue before it, or give each thread an adapter of its own."
            )
        self._user = here
        try:
            # Callers may be in inference mode; tensors made there could not learn.
            with torch.inference_mode(False):
                yield
        finally:
            self._user = None
            self._busy.release()

    def _usable(self, given: Tensor | Mapping[str, Any] | None, named: Mapping[str, Any]) -> Tensor:
        x = self._arguments.read(given, named)
        if x.dim() < 2:
            raise BatchError(f"a batch of shape {tuple(x.shape)} has no batch dimension; add it with x.unsqueeze(0).")
        if x.numel() == 0:
            raise BatchError(f"the batch is empty (shape {tuple(x.shape)}); pass at least one sample.")
        # Whether it is finite is asked together with what comes of it: an answer now would make a GPU wait.
        self._unchecked, self._unmeasured, self._passed_back, self._far = [], None, False, False
        x = x.clone() if x.is_inference() else x.detach()
        if x.dim() == 4 and self.options.channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        return x

    def _refuse(self, x: Tensor) -> None:
        """Raises if ``x`` is not finite."""
        bad = int((~torch.isfinite(x)).flatten(1).any(1).sum()) if x.is_floating_point() else 0
        if bad:
            raise BatchError(
                f"{bad} of {len(x)} samples hold NaN or infinite values; nothing was changed. Drop or repair them."
            )
