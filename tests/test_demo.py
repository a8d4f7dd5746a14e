from __future__ import annotations

import pytest
import torch

import cretta
from cretta import demo


def test_the_demo_measures_what_a_plain_loop_measures() -> None:
    heard: list[tuple[str, str, int]] = []
    found = list(
        demo.run(
            shifts=("contrast",),
            methods=("source", "bn_adapt"),
            images=60,
            batch_size=25,
            seed=3,
            progress=lambda *news: heard.append(news),
        )
    )
    assert [(shift, method) for shift, method, _ in found] == [("contrast", "source"), ("contrast", "bn_adapt")]
    assert heard[:3] == [("contrast", "source", 25), ("contrast", "source", 25), ("contrast", "source", 10)]

    test = cretta.data.embedded("test")
    images = cretta.data.corrupt(test.images[:60], "contrast", severity=5, seed=3)
    x = torch.from_numpy(images).permute(0, 3, 1, 2).float() / 255
    labels = torch.from_numpy(test.labels[:60])
    with torch.no_grad():
        logits = cretta.models.load("wrn-40-2-cifar10")(x)
    trace = found[0][2]
    assert trace.accuracy[-1] == pytest.approx(float((logits.argmax(1) == labels).float().mean()))
    assert trace.mean_energy == pytest.approx(float(-logits.logsumexp(1).mean()), abs=1e-4)
    assert trace.calibration_error[-1] == pytest.approx(
        cretta.measure.calibration_error(logits.softmax(1), labels), abs=1e-4
    )
    assert trace.images == 60
    assert found[1][2].accuracy[-1] > trace.accuracy[-1]


def test_cretta_beats_source_on_every_shift_of_the_demo() -> None:
    found = {
        (shift, method): trace
        for shift, method, trace in demo.run(methods=("source", "cretta"), images=100, batch_size=50)
    }
    for shift in demo.SHIFTS:
        source, adapted = found[shift, "source"], found[shift, "cretta"]
        assert adapted.accuracy[-1] > source.accuracy[-1], shift
        assert adapted.calibration_error[-1] < source.calibration_error[-1], shift


def test_shifts_do_not_leak_into_each_other() -> None:
    def last(shifts: tuple[str, ...]) -> list[float]:
        return [t.energy for _, _, t in demo.run(shifts=shifts, methods=("cretta",), images=20, batch_size=10)][-1]

    assert last(("contrast", "fog")) == last(("fog",))


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"images": 3000}, "2 to 2000"),
        ({"batch_size": 1}, "from 2"),
        ({"severity": 6}, "6"),
        ({"shifts": ("fogg",)}, "fog"),
    ],
)
def test_wrong_requests_are_refused_with_what_is_allowed(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(cretta.CrettaError, match=said):
        list(demo.run(**{"images": 10, "batch_size": 5, **wrong}))  # type: ignore[arg-type]
