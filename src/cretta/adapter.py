"""The adapter: wraps a network, predicts, and learns from what it sees. Methods are its subclasses."""

from __future__ import annotations

import dataclasses
import inspect
import json
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Generic

import torch
from torch import Tensor, nn
from typing_extensions import TypeVar

from cretta import states
from cretta.buffer import SourceBuffer
from cretta.errors import BatchError, BusyError, ModelError, OptionError, StateError
from cretta.functional import energy
from cretta.guard import Watch
from cretta.learner import NOT_FINITE, Learner
from cretta.method import Facts, Objective, Options, Record
from cretta.network import Classifier, FlatParameters, compiled, share
from cretta.norm import NormStatistics, StreamAverage, norm_layers, norm_parameter_names, under
from cretta.options import unknown

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
                f"{type(self).__name__} is no method; use cretta.adapt(net, 'cretta', …), or a method's class."
            )
        if buffer is not None and not isinstance(buffer, SourceBuffer):
            raise OptionError(
                f"buffer is {type(buffer).__name__}; needed is a cretta.SourceBuffer, as "
                "SourceBuffer.sample(training_set) or SourceBuffer(images) make it, or None."
            )
        self.options: OptionsT = self.option_type.make(self.name, self.preset_options(preset), options)  # type: ignore[assignment]  # option_type is the subclass's
        self.buffer = buffer
        self.net: nn.Module = getattr(net, "_orig_mod", net)  # under torch.compile lies the module itself
        if "skip" in options:
            self._check_skip()
        self.statistics = self.options.statistics or self.facts.statistics
        self.logits_from = self.options.predict or self.facts.logits
        self.last = Record(size=0, adapted=False, skipped=False, reason="no batch yet")
        self._busy = threading.Lock()
        self._frozen: dict[str, Classifier] = {}
        self._net_fingerprint: str | None = None
        with torch.inference_mode(False):
            self._build()
            self.begin()
            self.initial = self.state()
            """The state before the first batch."""
        self._watch = Watch(self.options.guard) if self.options.guard else None

    @classmethod
    def preset_options(cls, preset: str | None) -> dict[str, Any]:
        """The options of a preset, or of several: "imagenet+fast", of which the later win."""
        found: dict[str, Any] = {}
        for name in [] if preset is None else str(preset).split("+"):
            if name not in cls.presets:
                raise unknown(f"preset of {cls.name}", name, cls.presets)
            found |= cls.presets[name]
        return found

    def _check_skip(self) -> None:
        """A preset's names may not be there; those a user gives should."""
        names = {name for name, _ in [*self.net.named_modules(), *self.net.named_parameters()] if name}
        for layer in self.options.skip:
            if layer not in names:
                raise unknown("layer in skip=", layer, names)

    def _build(self) -> None:
        learning = self._learning_names()
        if self.statistics != "running" and not any(norm_layers(self.net)) and compiled(self.net):
            raise ModelError(compiled(self.net))
        first = next(iter([*self.net.parameters(), *self.net.buffers()]), torch.empty(0))
        module, average = share(self.net, own=learning), StreamAverage()
        parameters = dict(module.named_parameters(remove_duplicate=False))
        flat = FlatParameters([(name, parameters[name]) for name in learning])
        Learner.__init__(self, self.options, flat, average, first.device)
        self.model = self._classifier(module, self.statistics, learns=bool(learning))
        self.model.statistics.follows_stream = True

    def _classifier(self, module: nn.Module, statistics: str, *, learns: bool) -> Classifier:
        o = self.options
        norms = NormStatistics(module, statistics, o.batch_weight, self.average)
        return Classifier(module, norms, learns=learns, fuse=o.fuse, compiles=o.compile, precision=o.precision)

    def _learning_names(self) -> list[str]:
        if self.facts.updates == "nothing":
            return []
        if self.facts.updates == "all":
            names = [name for name, _ in self.net.named_parameters() if not under(name, self.options.skip)]
        else:
            names = norm_parameter_names(self.net, self.options.skip)
        if not names:
            raise ModelError(
                compiled(self.net)
                or f"{type(self.net).__name__} has {'no parameter' if self.facts.updates == 'all' else NO_NORM}"
                f"{' outside ' + repr(self.options.skip) if self.options.skip else ''}, and {self.name} updates "
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

    def __call__(self, x: Tensor) -> Tensor:
        """Predicts ``x``, a batch of what ``net`` takes, and adapts to it; returns logits (B, C)."""
        with self._alone():
            x = self._usable(x)
            self._undo.clear()
            ways_back = [self.mark()] + ([self._watch.mark()] if self._watch is not None else [])
            try:
                start, counted = ways_back[0], self.memory.get("batches")
                if self.options.episodic:
                    self.load(self.initial)
                due = self._is_due(counted)
                if self.options.episodic or self.options.adapt_every > 1:
                    start = self.mark()
                logits, self.last = self._follow(x, start, due)
            except BaseException:
                for back in ways_back:
                    back()
                raise
            return logits

    def _follow(self, x: Tensor, back: Callable[[], None], due: bool) -> tuple[Tensor, Record]:
        watch = self._watch if self.optimizer is not None else None
        before = self.state() if watch is not None and watch.due else None
        objective, updates, reason = self._learn(x, back) if due else self._only_predict(x)
        if not self.finite():
            self._refuse(x)
        # An update left out makes "after" the same as "before".
        late = updates > 0 and not reason and self.logits_from == "after"
        logits = self.answer(x) if late else objective.logits.detach()
        reference = self.unadapted(x) if before is not None else None
        self.average.commit()
        noticed, undone = "", False
        if watch is not None:
            # Logits from before the update speak of the state before it.
            judged = self.state() if before is not None and late else before
            logits, noticed, undone = watch.over(self, x, logits, reference, judged)
        values = {"energy": energy(logits, self.options.temperature).mean(), **objective.notes}
        if objective.loss is not None:
            values["loss"] = objective.loss.detach()
        adapted = updates > 0 and not undone
        return logits, Record(len(x), adapted, bool(reason), reason or objective.reason, noticed, values)

    def _is_due(self, counted: Tensor | None) -> bool:
        """Counts this batch, after those ``counted``, and tells whether it is one to learn from."""
        if self.optimizer is None or self.options.adapt_every == 1:
            return True
        before = 0 if counted is None else int(counted)
        self.memory["batches"] = torch.tensor(before + 1)
        return before % self.options.adapt_every == 0

    def _only_predict(self, x: Tensor) -> tuple[Objective, int, str]:
        reason = f"learns from one batch in {self.options.adapt_every}"
        return Objective(None, self.answer(x), reason), 0, ""

    def _learn(self, x: Tensor, back: Callable[[], None]) -> tuple[Objective, int, str]:
        """The last step's objective, how many steps were taken, and why one was left out."""
        if self.optimizer is None:
            with torch.no_grad():
                return self.objective(x), 0, ""
        for step in range(self.options.steps):
            if step > 0:
                back = self.mark()
            with torch.enable_grad():
                objective = self.objective(x)
                reason = self.update(x, objective)
            if reason == NOT_FINITE:
                self._refuse(x)
            if reason:
                # The stream's statistics are no part of a step, but those of a batch that makes it fail are suspect.
                seen = self.average.seen if reason != NOT_FINITE else {}
                back()
                self.average.seen = seen
                return objective, step, reason
        return objective, self.options.steps, ""

    def answer(self, x: Tensor) -> Tensor:
        """Logits of the model as it is now."""
        with torch.no_grad():
            return self.model(x)

    def predict(self, x: Tensor) -> Tensor:
        """Predicts with the model as it is now and changes nothing; returns logits (B, C)."""
        with self._alone():
            try:
                x = self._usable(x)
                logits = self.answer(x)
                if not self.finite():
                    self._refuse(x)
                return logits
            finally:
                self.average.seen = {}

    def reset(self) -> None:
        """Back to the source model: parameters, optimiser, statistics, memory and generator."""
        with self._alone():
            self.load(self.initial)
            if self._watch is not None:
                self._watch = Watch(self._watch.guard)

    def save(self, path: str | Path) -> None:
        """Writes everything that evolves to a safetensors file; :meth:`restore` continues bit for bit."""
        with self._alone():
            state = self.state()
            if self._watch is not None:
                state |= {f"guard.{name}": value for name, value in self._watch.state().items()}
            states.write(path, state, self._description())

    def restore(self, path: str | Path) -> None:
        """Takes up a state that :meth:`save` wrote for the same method and source model."""
        with self._alone():
            state, saved = states.read(path, "state of an adapter")
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
            guard = {n[len("guard.") :]: t for n, t in state.items() if n.startswith("guard.")}
            state = {n: t for n, t in state.items() if not n.startswith("guard.")}
            try:
                self.check(state, self.initial, same_device=saved.get("device") == here["device"])
            except StateError as wrong:
                raise StateError(f"{path} is damaged: {wrong}. Save it anew.") from None
            if other:
                warnings.warn(f"{path} was saved with {other}; the options of this adapter stay.", stacklevel=2)
            self.load(state)
            if self._watch is not None:
                self._watch.load(guard, self.generator.device)

    def __repr__(self) -> str:
        defaults = {f.name: f.default for f in dataclasses.fields(self.options)}
        given = [f"{k}={v!r}" for k, v in vars(self.options).items() if v != defaults[k]]
        return f"{type(self).__name__}({', '.join([type(self.net).__name__, *given])})"

    # What methods and the guard use.

    @property
    def source_parameters(self) -> list[Tensor]:
        """The parameters that learn, as they were in the source model, laid out as ``parameters.flat``."""
        return [self.initial[f"parameters.{index}"] for index in range(len(self.parameters.flat))]

    def frozen(self, statistics: str) -> Classifier:
        """The source model φ with the given BatchNorm statistics."""
        if statistics not in self._frozen:
            self._frozen[statistics] = self._classifier(share(self.net), statistics, learns=False)
        return self._frozen[statistics]

    def unadapted(self, x: Tensor) -> Tensor:
        """Logits of the source model under the statistics in use, without gradients."""
        with torch.no_grad():
            return self.frozen(self.statistics)(x)

    def _description(self) -> dict[str, Any]:
        if self._net_fingerprint is None:
            everything = self.net.state_dict()
            self._net_fingerprint = states.fingerprint(
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
        if not self._busy.acquire(blocking=False):
            raise BusyError(
                "this adapter is in the middle of a batch in another thread. Nothing was changed; put a lock or a "
                "queue before it, or give each thread an adapter of its own."
            )
        try:
            # Callers may be in inference mode; tensors made there could not learn.
            with torch.inference_mode(False):
                yield
        finally:
            self._busy.release()

    def _usable(self, x: Tensor) -> Tensor:
        if not isinstance(x, Tensor):
            raise BatchError(
                f"a batch must be a torch.Tensor, not {type(x).__name__}; convert an array with "
                "torch.from_numpy(array), stack a list of tensors with torch.stack(images)."
            )
        if x.dim() < 2:
            raise BatchError(f"a batch of shape {tuple(x.shape)} has no batch dimension; add it with x.unsqueeze(0).")
        if x.numel() == 0:
            raise BatchError(f"the batch is empty (shape {tuple(x.shape)}); pass at least one sample.")
        # Whether it is finite is asked together with what comes of it: an answer now would make a GPU wait.
        self._unchecked = [x.detach()] if x.is_floating_point() else []
        self._passed_back = False
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
