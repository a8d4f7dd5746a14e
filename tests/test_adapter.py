"""What an adapter moves, resets, predicts and repeats."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import cretta
import textbook
from adapters import METHODS, QUIET, adapted, anatomy, everything, noisy, tensors
from cretta.errors import ModelError

# What moves and what does not.


class StochasticDepth(nn.Module):
    """Home-made: drops whole samples' branches while training."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        return x * (torch.rand(len(x), 1, 1, 1) > 0.5)


class Sleepy(textbook.SmallNet):
    """With dropout, stochastic depth, and a buffer that counts its forwards."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.depth = StochasticDepth()
        self.dropout = nn.Dropout(0.5)
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        x = torch.relu(self.bn1(self.conv1(x)))
        x = torch.relu(self.bn2(self.conv2(self.depth(x))))
        logits: Tensor = self.fc(nn.functional.dropout(self.dropout(x).mean((2, 3)), 0.5, self.training))
        return logits


def sleepy_net() -> Sleepy:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = Sleepy()
        textbook.settle(net, textbook.source_images(32).split(8))
    return net


@pytest.mark.parametrize("method", METHODS)
def test_only_gamma_and_beta_move(method: str) -> None:
    net = textbook.small_net()
    model = adapted(method, net, lr=1e-2)
    for x in textbook.batches():
        model(x)
    original = tensors(net)
    mine = dict(model.model.module.named_parameters())
    for name, parameter in net.named_parameters():
        if name.startswith("bn"):
            assert not torch.equal(mine[name], original[name]), f"{name} did not move"
            assert mine[name].data_ptr() != parameter.data_ptr(), f"{name} is the user's own"
            assert mine[name].requires_grad
            assert mine[name].grad is not None
            assert torch.isfinite(mine[name]).all()
        else:
            assert torch.equal(mine[name], original[name]), f"{name} moved"
            assert mine[name].data_ptr() == parameter.data_ptr(), f"{name} was copied"
            assert not mine[name].requires_grad
            assert mine[name].grad is None, f"{name} has a gradient"
    assert not model.model.module.training


@pytest.mark.parametrize("method", METHODS)
def test_every_channel_of_gamma_and_beta_moves(method: str) -> None:
    net = textbook.small_net()
    model = adapted(method, net, lr=1e-2)
    for x in textbook.batches():
        model(x)
    original = tensors(net)
    for name, parameter in model.model.module.named_parameters():
        if name.startswith("bn"):
            assert ((parameter.detach() - original[name]).abs() > 1e-5).float().mean() > 0.9


@pytest.mark.parametrize("options", [{}, {"reference": "batch"}, {"statistics": "moving"}, {"statistics": "mixture"}])
def test_the_frozen_model_shares_all_its_parameters(options: dict[str, Any]) -> None:
    net = textbook.small_net()
    model = adapted("cretta", net, **options)
    model(textbook.batches((8,))[0])
    theirs = {name: parameter.data_ptr() for name, parameter in net.named_parameters()}
    assert model._frozen
    for frozen in model._frozen.values():
        assert {name: p.data_ptr() for name, p in frozen.module.named_parameters()} == theirs
        assert not any(p.requires_grad for p in frozen.module.parameters())
        assert all(p.grad is None for p in frozen.module.parameters())


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("cretta", {}),
        ("cretta", {"reference": "batch", "statistics": "moving"}),
        ("cretta", {"statistics": "mixture", "guard": QUIET}),
        ("tent", {}),
        ("tent", {"statistics": "moving", "guard": QUIET}),
        ("bn_adapt", {}),
        ("source", {}),
    ],
)
def test_the_users_network_stays_as_it_is(method: str, options: dict[str, Any], training: bool) -> None:
    net = sleepy_net().train(training)
    net.conv1.weight.requires_grad_(False)
    net.fc.bias.grad = torch.ones(textbook.CLASSES)
    values, rest = tensors(net), anatomy(net)
    model = adapted(method, net, lr=1e-2, **options)
    for x in textbook.batches((4,) * 50):
        model(x)
    model.predict(x)
    model.reset()
    textbook.assert_bits(tensors(net), values)
    now = anatomy(net)
    for key in rest:
        if key == "grad":
            grads = zip(now[key], rest[key], strict=True)  # type: ignore[call-overload]
            assert all(a is b is None or torch.equal(a, b) for a, b in grads)
        else:
            assert now[key] == rest[key], key


@pytest.mark.parametrize("method", [*METHODS, "source", "bn_adapt"])
def test_dropout_and_stochastic_depth_stay_disabled(method: str) -> None:
    """A network in train mode and the same without anything random in it give the same numbers."""
    sleepy = sleepy_net().train()
    plain = textbook.small_net()
    plain.load_state_dict({n: t for n, t in sleepy.state_dict().items() if n != "calls"})
    # Only the second would be rewritten: the first writes to its buffers.
    one, other = adapted(method, sleepy, fuse=False), adapted(method, plain, fuse=False)
    for x in textbook.batches():
        assert torch.equal(one(x), other(x))
        assert torch.equal(one.predict(x), other.predict(x))


def test_tied_norm_parameters_stay_tied() -> None:
    class Tied(textbook.SmallNet):
        def __init__(self) -> None:
            super().__init__()
            self.bn3 = nn.BatchNorm2d(12)
            self.bn3.weight, self.bn3.bias = self.bn2.weight, self.bn2.bias

        def forward(self, x: Tensor) -> Tensor:
            x = torch.relu(self.bn1(self.conv1(x)))
            x = torch.relu(self.bn3(self.bn2(self.conv2(x))))
            logits: Tensor = self.fc(x.mean((2, 3)))
            return logits

    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = Tied().double()
    textbook.settle(net, textbook.source_images(32, dtype=torch.float64).split(8))
    stream = textbook.batches(dtype=torch.float64)
    model = cretta.adapt(net, "tent", lr=1e-2, optimizer="sgd")
    theta = textbook.batch_statistics(net)
    textbook.affine(theta)
    stepper = torch.optim.SGD([p for p in theta.parameters() if p.requires_grad], 1e-2, 0.9)
    for x in stream:
        logits = theta(x)
        stepper.zero_grad()
        textbook.entropy(logits).mean().backward()
        stepper.step()
        torch.testing.assert_close(model(x), logits.detach(), rtol=1e-8, atol=1e-8)
    module = model.model.module
    assert module.get_parameter("bn3.weight") is module.get_parameter("bn2.weight")


def test_skip_keeps_layers_and_all_below_them() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer1 = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
            self.layer10 = nn.Sequential(nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4))
            self.norm = nn.BatchNorm2d(4)
            self.head = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            logits: Tensor = self.head(self.norm(self.layer10(self.layer1(x)).relu()).mean((2, 3)))
            return logits

    net = Two()
    for skip, kept in (
        (("layer1",), {"layer10.1", "norm"}),  # layer10 only begins alike
        ("layer10", {"layer1.1", "norm"}),
        (["layer1.1", "norm"], {"layer10.1"}),
    ):
        model = cretta.adapt(net, "tent", skip=skip, lr=1e-2)
        for x in textbook.batches((4, 4)):
            model(x)
        original = dict(net.named_parameters())
        moved = {n for n, p in model.model.module.named_parameters() if not torch.equal(p, original[n])}
        assert moved == {f"{layer}.{name}" for layer in kept for name in ("weight", "bias")}
    with pytest.raises(ModelError, match=r"outside \('layer1', 'layer10', 'norm'\)"):
        cretta.adapt(net, "tent", skip=("layer1", "layer10", "norm"))


# Reset and episodes.

EVOLVING: dict[str, tuple[str, dict[str, Any]]] = {
    "cretta": ("cretta", {}),
    "cretta, batch reference": ("cretta", {"reference": "batch", "steps": 2}),
    "cretta, uniform": ("cretta", {"weighting": "uniform"}),
    "cretta, moving": ("cretta", {"statistics": "moving"}),
    "cretta, moving, batch reference": ("cretta", {"statistics": "moving", "reference": "batch"}),
    "tent": ("tent", {}),
    "tent, sgd, moving, guard": ("tent", {"optimizer": "sgd", "statistics": "moving", "guard": QUIET}),
    "bn_adapt, moving": ("bn_adapt", {"statistics": "moving"}),
}


@pytest.mark.parametrize("name", EVOLVING)
def test_reset_is_bit_exact(name: str) -> None:
    method, options = EVOLVING[name]
    model = adapted(method, lr=1e-2, **options)
    first = everything(model)
    stream = textbook.batches()
    before = [model(x) for x in stream]
    later = everything(model)
    assert any(not torch.equal(later[n], first.get(n, torch.empty(0))) for n in later)
    model.reset()
    textbook.assert_bits(everything(model), first)
    after = [model(x) for x in stream]
    assert all(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    textbook.assert_bits(everything(model), later)


def test_everything_evolves_that_should() -> None:
    """Otherwise a reset that forgets something could not be seen."""
    model = adapted("cretta", lr=1e-2, weighting="uniform", statistics="moving", adapt_every=2, reset_every=9)
    first = model.state.snapshot()
    for x in textbook.batches((8, 8, 7)):
        model(x)
    last = model.state.snapshot()
    assert {n for n in first if torch.equal(first[n], last[n])} == set()
    new = set(last) - set(first)
    assert new == {"optimizer.0.step", "optimizer.0.exp_avg", "optimizer.0.exp_avg_sq"}


def test_a_state_is_a_copy() -> None:
    model = adapted("cretta", lr=1e-2, statistics="moving")
    model(textbook.batches((8,))[0])
    state = model.state.snapshot()
    kept = {name: value.clone() for name, value in state.items()}
    model(textbook.batches((8,))[0])
    textbook.assert_bits(state, kept)
    for value in state.values():
        value.zero_()
    assert model.state.snapshot()["parameters.0"].abs().sum() > 0


@pytest.mark.parametrize("options", [{}, {"optimizer": "sgd"}, {"statistics": "moving"}], ids=str)
def test_a_state_is_taken_up_as_a_copy_too(options: dict[str, Any]) -> None:
    """Optimizers write in place; what was loaded must be there to be loaded again."""
    model = adapted("cretta", lr=1e-2, **options)
    first, *rest = textbook.batches()
    model(first)
    state = model.state.snapshot()
    kept = {name: value.clone() for name, value in state.items()}
    for _ in range(2):
        model.state.restore(state)
        textbook.assert_bits(model.state.snapshot(), kept)
        for x in rest:
            model(x)
        textbook.assert_bits(state, kept)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("statistics", ["batch", "moving"])
def test_episodic_forgets_before_each_batch(method: str, statistics: str) -> None:
    net, stream = textbook.small_net(), textbook.batches()
    model = adapted(method, net, episodic=True, lr=1e-2, predict="after", statistics=statistics)
    fresh = [adapted(method, net, lr=1e-2, predict="after", statistics=statistics)(x) for x in stream]
    assert all(torch.equal(model(x), expected) for x, expected in zip(stream, fresh, strict=True))
    lasting = adapted(method, net, lr=1e-2, predict="after", statistics=statistics)
    assert not all(torch.equal(lasting(x), expected) for x, expected in zip(stream, fresh, strict=True))


# Predicting only.


@pytest.mark.parametrize("name", EVOLVING)
def test_predict_changes_nothing_and_says_what_the_model_would(name: str) -> None:
    method, options = EVOLVING[name]
    model = adapted(method, lr=1e-2, **{**options, "predict": "before", "steps": 1})
    for x in textbook.batches():
        before, last = everything(model), model.last
        predicted = model.predict(x)
        assert not predicted.requires_grad
        textbook.assert_bits(everything(model), before)
        assert model.last is last
        # The logits from before the update are those of the model as it was.
        assert torch.equal(model(x), predicted)


@pytest.mark.parametrize("method", METHODS)
def test_the_answer_after_the_update_is_what_predict_says_then(method: str) -> None:
    model = adapted(method, lr=1e-2, predict="after")
    for x in textbook.batches():
        before = model.predict(x)
        answer = model(x)
        assert torch.equal(model.predict(x), answer)
        assert (answer - before).abs().max() > 1e-4


def test_predicting_in_between_does_not_disturb_a_run() -> None:
    ways: list[dict[str, Any]] = [{}, {"statistics": "moving"}, {"weighting": "uniform"}]
    for options in ways:
        one, other = (adapted("cretta", lr=1e-2, **options) for _ in range(2))
        for x in textbook.batches():
            one.predict(x.flip(0)[:3])
            assert torch.equal(one(x), other(x))


def test_before_the_first_batch_there_is_nothing_to_tell() -> None:
    last = adapted("cretta").last
    assert (last.size, last.adapted, last.skipped, last.loss, last.weight) == (0, False, False, None, None)
    assert last.reason


# The same again.


@pytest.mark.parametrize("name", EVOLVING)
def test_the_same_seed_twice(name: str) -> None:
    method, options = EVOLVING[name]
    one, other = (adapted(method, lr=1e-2, seed=4, **options) for _ in range(2))
    torch.manual_seed(1)
    for k, x in enumerate(textbook.batches()):
        torch.manual_seed(k)  # the global generator has no say
        a = one(x)
        torch.manual_seed(k + 100)
        assert torch.equal(a, other(x))


def test_the_global_generator_is_left_alone() -> None:
    torch.manual_seed(3)
    state = torch.get_rng_state()
    model = adapted(
        "cretta", weighting="uniform", buffer=cretta.SourceBuffer(textbook.source_images(13), augment=noisy)
    )
    for x in textbook.batches():
        model(x)
    assert torch.equal(torch.get_rng_state(), state)


def test_another_seed_draws_other_weights() -> None:
    a, b = (adapted("cretta", weighting="uniform", seed=seed) for seed in (0, 1))
    for x in textbook.batches((8, 8)):
        a(x)
        b(x)
    assert a.last.weight != b.last.weight


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("statistics", ["batch", "moving"])
def test_memory_layout_does_not_matter(method: str, statistics: str) -> None:
    net = textbook.small_net()
    last, first = (adapted(method, net, channels_last=flag, statistics=statistics) for flag in (True, False))
    for x in textbook.batches():
        a, b = last(x), first(x)
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
        # Whichever way the batch itself came.
        torch.testing.assert_close(
            last.predict(x.contiguous(memory_format=torch.channels_last)), last.predict(x), rtol=1e-5, atol=1e-5
        )


def test_batches_of_changing_size() -> None:
    net, stream = textbook.small_net(), textbook.batches((8, 3, 16, 2, 9))
    model = adapted("cretta", net)
    expected = textbook.cretta(net, stream, textbook.source_images(20))
    for x, wanted in zip(stream, expected.logits, strict=True):
        torch.testing.assert_close(model(x), wanted, rtol=1e-5, atol=1e-5)
