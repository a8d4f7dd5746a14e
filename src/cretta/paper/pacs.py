"""Table 2: PACS, each domain in turn the source of a network that meets the three others."""

from __future__ import annotations

import dataclasses

from cretta.bench import Run
from cretta.data.pacs import DOMAINS
from cretta.paper.comparison import CRETTA, Kind, Variant
from cretta.paper.item import Item, joined, unique
from cretta.paper.readings import Readings, accuracy, calibration_error, mean
from cretta.paper.scale import Scale
from cretta.report.content import Cell, Chart, Column, Row, Table

VARIANTS = (Variant("TENT", "tent"), Variant("TEA", "tea"), CRETTA)
MEASURES: tuple[tuple[str, Kind], ...] = (("Acc", "accuracy"), ("ECE", "calibration error"))

# Sources: photo, art painting, cartoon, sketch; and their average.
PRINTED = {
    "Acc TENT": (51.52, 63.50, 62.81, 37.49, 53.83),
    "Acc TEA": (45.55, 57.95, 54.24, 30.80, 47.14),
    "Acc CreTTA": (53.06, 66.13, 64.18, 36.06, 54.86),
    "ECE TENT": (44.41, 35.20, 34.69, 58.63, 43.23),
    "ECE TEA": (41.71, 34.62, 35.02, 50.26, 40.40),
    "ECE CreTTA": (37.42, 28.22, 26.65, 51.68, 35.99),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Pacs(Item):
    """Accuracy and ECE by source domain, each the mean over the other three."""

    def plan(self, scale: Scale) -> tuple[Run, ...]:
        """Every method from every source to every other domain."""
        return unique(
            [run for variant in VARIANTS for groups in self._groups(scale, variant) for run in joined(groups)]
        )

    def draw(self, readings: Readings, scale: Scale) -> tuple[Table | Chart, ...]:
        """The table; the best of a column are those of its half."""
        tables = []
        for heading, kind in MEASURES:
            rows = tuple(
                Row(variant.label, self._cells(readings, scale, variant, heading, kind)) for variant in VARIANTS
            )
            columns = tuple(
                Column(title, better="higher" if kind == "accuracy" else "lower")
                for title in (*(domain.replace("_", " ") for domain in DOMAINS), "average")
            )
            title = f"{self.title}: {'accuracy' if kind == 'accuracy' else 'calibration error'}"
            name = f"{self.name}-{heading.lower()}"
            tables.append(Table(name, title, "Method", columns, rows, self.notes(readings, scale)))
        return tuple(tables)

    def _groups(self, scale: Scale, variant: Variant) -> list[list[list[Run]]]:
        """For each source, for each seed, the runs to the other domains."""
        family = scale.family("pacs")
        return [
            variant.groups(scale, family.source(source), [domain for domain in DOMAINS if domain != source])
            for source in DOMAINS
        ]

    def _cells(self, readings: Readings, scale: Scale, variant: Variant, heading: str, kind: Kind) -> tuple[Cell, ...]:
        value = accuracy if kind == "accuracy" else calibration_error
        printed = self.printed[self.labels[0]][f"{heading} {variant.label}"]
        groups = self._groups(scale, variant)
        cells = [readings.cell(group, value, number) for group, number in zip(groups, printed, strict=False)]
        each_seed = [joined(of_seed) for of_seed in zip(*groups, strict=True)]
        # Every source has as many targets, so that the mean over all runs is the mean of the sources' means.
        return (*cells, readings.cell(each_seed, lambda results: mean([value([one]) for one in results]), printed[-1]))


ITEMS = (
    Pacs(
        name="pacs",
        title="PACS by source domain",
        where="Table 2",
        labels=("tab:pacs_accece",),
        order=5,
        families=("pacs",),
        printed={"tab:pacs_accece": PRINTED},
        remarks=("A number is the mean over the three other domains, each met by the network anew.",),
    ),
)
