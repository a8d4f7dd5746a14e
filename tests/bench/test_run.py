from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cretta.bench import Buffer, Domain, Run
from cretta.errors import OptionError

BASE = Run(data="embedded", domains=Domain.parse_all("fog/5"), model="wrn-40-2-cifar10")
FINGERPRINTS = {"model": "a", "target": "b"}


def test_equal_descriptions_are_equal_runs_with_equal_keys() -> None:
    one = dataclasses.replace(BASE, options=(("lr", 1e-3), ("beta", 2.0)))
    other = dataclasses.replace(BASE, options=(("beta", 2.0), ("lr", 1e-3)))
    assert one == other
    assert hash(one) == hash(other)
    assert one.key(FINGERPRINTS) == other.key(FINGERPRINTS)
    assert one == BASE.with_options(lr=1e-3).with_options(beta=2.0)


@pytest.mark.parametrize(
    "change",
    [
        {"data": "cifar10"},
        {"domains": Domain.parse_all("fog/4")},
        {"model": "other"},
        {"method": "tent"},
        {"preset": "cifar10"},
        {"options": (("lr", 0.1),)},
        {"stream": "ordered"},
        {"stream": "dirichlet", "delta": 0.1},
        {"images": 10},
        {"size": 64},
        {"batch_size": 20},
        {"buffer": Buffer(size=0.01)},
        {"seed": 1},
    ],
)
def test_whatever_differs_gives_another_key(change: dict[str, Any]) -> None:
    assert dataclasses.replace(BASE, **change).key(FINGERPRINTS) != BASE.key(FINGERPRINTS)


@pytest.mark.parametrize(
    "options", [{"size": 0}, {"size": -5}, {"size": 2.5}, {"size": 1.0}, {"split": "val"}, {"select": "best"}]
)
def test_buffers_that_cannot_be_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        Buffer(**options)


def test_a_file_counts_by_its_content_and_a_module_by_its_name(tmp_path: Path) -> None:
    for name in ("a.safetensors", "b.safetensors"):
        (tmp_path / name).touch()
    one, other = (dataclasses.replace(BASE, model=str(tmp_path / name)) for name in ("a.safetensors", "b.safetensors"))
    assert one.key(FINGERPRINTS) == other.key(FINGERPRINTS)
    assert one.key(FINGERPRINTS) != one.key({**FINGERPRINTS, "model": "c"})
    named = [dataclasses.replace(BASE, model=f"package.nets:{name}").key(FINGERPRINTS) for name in ("relu", "tanh")]
    assert named[0] != named[1]


def test_other_weights_behind_a_name_give_another_key() -> None:
    assert BASE.key({**FINGERPRINTS, "model": "c"}) != BASE.key(FINGERPRINTS)


def test_every_field_is_covered_above() -> None:
    covered = {"data", "domains", "model", "method", "preset", "options", "stream", "delta", "images", "size"}
    covered |= {"batch_size", "buffer", "seed"}
    assert {field.name for field in dataclasses.fields(Run)} == covered


def test_a_description_goes_through_json_and_back() -> None:
    run = dataclasses.replace(
        BASE, options=(("skip", ("conv1", "bn1")), ("beta", 2.0)), buffer=Buffer(data="cifar100", size=50)
    )
    again = Run.from_description(json.loads(json.dumps(run.describe())))
    assert again == run
    assert again.key(FINGERPRINTS) == run.key(FINGERPRINTS)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"domains": ()}, "at least one"),
        ({"domains": "fog/5"}, "at least one"),
        ({"stream": "iidd"}, "Did you mean 'iid'"),
        ({"stream": "dirichlet"}, "delta"),
        ({"delta": 0.1}, "delta"),
        ({"domains": Domain.parse_all("fog/5", "snow/5")}, "it takes one"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"images": 0}, "images=0"),
        ({"seed": -1}, "seed=-1"),
        ({"seed": True}, "seed=True"),
        ({"size": -3}, "size=-3"),
        ({"images": 3.5}, "images=3.5"),
        ({"stream": "dirichlet", "delta": -1.0}, "delta=-1.0"),
    ],
)
def test_runs_that_cannot_be_are_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(OptionError, match=said):
        dataclasses.replace(BASE, **change)


@pytest.mark.parametrize("stream", ["iid", "ordered", "dirichlet"])
def test_a_schedule_visits_each_image_of_its_domain_once(stream: str) -> None:
    run = dataclasses.replace(BASE, stream=stream, delta=0.1 if stream == "dirichlet" else None, batch_size=7)
    labels = np.arange(50) % 10
    batches = list(run.schedule([50], labels))
    assert sorted(np.concatenate([batch.indices for batch in batches]).tolist()) == list(range(50))
    assert all((batch.domains == 0).all() for batch in batches)
    assert [len(batch) for batch in batches] == [7] * 7 + [1]


def test_a_gradual_schedule_ends_where_it_began_and_no_longer_learns() -> None:
    run = dataclasses.replace(
        BASE, stream="gradual", domains=Domain.parse_all("clean", "fog/1", "fog/5", "clean"), batch_size=10
    )
    batches = list(run.schedule([20, 20, 20, 20], None))
    assert [int(batch.domains[0]) for batch in batches] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [batch.adapts for batch in batches] == [True] * 6 + [False] * 2
    assert [run.label(stage) for stage in range(4)] == ["clean", "fog/1", "fog/5", "clean again"]
    continual = dataclasses.replace(run, stream="continual")
    assert all(batch.adapts for batch in continual.schedule([20, 20, 20, 20], None))
    assert continual.label(3) == "clean"


def test_mixed_schedules_mix() -> None:
    run = dataclasses.replace(BASE, stream="mixed", domains=Domain.parse_all("fog/5", "snow/5"), batch_size=10)
    batches = list(run.schedule([20, 20], None))
    assert all(set(batch.domains.tolist()) == {0, 1} for batch in batches)
