"""Figures 8 and 9: β swept."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from cretta.bench import Result, Run
from cretta.paper.comparison import Variant
from cretta.paper.family import Family
from cretta.paper.item import Item, unique
from cretta.paper.readings import Readings, accuracy, calibration_error
from cretta.paper.scale import Scale
from cretta.report.content import Chart, Panel, Series, Table

BASELINES = (Variant("TENT", "tent"), Variant("TEA", "tea"))
MEASURES: tuple[tuple[str, Callable[[Sequence[Result]], float]], ...] = (
    ("Acc, % ↑", accuracy),
    ("ECE, % ↓", calibration_error),
)


def with_beta(beta: float) -> Variant:
    """CreTTA with this β; where the preset has it, that is CreTTA as it is."""
    return Variant(f"β = {beta:g}", options={"beta": beta})


def _groups(scale: Scale, family: Family, variant: Variant, severities: Sequence[int]) -> list[list[Run]]:
    domains = [f"{name}/{severity}" for name in family.some for severity in severities]
    return variant.groups(scale, family, domains)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Beta(Item):
    """By severity on CIFAR, and averaged beside baselines on Tiny-ImageNet."""

    def plan(self, scale: Scale) -> tuple[Run, ...]:
        """CreTTA at every β and severity, and the baselines beside it."""
        runs = []
        for name in self.families:
            family = scale.family(name)
            variants = [with_beta(beta) for beta in scale.betas]
            if name == "tiny-imagenet":
                variants += BASELINES
            for variant in variants:
                runs += [run for group in _groups(scale, family, variant, family.severities) for run in group]
        return unique(runs)

    def draw(self, readings: Readings, scale: Scale) -> tuple[Table | Chart, ...]:
        """A chart for each figure."""
        panels = tuple(
            Panel(family.title, "β", title, "line", self._by_severity(readings, scale, family, value), True)
            for family in (scale.family("cifar10"), scale.family("cifar100"))
            for title, value in MEASURES
        )
        tiny = scale.family("tiny-imagenet")
        averaged = tuple(
            Panel(tiny.title, "β", title, "line", self._averaged(readings, scale, tiny, value), True)
            for title, value in MEASURES
        )
        return (
            Chart(
                f"{self.name}-cifar",
                f"{self.title}, by severity",
                panels,
                self.notes(readings, scale, "cifar10", "cifar100"),
            ),
            Chart(
                f"{self.name}-tiny-imagenet",
                f"{self.title}, averaged over severities",
                averaged,
                self.notes(readings, scale, "tiny-imagenet"),
            ),
        )

    def _by_severity(
        self, readings: Readings, scale: Scale, family: Family, value: Callable[[Sequence[Result]], float]
    ) -> tuple[Series, ...]:
        made: list[Series] = []
        for severity in family.severities:
            points = [
                (beta, readings.cell(_groups(scale, family, with_beta(beta), (severity,)), value))
                for beta in scale.betas
            ]
            made += readings.series(f"severity {severity}", points)
        return tuple(made)

    def _averaged(
        self, readings: Readings, scale: Scale, family: Family, value: Callable[[Sequence[Result]], float]
    ) -> tuple[Series, ...]:
        points = [
            (beta, readings.cell(_groups(scale, family, with_beta(beta), family.severities), value))
            for beta in scale.betas
        ]
        made = list(readings.series("CreTTA", points))
        for variant in BASELINES:
            level = readings.cell(_groups(scale, family, variant, family.severities), value)
            made += readings.series(variant.label, [(beta, level) for beta in scale.betas])
        return tuple(made)


ITEMS = (
    Beta(
        name="beta",
        title="CreTTA by β",
        where="Figures 8 and 9",
        labels=("fig:beta_ablation_apdx", "fig:beta"),
        order=30,
        families=("cifar10", "cifar100", "tiny-imagenet"),
        remarks=(
            "The paper shows curves without saying at which β; the baselines it draws beside them it does not name.",
        ),
    ),
)
