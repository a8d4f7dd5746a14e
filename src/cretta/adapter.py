"""The adapter: a module that predicts, and learns from what it predicts. Methods are its subclasses."""

from __future__ import annotations

import dataclasses
import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Generic, get_args

import torch
from torch import Tensor, nn
from typing_extensions import TypeVar

from cretta.accelerate import Backend, forget_weights
from cretta.buffer import SourceBuffer
from cretta.checks import NO_LOGITS, NOT_FINITE, StepCheck, logits_error, raise_if_not_finite
from cretta.distributed import Shard
from cretta.errors import BatchError, BufferRequired, ModelError, NonFiniteStep, OptionError, SkipStep
from cretta.export import with_fixed_statistics
from cretta.functional import energy
from cretta.inputs import InputRange
from cretta.layers import learning_names, skipped_layers
from cretta.method import Objective, Options, Record
from cretta.module import StatefulModule
from cretta.monitor.calibration import fit_temperature, mixed_pairs
from cretta.monitor.guard import ENOUGH, CollapseWarning, GuardState
from cretta.network import Arguments, Network, compiled, copy_sharing_parameters
from cretta.normalization import (
    STATISTICS,
    NormStatistics,
    StreamAverage,
    has_batch_norm,
    has_running_statistics,
    norm_layers,
    prior_weight,
)
from cretta.options import unknown
from cretta.parameters import FlatParameters
from cretta.state import AdaptationState, Checkpoint, Snapshot
from cretta.watch import WeightWatch

OptionsT = TypeVar("OptionsT", bound=Options, default=Options)
TOO_FEW = "too few images or classes to learn from"
FAR_STATISTICS = "the batch's statistics are far from the stream's: the moving ones stay as they were"
OF_THE_BATCH = ("batch", "mixture", "auto")
"""Statistics that an export takes from a batch."""
COMPARED = 48
"""Images of a batch that are compared with the source model, unless the method needs its logits of all."""
CACHED = 64
"""Images per forward pass of the source model on the CPU."""
SAMPLES_AT_ONCE = 200
"""Labeled source images per forward pass: as many as a usual batch, whose statistics they then have."""


@dataclasses.dataclass
class Outcome:
    """What became of a batch."""

    logits: Tensor
    loss: Tensor | None = None
    updates: int = 0
    skipped: SkipStep | None = None
    """Why an update was skipped."""
    guard: str = ""
    """What the guard detected and did."""
    undone: bool = False
    """Whether the guard restored an earlier state."""


class Adapter(StatefulModule, Generic[OptionsT]):
    """Predicts with a copy of ``net`` that adapts to the batches it sees; ``net`` itself never changes.

    Call it with a batch to predict and adapt, :meth:`predict` to predict only. A subclass is a method: it states its
    :class:`Facts` and computes an :class:`Objective` from a batch; see ``CONTRIBUTING.md``.

    It is a ``torch.nn.Module``. ``parameters()`` are those of the copy; ``state_dict()`` is what evolves: learned
    parameters, optimizer, statistics, memory of the method, random numbers, guard. ``train()`` and ``eval()`` change
    nothing: adaptation does not depend on the mode, and dropout stays disabled. A deep copy or a pickle continues bit
    for bit.

    The frozen parameters share ``net``'s storage, except convolutions of the source model into which BatchNorm was
    folded: to continue training ``net``, make a deep copy of it first.
    """

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    option_type: ClassVar[type[Options]] = Options
    """The type in ``Adapter[…]``."""
    options: OptionsT

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if cls.name and not hasattr(cls, "facts"):
            raise OptionError(
                f"{cls.__name__} has no facts. In the class, set facts = Facts(updates=…, statistics=…, logits=…)."
            )
        for base in vars(cls).get("__orig_bases__", ()):
            for argument in get_args(base):
                if isinstance(argument, type) and issubclass(argument, Options):
                    argument.check_declaration()
                    cls.option_type = argument
        if cls.__doc__ and "facts" in vars(cls):
            presets = "".join(f"\n{name}: {dict(values)}" for name, values in cls.presets.items())
            options = f"Options:\n\n{cls.option_type.describe()}" + (f"\n\nPresets:\n{presets}" if presets else "")
            cls.__doc__ = f"{inspect.cleandoc(cls.__doc__)}\n\n{options}\n\n{cls.facts}"
        _, *positional, _ = inspect.signature(Adapter.__init__).parameters.values()  # without self and **options
        keywords = inspect.signature(cls.option_type).parameters.values()
        cls.__signature__ = inspect.Signature([*positional, *keywords])  # type: ignore[attr-defined]  # for help()

    def __init__(
        self, net: nn.Module, buffer: SourceBuffer | None = None, *, preset: str | None = None, **options: Any
    ) -> None:
        super().__init__()
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
                f"buffer is {type(buffer).__name__}; expected a cretta.SourceBuffer, from "
                "SourceBuffer.sample(training_set) or SourceBuffer(images), or None."
            )
        self.options = self.option_type.make(self.name, self.preset_options(preset), options)  # type: ignore[assignment]  # option_type is the subclass's
        self.buffer = buffer
        if self.options.guard is not None and self.facts.updates == "nothing":
            raise OptionError(
                f"guard={self.options.guard.action!r}: a guard monitors the effect of learning on the model, and "
                f"{self.name} learns nothing. Leave guard out, or use a method that learns, such as 'tent' or 'cretta'."
            )
        if buffer is None and self.reads_buffer:
            raise BufferRequired(
                f"{self.name} needs source samples, got buffer=None. Pass "
                f"buffer=cretta.SourceBuffer.sample(training_set) or cretta.SourceBuffer(images){self.without_buffer}."
            )
        if self.options.calibrate == "source" and (buffer is None or buffer.labels is None):
            raise BufferRequired(
                "calibrate='source' needs labeled source samples; pass buffer=cretta.SourceBuffer(images, labels), or "
                "use calibrate='pseudocal', which needs none."
            )
        net = getattr(net, "_orig_mod", net)  # the module itself, of one that is wrapped by torch.compile
        self.skip = skipped_layers(net, self.options.skip, by_user="skip" in options, preset=preset)
        self.statistics = self.options.statistics or self.facts.statistics
        self.logits_from = self.options.predict or self.facts.logits
        self.last = Record(size=0, moved=None, skipped=False, note="no batch yet")
        self._arguments = Arguments()
        self._callbacks: list[Callable[[Record], object]] = []
        self._early: list[Callable[[Tensor], object]] = []
        self._announced = False
        self._warned = False
        with torch.inference_mode(False):
            self._build(net)

    @classmethod
    def preset_options(cls, preset: str | None) -> dict[str, Any]:
        """Return the options of a preset, or of several, such as "imagenet+fast"; later ones win."""
        options: dict[str, Any] = {}
        for name in [] if preset is None else str(preset).split("+"):
            if name not in cls.presets:
                raise unknown(f"preset of {cls.name}", name, cls.presets)
            options |= cls.presets[name]
        return options

    def _build(self, net: nn.Module) -> None:
        self.net = net
        self._frozen = {}
        learning = learning_names(net, self.facts, self.skip, method=self.name, lr=self.options.lr)
        if self.statistics != "running" and not any(norm_layers(net)) and compiled(net):
            raise ModelError(compiled(net))
        first = next(iter([*net.parameters(), *net.buffers()]), torch.empty(0))
        module, average = copy_sharing_parameters(net, own=learning), StreamAverage(self.options.batch_weight)
        parameters = dict(module.named_parameters(remove_duplicate=False))
        flat = FlatParameters([(name, parameters[name]) for name in learning])
        self.state = AdaptationState(self.options, flat, average, first.device)
        self.model = self._network(module, self.statistics, learns=bool(learning))
        self.model.statistics.follows_stream = True
        self._reference = "running" if has_running_statistics(net) else self.statistics
        self._has_batch_norm = has_batch_norm(net)
        self._step = StepCheck(flat)
        self._last_batch: Tensor | None = None
        self._compared: tuple[Tensor, Tensor | None, Tensor] | None = None
        if self.options.calibrate is not None:
            self.memory["calibration.temperature"] = torch.tensor(1.0, dtype=torch.float64)
            self.memory["calibration.age"] = torch.tensor(0)
        self.begin()
        self.initial = self.state.snapshot()
        self._guard = GuardState(self.options.guard) if self.options.guard else None
        self._inputs = InputRange(self.buffer if self.facts.source_data == "required" else None)
        self._weights = WeightWatch(net)

    def _rebuild(self, names: list[str]) -> None:
        """Build everything again from the weights of ``net``, which changed, and continue with what was learned."""
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        warnings.warn(
            f"weights of net were written to after the adapter was built ({', '.join(names[:3])}{more}); the source "
            "model is now net as it is, and what was learned stays. Call reset() to start from it; of a network that "
            "you train, adapt a deep copy.",
            stacklevel=5,
        )
        snapshot = self._snapshot()
        forget_weights(weight for network in (self.net, *self.networks()) for weight in network.parameters())
        self._net_fingerprint = None
        self._build(self.net)
        self._restore(snapshot)

    def _check_weights(self) -> None:
        if changed := self._weights.changed():
            self._rebuild(changed)

    def _network(self, module: nn.Module, statistics: str, *, learns: bool) -> Network:
        o = self.options
        norms = NormStatistics(module, statistics, self.state.average, self.group)
        return Network(
            module,
            norms,
            self._arguments,
            learns=learns,
            fuse=o.fuse,
            compiles=o.compile,
            precision=o.precision,
            group=self.group,
        )

    # What a method may define. Only `objective` is required.

    def begin(self) -> None:
        """Set up what the method needs, and the first entries of ``memory``; called before the first batch."""

    def objective(self, x: Tensor) -> Objective:
        """Compute the loss and the logits of a batch; called once per update, with gradients enabled."""
        return Objective(loss=None, logits=self.model(x))

    def update(self, x: Tensor, objective: Objective) -> None:
        """Take one optimizer step on the objective, or raise :class:`SkipStep`."""
        self.backward(*objective.terms)
        self.step()

    @property
    def reads_buffer(self) -> bool:
        """Whether the method, with these options, reads source samples from the buffer."""
        return self.facts.source_data == "required"

    without_buffer: ClassVar[str] = ""
    """What else can be done if there is no buffer, for the message of :class:`BufferRequired`."""

    # What a method may use.

    @property
    def learnable(self) -> FlatParameters:
        """The parameters that learn, in one tensor per device and dtype."""
        return self.state.learnable

    @property
    def memory(self) -> Snapshot:
        """The method's entries of the state. Replace them; see :meth:`on_rollback` for those too large."""
        return self.state.memory

    @property
    def generator(self) -> torch.Generator:
        """The source of random numbers."""
        return self.state.generator

    @property
    def source_parameters(self) -> list[Tensor]:
        """The parameters that learn, as they are in the source model, in the layout of ``learnable.flat``."""
        return [self.initial[f"parameters.{index}"] for index in range(len(self.learnable.flat))]

    def backward(self, *terms: Tensor | Callable[[], Tensor]) -> None:
        """Set the gradients of the parameters to that of the sum of ``terms``, computed one after the other."""
        self.learnable.zero_grad()
        self._step.loss = None
        for term in terms:
            loss = term if isinstance(term, Tensor) else term()
            if not loss.requires_grad:
                raise ModelError(
                    "the logits carry no gradient, so nothing can learn: the network's forward detaches them or runs "
                    "under torch.no_grad(). Remove that, or use 'source' or 'bn_adapt'. In a method of your own, every "
                    "term of the loss has to depend on logits of self.model."
                )
            if loss.numel() != 1:
                raise ModelError(
                    f"expected every term of the loss of {self.name} to be a scalar, got shape {tuple(loss.shape)}; "
                    "take its mean."
                )
            self._step.add_backward(loss)
            self._step.loss = loss.detach() if self._step.loss is None else self._step.loss + loss.detach()
            with torch.autocast(loss.device.type, enabled=False):
                loss.backward()
        if self.group is not None:
            self.group.average_gradients(self.learnable.gradients())

    def step(self) -> None:
        """Let the optimizer move the parameters; raise :class:`NonFiniteStep` if loss or gradients are not finite."""
        if not self._step.postponed and not self._step.passed():
            raise NonFiniteStep(NOT_FINITE)
        assert self.state.optimizer is not None
        self.state.optimizer.step()
        torch.clear_autocast_cache()  # it may hold copies of the old parameters

    def note(self, reason: str = "", **values: Tensor) -> None:
        """Record in ``model.last`` what happened to the batch, and numbers, still on the device."""
        self._step.reason = reason or self._step.reason
        self._step.notes |= {name: value.detach() for name, value in values.items()}

    def restart(self, reason: str) -> None:
        """Restore the source model within a batch, and record why."""
        self.state.restore(self.initial)
        self.note(reason)

    def on_rollback(self, undo: Callable[[], object]) -> None:
        """Register how to undo an in-place change of a ``memory`` entry if the step is skipped."""
        self.state.on_rollback(undo)

    def frozen(self, statistics: str) -> Network:
        """Return the source model φ with BatchNorm statistics of this kind; ``"running"`` are those of training."""
        if statistics not in self._frozen:
            if statistics not in STATISTICS:
                raise unknown("kind of statistics", statistics, STATISTICS)
            module = copy_sharing_parameters(self.net)
            self._frozen[statistics] = self._network(module, statistics, learns=False)
        return self._frozen[statistics]

    @property
    def compares_all(self) -> bool:
        """Whether the method itself reads φ's logits, with running statistics, of every image of a batch."""
        return False

    def source_logits(self, x: Tensor) -> tuple[Tensor | None, Tensor]:
        """Return which images of a batch are compared with the source model φ (None: all), and φ's logits of them.

        φ has the statistics of training, if it has any. The logits are computed once per batch: method, statistics,
        guard and monitor share them.
        """
        if self._compared is None or self._compared[0] is not x:
            index = None if self.compares_all else spread_indices(len(x), COMPARED, x.device)
            chosen = x if index is None else x[index]
            network = self.frozen(self._reference)
            # On the CPU in parts that fit its cache, where samples are independent. Without a buffer in one piece: the
            # network may take batches of one size only.
            independent = self.reads_buffer and self._reference == "running" and x.device.type == "cpu"
            parts = chosen.chunk(-(-len(chosen) // CACHED)) if independent else (chosen,)
            with torch.no_grad():
                logits = torch.cat([network.probe(part) for part in parts])
            self._compared = (x, index, logits)
        return self._compared[1:]

    def source_samples(self, count: int = 500, *, adapted: bool = True) -> tuple[Tensor, Tensor] | None:
        """Return logits of up to ``count`` images of the buffer, without augmentation, and their labels.

        None if there are no labels. The logits are the adapted model's or the source model's.
        """
        if self.buffer is None or self.buffer.labels is None:
            return None
        with self.exclusive():
            return self._source_samples(self.buffer, count, self.model if adapted else self.frozen(self._reference))

    def _source_samples(self, buffer: SourceBuffer, count: int, network: Network) -> tuple[Tensor, Tensor]:
        assert buffer.labels is not None
        plain, count = buffer.with_augment("none"), min(count, len(buffer))
        like = next((p for p in self.net.parameters() if p.is_floating_point()), torch.empty(0))
        images = plain.batch(0, count).to(like.device, like.dtype)
        if images.dim() == 4 and self.options.channels_last:
            images = images.contiguous(memory_format=torch.channels_last)
        with torch.no_grad():
            logits = torch.cat([network.source(part) for part in images.chunk(-(-count // SAMPLES_AT_ONCE))])
        return logits, buffer.labels[:count].to(logits.device)

    def on_step(self, callback: Callable[[Record], object]) -> Callable[[], None]:
        """Call ``callback`` with the record of each batch, after it; return a function that ends this.

        Callbacks run in the caller's thread and may use the adapter. Copies of the adapter do not have them.
        """
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    def on_logits(self, callback: Callable[[Tensor], object]) -> Callable[[], None]:
        """Call ``callback`` with the logits of each batch as soon as they are known; return a function that ends this.

        With ``predict="before"`` that is ahead of the update, so that an answer does not wait for it: what the guard
        does about the batch comes later, and begins to count with the next one. Otherwise it is after the batch.
        """
        self._early.append(callback)
        return lambda: self._early.remove(callback)

    def _announce(self, x: Tensor, logits: Tensor) -> None:
        if self._early and not self._announced and bool(torch.isfinite(logits).all()):
            self._announced = True
            for callback in tuple(self._early):
                callback(x.own(logits) if isinstance(x, Shard) else logits)

    def unadapted(self, x: Tensor) -> Tensor:
        """Return the logits of the source model under the statistics in use, without gradients."""
        with torch.no_grad():
            return self.frozen(self.statistics)(x)

    # Predicting and adapting.

    if TYPE_CHECKING:

        def __call__(self, x: Tensor | Mapping[str, Any] | None = None, /, **named: Any) -> Tensor:
            """Run :meth:`forward`."""

    def forward(self, x: Tensor | Mapping[str, Any] | None = None, /, **named: Any) -> Tensor:
        """Predict a batch of what ``net`` takes, and adapt to it; return logits (B, C), all of them finite.

        The batch is one tensor, passed as ``net`` takes it: ``model(x)``, ``model(pixel_values=x)``, or
        ``model({"pixel_values": x})``, which is the same as the second. Keywords that are not tensors are passed on to
        ``net``, with source samples too. The output of ``net`` may be the logits, an object with ``.logits``, a mapping
        with ``["logits"]``, or a tuple that begins with them.
        """
        with self.exclusive():
            self._last_batch = self._compared = None  # frees its memory before this batch takes some
            x = self._validate(x, named)
            self._announced = False
            begun = self.state.checkpoint()
            roll_guard_back = self._guard.checkpoint() if self._guard is not None else None
            try:
                self._choose_batch_weight(x)
                start = self._start(begun)
                outcome = self._process(x, start, due=begun.cycle % self.options.adapt_every == 0)
                if not self._step.out_of_range:
                    self._update_temperature(x, outcome.logits)
                record = self._record(x, outcome, start)
                outcome.logits = self._calibrated(outcome.logits)
                if self._step.out_of_range:
                    self.state.rollback(begun)
                    self._inputs.warn_far(x)
                else:
                    self._inputs.follow(x)
            except BaseException:
                self.state.rollback(begun)
                if roll_guard_back is not None:
                    roll_guard_back()
                raise
            self.state.commit()
            self.last = record
            if self.statistics in OF_THE_BATCH:
                self._last_batch = x  # for export()
            if isinstance(x, Shard):
                x.group.count_step(self.learnable.flat)
        self._announce(x, outcome.logits)
        if not self._warned and self.statistics == "batch" and self._guard is None and self._has_batch_norm:
            self._warn_of_harm(record)
        for callback in tuple(self._callbacks):
            callback(record)
        return x.own(outcome.logits) if isinstance(x, Shard) else outcome.logits

    def _warn_of_harm(self, record: Record) -> None:
        """Warn, once per adapter, of a batch whose statistics remove what distinguishes classes."""
        what = "one image" if record.size == 1 else ""
        if not what and record.source_logits is not None and record.size >= ENOUGH:
            predicted = record.source_logits.argmax(-1)
            what = "one class" if bool((predicted == predicted[0]).all()) else ""
        if what:
            self._warned = True
            warnings.warn(
                f"a batch of {what} is normalized with its own statistics, which often does harm. Use "
                "statistics='auto', or notice it by guard='rollback'.",
                stacklevel=4,
            )

    def _start(self, begun: Checkpoint) -> Checkpoint:
        """Begin an episode, count the batch, and return the moment to which a skipped step rolls back."""
        o = self.options
        if o.episodic or (o.reset_every and begun.batches == o.reset_every):
            self.state.restore(self.initial)
        elif o.adapt_every == 1 and not o.reset_every:
            return begun
        # Before the batch is processed: a reset within it begins a new cycle.
        self.state.cycle = (begun.cycle + 1) % o.adapt_every if self.state.optimizer is not None else 0
        self.state.batches += bool(o.reset_every)
        return self.state.checkpoint()

    def _choose_batch_weight(self, x: Tensor) -> None:
        """Let the batch decide what share it has in its statistics."""
        if self.statistics == "auto" and self._has_batch_norm:
            self.state.average.batch_weight = prior_weight(len(x), self.source_logits(x)[1])

    @property
    def _too_few(self) -> bool:
        """Whether "auto" uses the statistics of training alone: such a batch says too little to learn from it."""
        return self.statistics == "auto" and self._has_batch_norm and self.state.average.batch_weight == 0

    def _process(self, x: Tensor, start: Checkpoint, *, due: bool) -> Outcome:
        guard = self._guard
        if guard is not None and guard.paused > 0:
            return self._pause(x, guard)
        before = self.state.snapshot() if guard is not None and guard.due else None
        if self.state.optimizer is None:
            with torch.no_grad():
                outcome = self._only_predict(x, lambda: self.objective(x).logits)
        elif due and not self._too_few:
            outcome = self._adapt(x, start)
        else:
            outcome = self._only_predict(x, lambda: self._forward(x))
            self._step.reason = TOO_FEW if self._too_few else f"learns from one batch in {self.options.adapt_every}"
        if self._step.out_of_range:
            self.state.average.seen = {}
        elif guard is not None:
            self._check_batch(guard, x, outcome, before)
        else:
            self.state.average.commit()
        if self.state.average.rejected:
            self.note(FAR_STATISTICS)
        failed = (
            not bool(torch.isfinite(outcome.logits).all())
            if outcome.undone
            else outcome.skipped is not None and outcome.skipped.reason == NO_LOGITS
        )
        if failed:
            raise logits_error(x)
        return outcome

    def _pause(self, x: Tensor, guard: GuardState) -> Outcome:
        """Answer by the source model with running statistics, and learn nothing."""
        outcome = self._only_predict(x, lambda: self._answer_by_source(x))
        if outcome.skipped is not None and outcome.skipped.reason == NO_LOGITS:
            raise logits_error(x)
        guard.paused -= len(x)
        guard.batches += 1
        self._step.reason = "answered by the source model after an alarm"
        return outcome

    def _answer_by_source(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return self.frozen(self._reference).probe(x)

    def _only_predict(self, x: Tensor, predict: Callable[[], Tensor]) -> Outcome:
        self._step = self._new_step(x)
        logits = predict()
        self._step.add(logits)
        return Outcome(logits, skipped=self._failure(x, logits))

    def _adapt(self, x: Tensor, start: Checkpoint) -> Outcome:
        """Take the steps that a batch is due; stop at the first one that is skipped."""
        steps = self.options.steps
        for step in range(steps):
            if step > 0:
                start = self.state.checkpoint()
            outcome = self._take_step(x, start, first=step == 0, final=step == steps - 1)
            if outcome.skipped is not None:
                outcome.updates = step
                return outcome
        outcome.updates = steps
        return outcome

    def _take_step(self, x: Tensor, start: Checkpoint, *, first: bool, final: bool) -> Outcome:
        predicts_after = final and self.logits_from == "after"
        self._step = check = self._new_step(x if first else None, postponed=predicts_after)
        loss = logits = after = skipped = None
        try:
            with torch.enable_grad():
                objective = self.objective(x)
                if not isinstance(objective, Objective):
                    raise TypeError(
                        f"expected {type(self).__name__}.objective to return Objective(loss, logits), got "
                        f"{type(objective).__name__}."
                    )
                loss, logits = objective.loss, objective.logits.detach()
                check.add(logits)
                if final and not predicts_after:
                    self._announce(x, self._calibrated(logits))
                if loss is None:
                    raise SkipStep("the batch gave nothing to learn from")
                self.update(x, objective)
            if predicts_after:
                after = self._forward(x)
                check.add(after)
        except SkipStep as error:
            skipped = error
            if logits is None:
                logits = error.logits.detach() if error.logits is not None else self._forward(x)
                check.add(logits)
        failure = self._failure(x, logits, skipped)
        if failure is not None:
            # Keep the moving statistics of a skipped step, unless it failed with values that are not finite.
            seen = {} if isinstance(failure, NonFiniteStep) else self.state.average.seen
            self.state.rollback(start)
            self.state.average.seen = seen
        # A method that skips the batch may have computed other gradients first; their loss is not the objective's.
        value = loss.detach() if isinstance(loss, Tensor) else check.loss if loss is not None else None
        return Outcome(logits if failure is not None or after is None else after, value, skipped=failure)

    def _new_step(self, x: Tensor | None, *, postponed: bool = False) -> StepCheck:
        batch = x if x is not None and x.is_floating_point() else None
        return StepCheck(self.learnable, batch, self._inputs.limit, postponed=postponed)

    def _failure(self, x: Tensor, logits: Tensor, skipped: SkipStep | None = None) -> SkipStep | None:
        """Return why not to learn from the batch: its numbers fail the check, or the method skipped it."""
        if self._step.passed() and not isinstance(skipped, NonFiniteStep):
            return skipped
        raise_if_not_finite(x)
        if not bool(torch.isfinite(logits).all()):
            return NonFiniteStep(NO_LOGITS)
        return SkipStep(self._inputs.reason) if self._step.out_of_range else NonFiniteStep(NOT_FINITE)

    def _check_batch(self, guard: GuardState, x: Tensor, outcome: Outcome, before: Snapshot | None) -> None:
        """Let the guard check the batch, and do what it decides."""
        references = self._references(x) if before is not None else None
        self.state.average.commit()
        guard.batches += 1
        if before is None or references is None:
            return
        index, same, running = references
        # Logits from before the update belong to the state before it.
        is_after = outcome.updates > 0 and outcome.skipped is None and self.logits_from == "after"
        evaluated = self.state.snapshot() if is_after else before
        trouble = guard.check(outcome.logits[index], same, running, evaluated)
        if not trouble:
            return
        done = "nothing done"
        for remedy in guard.remedies(before, self.initial):
            outcome.undone, done = True, remedy.message
            self.state.restore(remedy.restore)
            outcome.logits = self._answer_by_source(x) if remedy.paused else self._forward(x)
            self.state.average.seen = {}
            if remedy.paused or guard.passes(outcome.logits[index], same, running):
                break
        outcome.guard = f"{trouble}; {done}"
        warnings.warn(f"batch {guard.batches}: {outcome.guard}", CollapseWarning, stacklevel=6)

    def _references(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return what images the guard takes, and φ's logits of them: with the statistics in use, with training's."""
        known, running = self.source_logits(x)
        index = spread_indices(len(x), COMPARED, x.device)
        if index is None:
            index = torch.arange(len(x), device=x.device)
        elif known is None:
            running = running[index]
        if self.statistics == self._reference:
            return index, running, running
        with torch.no_grad():
            return index, self.frozen(self.statistics).probe(x if len(index) == len(x) else x[index]), running

    def _record(self, x: Tensor, outcome: Outcome, start: Checkpoint) -> Record:
        values = {"energy": energy(outcome.logits, self.options.temperature).mean(), **self._step.notes}
        if self.options.calibrate is not None:
            values["temperature"] = self.memory["calibration.temperature"]
        if outcome.loss is not None:
            values["loss"] = outcome.loss
        moved = self.state.moved(start) if outcome.updates > 0 and not outcome.undone else None
        note = outcome.skipped.reason if outcome.skipped is not None else self._step.reason
        compared, source_logits = self._compared[1:] if self._compared is not None else (None, None)
        self._compared = None
        return Record(
            len(x),
            moved,
            outcome.skipped is not None,
            note,
            outcome.guard,
            values,
            outcome.logits,
            source_logits,
            compared,
        )

    def _calibrated(self, logits: Tensor) -> Tensor:
        """Return the logits divided by the temperature."""
        return logits if self.options.calibrate is None else logits / float(self.memory["calibration.temperature"])

    def _update_temperature(self, x: Tensor, logits: Tensor) -> None:
        if self.options.calibrate is None:
            return
        age = int(self.memory["calibration.age"])
        if age == 0:
            self.memory["calibration.temperature"] = torch.tensor(self._temperature(x, logits), dtype=torch.float64)
        self.memory["calibration.age"] = torch.tensor((age + 1) % self.options.calibrate_every)

    def _temperature(self, x: Tensor, logits: Tensor) -> float:
        current = float(self.memory["calibration.temperature"])
        if self.options.calibrate == "pseudocal":
            mixed, labels = mixed_pairs(x, logits.argmax(-1))
            with torch.no_grad():
                return fit_temperature(self.model.probe(mixed), labels) if len(labels) > 1 else current
        if self.buffer is None or self.buffer.labels is None:
            return current
        temperature = fit_temperature(*self._source_samples(self.buffer, SAMPLES_AT_ONCE, self.model))
        return min(1.0, temperature) if self.options.calibrate == "auto" else temperature

    def _forward(self, x: Tensor) -> Tensor:
        """Return the logits of the model in its current state, without gradients."""
        with torch.no_grad():
            return self.model(x)

    def predict(self, x: Tensor | Mapping[str, Any] | None = None, /, **named: Any) -> Tensor:
        """Predict with the model in its current state and change nothing; takes and returns the same as a call."""
        with self.exclusive():
            try:
                x = self._validate(x, named)
                self._choose_batch_weight(x)
                logits = self._forward(x)
                # Without its limit: a batch far outside the range is predicted as any other.
                self._step = StepCheck(self.learnable, x if x.is_floating_point() else None)
                self._step.add(logits)
                failure = self._failure(x, logits)
                if failure is not None and failure.reason == NO_LOGITS:
                    raise logits_error(x)
                return self._calibrated(x.own(logits) if isinstance(x, Shard) else logits)
            finally:
                self.state.average.seen, self._compared = {}, None

    def reset(self) -> None:
        """Return to the source model: parameters, optimizer, statistics, memory and random numbers."""
        with self.exclusive():
            self._check_weights()
            self.state.restore(self.initial)
            self._inputs = InputRange(self._inputs.buffer)
            if self._guard is not None:
                self._guard = GuardState(self._guard.guard)

    def export(self, x: Tensor | None = None) -> nn.Module:
        """Return a plain module of ``net``'s class with the adapted weights and fixed BatchNorm statistics.

        It shares no memory with the adapter or ``net``, is in eval mode and does not adapt. Its statistics are those
        that :meth:`predict` uses for the batch ``x``. Without ``x``: training's for ``statistics="running"``, the
        stream's for ``"moving"``, and those of the last batch for ``"batch"``, ``"mixture"`` and ``"auto"``.
        """
        with self.exclusive():
            if x is not None:
                x = self._validate(x, {})
            elif self.statistics in OF_THE_BATCH:
                x = self._last_batch
            if x is None and self.statistics in OF_THE_BATCH and any(norm_layers(self.net)):
                raise ModelError(
                    f"expected a batch to take the statistics from, since statistics={self.statistics!r} and no batch "
                    "was processed yet; call export(x) with images of the target domain."
                )
            if x is not None:
                self._choose_batch_weight(x)
                self._compared = None
            return with_fixed_statistics(self.net, self.model, self.state.average, x)

    @property
    def backend(self) -> Backend:
        """What runs the network (plain, rewritten, kernels or compiled), and why; the first batch decides."""
        return self.model.backend

    def __repr__(self) -> str:
        options = [f"{name}={value!r}" for name, value in self.changed_options().items()]
        return f"{type(self).__name__}({', '.join([type(self.net).__name__, *options])})"

    def _validate(self, batch: Tensor | Mapping[str, Any] | None, named: Mapping[str, Any]) -> Tensor:
        """Return the batch as the networks take it; whether it is finite is checked together with the logits.

        With a group, it is the batch of all ranks: if it cannot be used on one, all raise.
        """
        if self.group is None:
            return self._own_rows(batch, named)
        try:
            x, problem = self._own_rows(batch, named), ""
        except BatchError as error:
            x, problem = torch.empty(0, device=self.device), str(error)
        return self.group.shard(x, problem)

    def _own_rows(self, batch: Tensor | Mapping[str, Any] | None, named: Mapping[str, Any]) -> Tensor:
        x = self._arguments.read(batch, named)
        if written := self._weights.written():
            self._rebuild(written)
        if x.dim() < 2:
            raise BatchError(f"a batch of shape {tuple(x.shape)} has no batch dimension; add it with x.unsqueeze(0).")
        if x.numel() == 0 and (self.group is None or len(x)):
            raise BatchError(f"the batch is empty (shape {tuple(x.shape)}); pass at least one sample.")
        x = x.clone() if x.is_inference() else x.detach()
        if x.dim() == 4 and self.options.channels_last:
            x = x.contiguous(memory_format=torch.channels_last)
        return x


def spread_indices(count: int, most: int, device: torch.device) -> Tensor | None:
    """Return ``most`` indices spread evenly over ``count``; None if that is all of them."""
    return None if count <= most else torch.arange(most, device=device) * count // most
