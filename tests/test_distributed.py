"""Several ranks compute what one process computes."""

from __future__ import annotations

import functools
import inspect
import re
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor

import cretta
import forks
import ranks
from cretta.distributed import TIMEOUT, Group, join
from processes import ENVIRONMENT, LONG

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not torch.distributed.is_available(), reason="this PyTorch has no torch.distributed"),
]
TOLERANCE = 1e-5
Outcomes = list[tuple[Tensor | str, str]]


def start(folder: Path, *arguments: object) -> list[int]:
    """Run the program of ranks.py, and return the exit codes of its ranks."""
    done = forks.run([sys.executable, "-c", "import ranks; ranks.main()", folder, *arguments], env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    return [int(code) for code in done.stdout.split()]


@pytest.fixture(scope="module", params=[2, 3])
def shared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> list[dict[Any, Any]]:
    """What each of two or three ranks computed."""
    folder, size = tmp_path_factory.mktemp("ranks"), request.param
    codes = start(folder, "cases", size)
    assert codes == [0] * size, "".join(path.read_text() for path in folder.glob("error-*"))
    return [torch.load(folder / f"cases-{size}-{rank}.pt") for rank in range(size)]


@functools.cache
def alone(name: str) -> Outcomes:
    """Return what one process computes."""
    case = ranks.CASES[name]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ranks.outcomes(case.model(), case.batches())


def largest_difference(shared: list[dict[Any, Any]], name: str, *, even: bool) -> float:
    """Return the largest difference of a logit; all else has to be equal."""
    largest = 0.0
    of_ranks = zip(*(results[name, even] for results in shared), strict=True)
    for (expected, record), parts in zip(alone(name), of_ranks, strict=True):
        assert ranks.CASES[name].broken or all(of_rank == record for _, of_rank in parts)
        if isinstance(expected, str):
            assert all(message == expected for message, _ in parts)
        else:
            largest = max(largest, float((torch.cat([logits for logits, _ in parts]) - expected).abs().max()))
    return largest


@pytest.mark.parametrize("name", ranks.METHODS)
def test_ranks_with_as_many_images_each_equal_one_process(shared: list[dict[Any, Any]], name: str) -> None:
    assert largest_difference(shared, name, even=True) <= TOLERANCE


@pytest.mark.parametrize("name", [name for name, case in ranks.CASES.items() if not case.broken])
def test_ranks_with_few_or_no_images_equal_one_process(shared: list[dict[Any, Any]], name: str) -> None:
    assert largest_difference(shared, name, even=False) <= TOLERANCE


@pytest.mark.parametrize("name", [name for name, case in ranks.CASES.items() if case.broken])
def test_without_the_sums_over_ranks_the_result_is_another(shared: list[dict[Any, Any]], name: str) -> None:
    assert largest_difference(shared, name, even=False) > 100 * TOLERANCE


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a value that is not a number", "1 of 7 samples hold NaN"),
        ("an image far outside", "far outside the range of the buffer"),
        ("an image far outside, no buffer", "far outside the range of the first batches"),
        ("filters that select few", "no sample is both reliable and new"),
        ("a reset within a batch", "reset to the source model"),
        ("a learning rate that is too large", "are not finite"),
        ("a guard", "rolled back"),
        ("batches of several sizes", "True"),
    ],
)
def test_the_cases_are_what_they_say(name: str, text: str) -> None:
    assert any(text in str(logits) or text in record for logits, record in alone(name))


@pytest.mark.parametrize("method", ranks.LEARNING)
def test_each_method_learns_in_its_case(method: str) -> None:
    assert all("True False" in record for _, record in alone(f"{method}, batch norm")[: ranks.STEPS])


def test_an_exported_network_has_the_statistics_of_all_ranks(shared: list[dict[Any, Any]]) -> None:
    model = ranks.Case("tent").model()
    model(ranks.stream()[0])
    expected = model.export()(ranks.stream()[1])
    for results in shared:
        torch.testing.assert_close(results["export", True], expected, atol=TOLERANCE, rtol=0)


def test_a_killed_rank_ends_the_others_and_the_saved_state_continues(tmp_path: Path) -> None:
    """Ranks of this test wait without limit: what ends them is the lost connection, not a timeout."""
    assert start(tmp_path, "killed") == [1, -9]
    error = (tmp_path / "error-0").read_text()
    assert "cretta.errors.DistributedError: another process of this group has ended" in error
    assert "restore" in error
    undisturbed, continued = ranks.Case("cretta").model(), ranks.Case("cretta").model()
    stream = ranks.stream(ranks.LONGER)
    expected = [undisturbed(x) for x in stream]
    continued.restore(tmp_path / "state.safetensors")
    for number, x in enumerate(stream[2:], 2):
        torch.testing.assert_close(continued(x), expected[number], atol=TOLERANCE, rtol=0)


@pytest.mark.slow
def test_the_example_runs_as_documented(tmp_path: Path) -> None:
    examples = Path(__file__).parent.parent / "examples"
    program = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc-per-node",
        "2",
        str(examples / "several_processes.py"),
    ]
    done = subprocess.run(
        program, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=LONG, check=False
    )
    assert done.returncode == 0, done.stderr
    expected = re.fullmatch(r"2 processes: (\d+) of 20 correct\n", done.stdout)
    assert expected is not None, done.stdout
    assert int(expected[1]) > 10, "by chance it would be 2"
    buffer = cretta.SourceBuffer.sample(cretta.data.embedded("train"), size=15)
    alone = cretta.adapt(cretta.models.load("wrn-40-2-cifar10"), "cretta", buffer=buffer)
    alone.restore(tmp_path / "several.safetensors")
    assert int(alone.memory["cursor"]) == 20 % 15


LEFT = """
import atexit, os, tempfile
import torch.distributed as dist
from cretta.distributed import join
atexit.register(lambda: print(dist.is_initialized()))  # called after those that are registered later
os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
assert join("gloo").size == 1
"""


def test_a_program_leaves_the_group_at_its_end() -> None:
    """PyTorch's threads that outlive the interpreter abort the process at times, on a busy machine above all."""
    done = forks.run([sys.executable, "-c", LEFT], env=ENVIRONMENT)
    assert (done.returncode, done.stdout) == (0, "False\n"), done.stderr


def test_a_rank_that_hangs_is_given_up_after_30_seconds() -> None:
    assert inspect.signature(join).parameters["timeout"].default == TIMEOUT <= 30


def test_join_says_how_to_start_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(cretta.OptionError, match="torchrun --nproc-per-node 2"):
        join()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_networks_are_refused() -> None:
    model = ranks.Case("tent", options={"compile": "default"}).model()
    with pytest.raises(cretta.OptionError, match="compile='default': expected None with several processes"):
        model.distribute(Mock(Group))


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="NCCL needs two GPUs: this machine has not got them")
def test_nccl_ranks_equal_one_process(tmp_path: Path) -> None:
    assert start(tmp_path, "nccl", 2) == [0, 0], "".join(path.read_text() for path in tmp_path.glob("error-*"))
    of_ranks = [torch.load(tmp_path / f"nccl-2-{rank}.pt") for rank in range(2)]
    for name in ranks.METHODS:
        assert largest_difference(of_ranks, name, even=True) <= 1e-4  # one process computes it on the CPU
