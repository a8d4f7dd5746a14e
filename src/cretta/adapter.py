"""The adapter: a module that predicts, and learns from what it predicts. Methods are its subclasses."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Generic, get_args

import torch
from torch import Tensor, nn
from typing_extensions import TypeVar

from cretta.accelerate import Backend, forget_weights
from cretta.buffer import SourceBuffer
from cretta.checks import NO_LOGITS, StepCheck, logits_error, usable
from cretta.components import TOO_FEW, AdapterGuard, Outcome, SourceComparison, Temperature
from cretta.distributed import Shard
from cretta.errors import BatchError, BufferRequired, ModelError, OptionError
from cretta.export import with_fixed_statistics
from cretta.functional import energy
from cretta.inputs import InputRange
from cretta.layers import learning_names, skipped_layers
from cretta.learner import Learner
from cretta.method import Options, Record
from cretta.network import Arguments, Network, compiled, copy_sharing_parameters
from cretta.normalization import STATISTICS, NormStatistics, StreamAverage, norm_layers
from cretta.options import known
from cretta.parameters import FlatParameters
from cretta.state import AdaptationState, Checkpoint
from cretta.watch import WeightWatch, warn_of_writes

OptionsT = TypeVar("OptionsT", bound=Options, default=Options)
FAR_STATISTICS = "the batch's statistics are far from the stream's: the moving ones stay as they were"
OF_THE_BATCH = ("batch", "mixture", "auto")
"""Statistics that an export takes from a batch."""


class Adapter(Learner, Generic[OptionsT]):
    """Predicts with a copy of ``net`` that adapts to the batches it sees; ``net`` itself never changes.

    Call it with a batch to predict and adapt, :meth:`predict` to predict only. A subclass is a method: it states its
    :class:`Facts` and computes an :class:`Objective` from a batch; see ``docs/writing-a-method.md``.

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
                argument = getattr(argument, "__default__", argument)  # of a type variable
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
        if isinstance(net, Adapter):
            raise ModelError(
                f"net is an adapter ({net.name}); expected the network that it adapts, or its export(), which has the "
                "adapted weights."
            )
        if isinstance(net, type) and issubclass(net, nn.Module):
            raise ModelError(f"net is the class {net.__name__}; expected an instance of it, {net.__name__}(…).")
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
                f"{self.name} learns nothing. Use guard=None, or a method that learns, such as 'tent' or 'cretta'."
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
        self._warned = False
        with torch.inference_mode(False):
            self._build(net)

    @classmethod
    def preset_options(cls, preset: str | None) -> dict[str, Any]:
        """Return the options of a preset, or of several, such as "imagenet+fast"; later ones win."""
        options: dict[str, Any] = {}
        for name in [] if preset is None else str(preset).split("+"):
            options |= cls.presets[known(f"preset of {cls.name}", name, cls.presets)]
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
        self._step = StepCheck(flat)
        self._last_batch: Tensor | None = None
        self._temperature = Temperature(self)
        self.comparison = SourceComparison(self)
        self._guard = AdapterGuard(self, self.options.guard) if self.options.guard else None
        self._components = [part for part in (self.comparison, self._guard, self._temperature) if part is not None]
        self.begin()
        self.initial = self.state.snapshot()
        self._inputs = InputRange(self.buffer if self.facts.source_data == "required" else None)
        self._weights = WeightWatch(net)

    def _rebuild(self, names: list[str]) -> None:
        """Build everything again from the weights of ``net``, which changed, and continue with what was learned."""
        warn_of_writes(names)
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

    def frozen(self, statistics: str) -> Network:
        """Return the source model φ with BatchNorm statistics of this kind; ``"running"`` are those of training."""
        if statistics not in self._frozen:
            known("kind of statistics", statistics, STATISTICS)
            self._frozen[statistics] = self._network(copy_sharing_parameters(self.net), statistics, learns=False)
        return self._frozen[statistics]

    def source_samples(self, count: int = 500, *, adapted: bool = True) -> tuple[Tensor, Tensor] | None:
        """Return logits of up to ``count`` images of the buffer, without augmentation, and their labels.

        None if there are no labels. The logits are the adapted model's or the source model's.
        """
        with self.exclusive():
            return self.comparison.samples(count, self.model if adapted else self.frozen(self.comparison.reference))

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
            self._last_batch = None  # frees its memory before this batch takes some
            self.comparison.take()
            x = self._validate(x, named)
            self._announced = False
            begun = self.state.checkpoint()
            roll_guard_back = self._guard.checkpoint() if self._guard is not None else None
            try:
                start = self._start(begun)
                outcome = self._process(x, start, due=begun.cycle % self.options.adapt_every == 0)
                record = self._record(x, outcome, start)
                logits = self._temperature.divide(outcome.logits)
                if outcome.far:
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
        self._announce(x, logits)
        if not self._warned and self._guard is None:
            self._warned = self.comparison.warn_of_harm(record)
        for callback in tuple(self._callbacks):
            callback(record)
        return x.own(logits) if isinstance(x, Shard) else logits

    @property
    def _paused(self) -> bool:
        """Whether the source model answers, after an alarm."""
        return any(component.paused > 0 for component in self._components)

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

    def _process(self, x: Tensor, start: Checkpoint, *, due: bool) -> Outcome:
        """Predict a batch, and learn from it if that is due; the components may change both."""
        average = self.state.average
        average.rejected = False
        for component in self._components:
            component.begin(x)
        if self._paused:
            outcome = self._only_predict(x, lambda: self.comparison.answer(x))
        elif self.state.optimizer is None:
            with torch.no_grad():
                outcome = self._only_predict(x, lambda: self.objective(x).logits)
        elif due and not self.comparison.too_few:
            outcome = self._learn(x, start)
        else:
            outcome = self._only_predict(x, lambda: self.infer(x))
            self.note(TOO_FEW if self.comparison.too_few else f"learns from one batch in {self.options.adapt_every}")
        if outcome.far:
            average.seen = {}
        for component in self._components:
            component.end(x, outcome)
        average.commit()
        if average.rejected:
            self.note(FAR_STATISTICS)
        if outcome.undone:
            failed = not bool(torch.isfinite(outcome.logits).all())
        else:
            failed = outcome.skipped is not None and outcome.skipped.reason == NO_LOGITS
        if failed:
            raise logits_error(x, self.net)
        return outcome

    def _record(self, x: Tensor, outcome: Outcome, start: Checkpoint) -> Record:
        values = {"energy": energy(outcome.logits, self.options.temperature).mean(), **self._step.notes}
        if outcome.loss is not None:
            values["loss"] = outcome.loss
        moved = self.state.moved(start) if outcome.updates > 0 and not outcome.undone else None
        skipped = outcome.skipped is not None
        note = outcome.skipped.reason if outcome.skipped is not None else self._step.reason
        compared, source_logits = self.comparison.take()
        return Record(len(x), moved, skipped, note, outcome.guard, values, outcome.logits, source_logits, compared)

    def predict(self, x: Tensor | Mapping[str, Any] | None = None, /, **named: Any) -> Tensor:
        """Predict with the model in its current state and change nothing; takes and returns the same as a call."""
        with self.exclusive():
            try:
                x = self._validate(x, named)
                self.comparison.begin(x)
                logits = self.comparison.answer(x) if self._paused else self.infer(x)
                # Without its limit: a batch far outside the range is predicted as any other.
                self._step = StepCheck(self.learnable, x)
                self._step.add(logits)
                failure = self._failure(x, logits)
                if failure is not None and failure.reason == NO_LOGITS:
                    raise logits_error(x, self.net)
                return self._temperature.divide(x.own(logits) if isinstance(x, Shard) else logits)
            finally:
                self.state.average.seen = {}
                self.comparison.take()

    def reset(self) -> None:
        """Return to the source model: parameters, optimizer, statistics, memory and random numbers."""
        with self.exclusive():
            self._check_weights()
            self.state.restore(self.initial)
            self._inputs = InputRange(self._inputs.buffer)
            if self._guard is not None:
                self._guard.restore({}, self.device)

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
                self.comparison.begin(x)
                self.comparison.take()
            return with_fixed_statistics(self.net, self.model, self.state.average, x)

    @property
    def backend(self) -> Backend:
        """What runs the network (plain, rewritten, kernels or compiled), and why; the first batch decides."""
        return self.model.backend

    def __repr__(self) -> str:
        options = [f"{name}={value!r}" for name, value in self.changed_options().items()]
        return f"{type(self).__name__}({', '.join([type(self.net).__name__, *options])})"

    def _validate(self, batch: Tensor | Mapping[str, Any] | None, named: Mapping[str, Any]) -> Tensor:
        """Return the batch as the networks take it; with a group, that of all ranks, or raise on all of them."""
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
        return usable(x, channels_last=self.options.channels_last, may_be_empty=self.group is not None)
