"""Saving an adapter and restoring it, in the same and in another process."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

import cretta
import textbook
from adapters import QUIET, AnyAdapter, adapted, buffer_of, everything, in_a_new_process, noisy
from cretta.errors import BatchError, StateError

# Saving, leaving, restoring.


RESUMED: dict[str, tuple[str, dict[str, Any]]] = {
    "adaptive": ("cretta", {}),
    "uniform": ("cretta", {"weighting": "uniform", "reference": "batch"}),
    "callable": ("cretta", {"buffer": "callable"}),
    "tent": ("tent", {}),
    "tent-sgd": ("tent", {"optimizer": "sgd", "steps": 2}),
}


def to_resume(name: str, statistics: str) -> AnyAdapter:
    method, options = RESUMED[name]
    options = dict(options)
    buffer = buffer_of(13)
    if options.pop("buffer", None):
        buffer = cretta.SourceBuffer(textbook.source_images(13), augment=noisy, seed=3)
    return adapted(method, buffer=buffer, lr=1e-2, statistics=statistics, guard=QUIET, **options)


def resume(folder: str) -> None:
    """Runs in a process of its own: takes up every saved state and goes on."""
    torch.set_num_threads(1)
    here = Path(folder)
    for name in RESUMED:
        for statistics in ("batch", "moving"):
            model = to_resume(name, statistics)
            model.restore(here / f"{name}-{statistics}-middle.safetensors")
            logits = {str(k): model(x) for k, x in enumerate(textbook.batches()[2:])}
            save_file(logits, here / f"{name}-{statistics}-resumed-logits.safetensors")
            model.save(here / f"{name}-{statistics}-resumed-end.safetensors")


@pytest.fixture(scope="module")
def left_and_resumed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every kind of run, undisturbed and, from its middle on, in a new process."""
    folder = tmp_path_factory.mktemp("states")
    for name in RESUMED:
        for statistics in ("batch", "moving"):
            model = to_resume(name, statistics)
            stream = textbook.batches()
            for x in stream[:2]:
                model(x)
            model.save(folder / f"{name}-{statistics}-middle.safetensors")
            logits = {str(k): model(x) for k, x in enumerate(stream[2:])}
            save_file(logits, folder / f"{name}-{statistics}-logits.safetensors")
            model.save(folder / f"{name}-{statistics}-end.safetensors")
    in_a_new_process("import sys, test_adapter_files; test_adapter_files.resume(sys.argv[1])", str(folder))
    return folder


@pytest.mark.process
@pytest.mark.parametrize("statistics", ["batch", "moving"])
@pytest.mark.parametrize("name", RESUMED)
def test_a_new_process_goes_on_bit_for_bit(left_and_resumed: Path, name: str, statistics: str) -> None:
    stem = left_and_resumed / f"{name}-{statistics}"
    textbook.assert_bits(load_file(f"{stem}-resumed-logits.safetensors"), load_file(f"{stem}-logits.safetensors"))
    end = load_file(f"{stem}-end.safetensors")
    textbook.assert_bits(load_file(f"{stem}-resumed-end.safetensors"), end)
    assert "parameters.0" in end
    assert "guard.batches" in end
    assert "guard.averages" in end


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", RESUMED)
def test_a_state_goes_back_to_the_gpu_it_came_from(name: str, tmp_path: Path) -> None:
    """Files hold CPU tensors: parameters, moments, averages, memory and the guard's must find their way."""
    path, stream = tmp_path / "state.safetensors", [x.cuda() for x in textbook.batches()]
    model, other = (
        cretta.adapt(
            textbook.small_net().cuda(),
            RESUMED[name][0],
            buffer=buffer_of(13),
            guard=QUIET,
            statistics="moving",
            **{k: v for k, v in RESUMED[name][1].items() if k != "buffer"},
        )
        for _ in range(2)
    )
    for x in stream[:2]:
        model(x)
    model.save(path)
    other.restore(path)
    for x in stream[2:]:
        torch.testing.assert_close(other(x), model(x), rtol=1e-5, atol=1e-5)
    devices = {n: v.device for n, v in model.state.snapshot().items()}
    assert {n: v.device for n, v in other.state.snapshot().items()} == devices


def test_restoring_twice_and_resetting_afterwards(tmp_path: Path) -> None:
    """A restored adapter resets to the source model, not to the restored state."""
    path, stream = tmp_path / "state.safetensors", textbook.batches()
    model = adapted("cretta", lr=1e-2)
    first = everything(model)
    model(stream[0])
    middle = everything(model)
    model.save(path)
    for _ in range(2):
        model(stream[1])
        model.restore(path)
        textbook.assert_bits(everything(model), middle)
    model.reset()
    textbook.assert_bits(everything(model), first)


def test_a_state_from_before_the_first_batch(tmp_path: Path) -> None:
    model = adapted("tent", lr=1e-2)
    first = everything(model)
    model.save(tmp_path / "state.safetensors")
    model(textbook.batches((8,))[0])
    model.restore(tmp_path / "state.safetensors")
    textbook.assert_bits(everything(model), first)


def test_saving_changes_nothing_and_overwrites(tmp_path: Path) -> None:
    model = adapted("cretta", lr=1e-2, guard=QUIET)
    for x in textbook.batches((8, 8)):
        model(x)
        before = everything(model)
        model.save(tmp_path / "state.safetensors")
        textbook.assert_bits(everything(model), before)
    assert [p.name for p in tmp_path.iterdir()] == ["state.safetensors"]


def test_saving_into_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="does not exist"):
        adapted("tent").save(tmp_path / "nowhere" / "state.safetensors")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    model = adapted("cretta", lr=1e-2)
    for x in textbook.batches((8, 8)):
        model(x)
    path = tmp_path / "state.safetensors"
    model.save(path)
    return path


def refuse(model: AnyAdapter, path: Path, match: str | None = None) -> None:
    """The state is refused by a StateError, and the model stays as it is, bit for bit, and works."""
    model(textbook.batches((8,))[0])
    before = everything(model)
    with pytest.raises(StateError, match=match):
        model.restore(path)
    textbook.assert_bits(everything(model), before)
    model(textbook.batches((8,))[0])


def test_restore_into_another_method(saved: Path) -> None:
    refuse(adapted("tent", lr=1e-2), saved, "'cretta'.*'tent'")


def test_restore_into_another_buffer(saved: Path) -> None:
    refuse(adapted("cretta", lr=1e-2, buffer=buffer_of(19)), saved, "the buffer")
    other = cretta.SourceBuffer(textbook.source_images(20, seed=9), augment="none")
    refuse(adapted("cretta", lr=1e-2, buffer=other), saved, "the buffer")


def test_restore_into_another_network(saved: Path) -> None:
    # Eight digits of a fingerprint, not 64.
    short = r"the source model was [0-9a-f]{8}… when it was saved and is [0-9a-f]{8}… here\."
    refuse(adapted("cretta", textbook.small_net(seed=1), lr=1e-2), saved, short)
    refuse(adapted("cretta", textbook.small_net(width=4), lr=1e-2), saved, "the source model")


@pytest.mark.parametrize("part", ["conv1.weight", "fc.bias", "bn1.running_mean", "bn2.running_var"])
def test_restore_into_a_network_that_differs_in_what_is_frozen(saved: Path, part: str) -> None:
    """γ and β of two networks may well be alike: fresh ones, or frozen in a fine-tuning. They do not make a source."""
    net = textbook.small_net()
    net.state_dict()[part].add_(0.1)
    refuse(adapted("cretta", net, lr=1e-2), saved, "the source model")


@pytest.mark.parametrize("method", ["source", "bn_adapt"])
def test_restore_into_another_network_where_nothing_learns(method: str, tmp_path: Path) -> None:
    adapted(method).save(tmp_path / "state.safetensors")
    refuse(adapted(method, textbook.small_net(seed=1)), tmp_path / "state.safetensors", "the source model")


@pytest.mark.parametrize("options", [{"optimizer": "sgd"}, {"statistics": "moving"}])
def test_restore_with_options_that_make_another_state(saved: Path, options: dict[str, Any]) -> None:
    refuse(adapted("cretta", lr=1e-2, **options), saved, "same options")


def test_restore_with_another_learning_rate_warns_and_works(saved: Path) -> None:
    model = adapted("cretta", lr=5e-3)
    with pytest.warns(UserWarning, match=r"'lr': 0\.01"):
        model.restore(saved)
    assert model.options.lr == 5e-3
    assert torch.equal(model.state.snapshot()["parameters.0"], load_file(saved)["parameters.0"])


def test_restore_a_missing_file(tmp_path: Path) -> None:
    refuse(adapted("cretta"), tmp_path / "none.safetensors", "no such file")
    refuse(adapted("cretta"), tmp_path, "is a folder")


@pytest.mark.parametrize("kept", [0, 7, 100, -1, -1000])
def test_restore_a_truncated_file(saved: Path, kept: int) -> None:
    content = saved.read_bytes()
    saved.write_bytes(content[:kept])
    refuse(adapted("cretta", lr=1e-2), saved, "damaged")


def test_restore_something_else(saved: Path, tmp_path: Path) -> None:
    saved.write_bytes(b"<html>404 Not Found</html>" * 100)
    refuse(adapted("cretta", lr=1e-2), saved, "damaged")
    save_file({"parameters.0": torch.zeros(3)}, saved)
    refuse(adapted("cretta", lr=1e-2), saved, "not saved by cretta")
    buffer_of().save(saved)
    refuse(adapted("cretta", lr=1e-2), saved, "source buffer")


def test_restore_a_file_with_flipped_bits(saved: Path) -> None:
    """The length is right and the header whole, but a number is not the one that was saved."""
    content = bytearray(saved.read_bytes())
    header = 8 + int.from_bytes(content[:8], "little")
    content[header + (len(content) - header) // 2] ^= 0xFF
    saved.write_bytes(content)
    refuse(adapted("cretta", lr=1e-2), saved, "damaged")


def damage(path: Path, name: str, value: Tensor | None) -> None:
    """Replaces a tensor in a saved file, or leaves it out; the rest, facts included, stays as it is."""
    with safe_open(path, framework="pt") as file:
        facts = file.metadata()
    content = load_file(path)
    del content[name]
    save_file(content if value is None else {**content, name: value}, path, metadata=facts)


@pytest.mark.parametrize(
    "name", ["parameters.0", "generator", "memory.cursor", "optimizer.0.exp_avg", "optimizer.0.step"]
)
@pytest.mark.parametrize("how", ["missing", "misshapen", "of another type"])
def test_restore_a_file_with_a_part_that_is_wrong(saved: Path, name: str, how: str) -> None:
    value = load_file(saved)[name]
    wrong = {"missing": None, "misshapen": torch.zeros(3, dtype=value.dtype), "of another type": value.to(torch.int16)}
    damage(saved, name, wrong[how])
    refuse(adapted("cretta", lr=1e-2), saved)


def test_restore_a_moving_average_without_its_statistics(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    model = adapted("tent", statistics="moving")
    model(textbook.batches((8,))[0])
    model.save(path)
    damage(path, "statistics.mean.bn2", None)
    refuse(adapted("tent", statistics="moving"), path)


# The public surface.


def test_the_readme_lines_of_the_design() -> None:
    net, x = textbook.small_net(), textbook.batches((8,))[0]
    model = cretta.adapt(net, "cretta", buffer=buffer_of(), beta=1.0, lr=1e-3)
    logits = model(x)
    assert torch.equal(model.predict(x), logits)
    assert model.last.weight is not None
    assert "lr" not in repr(model)
    assert repr(cretta.adapt(net, "tent", lr=0.5)) == "Tent(SmallNet, lr=0.5)"


def test_warnings_are_for_the_user_to_see(saved: Path) -> None:
    """A user who turns warnings into errors gets one before anything has changed."""
    model = adapted("cretta", lr=5e-3)
    before = everything(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="lr"):
            model.restore(saved)
    textbook.assert_bits(everything(model), before)


def test_a_bad_batch_changes_nothing_in_an_episodic_adapter_either() -> None:
    """Refused only in the forward, after the episode's own reset."""
    model = adapted("tent", lr=1e-2, episodic=True)
    x = textbook.batches((8,))[0]
    model(x)
    before = everything(model)
    with pytest.raises(BatchError):
        model(x[0])
    textbook.assert_bits(everything(model), before)
