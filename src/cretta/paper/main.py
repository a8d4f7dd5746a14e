"""The methods compared: Tables 1, 2, 3, 4, 9, 12 and 13, Figures 2, 3, 5, 6, 7, 10, 11 and 12."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cretta.bench import Result
from cretta.data.corruptions import SEVERITIES
from cretta.data.domains import CLEAN
from cretta.data.pacs import DOMAINS
from cretta.paper.family import WORST
from cretta.paper.item import Item, printed
from cretta.paper.readings import (
    Readings,
    Value,
    Variant,
    accuracy,
    by_seed,
    calibration_error,
    calibration_errors,
    confidences,
    mean,
    running_accuracies,
    running_calibration_errors,
)
from cretta.paper.shapes import (
    ACCURACY,
    BENCHMARKS,
    CALIBRATION_ERROR,
    CORRUPTION_ERROR,
    CRETTA,
    SOURCE,
    TEA,
    TENT,
    at_severity,
    chart,
    comparison,
    curves,
    sweep,
)
from cretta.report.content import Chart, Column, Row, Table

METHODS = (
    SOURCE,
    Variant("BN Adapt", "bn_adapt", group="Normalization"),
    Variant("PL", "pl", group="Pseudo labeling"),
    Variant("SHOT", "shot", group="Pseudo labeling"),
    Variant("TENT", "tent", group="Entropy minimization"),
    Variant("ETA", "eta", group="Entropy minimization"),
    Variant("EATA", "eata", group="Entropy minimization"),
    Variant("SAR", "sar", group="Entropy minimization"),
    Variant("AEA", "aea", group="Entropy minimization"),
    Variant("TEA", "tea", group="Energy-based models"),
    Variant("CreTTA", group="Energy-based models"),
)
THREE = (TENT, TEA, CRETTA)
DELTAS = (10.0, 1.0, 0.1, 0.01)
STAGES = ("Source (Q)", "1", "2", "3", "4", "5 (P)", "Source (Q) again")
"""Of gradual shift."""


def by_severity(item: Item, readings: Readings) -> Iterator[Chart]:
    """Draw ECE by severity: a chart for each family, a line for each method."""
    for name in BENCHMARKS:
        family = readings.scale.family(name)
        lines = {
            variant.label: [
                (float(severity), readings.groups(family, variant, at_severity(severity, family.some)))
                for severity in family.severities
            ]
            for variant in METHODS
        }
        panel = sweep(readings, family.title, ("severity", "ECE, % ↓"), calibration_error, lines)
        yield chart(item, panel, family=family)


def overconfidence(item: Item, readings: Readings) -> Iterator[Chart]:
    """Draw confidence and ECE of TENT and CreTTA: a chart for each family, a line for each severity."""
    for name in BENCHMARKS:
        family = readings.scale.family(name)
        panels = [
            curves(
                readings,
                f"{variant.label}: {title}",
                y,
                curve,
                {
                    f"severity {severity}": readings.groups(family, variant, at_severity(severity, family.some))
                    for severity in family.severities
                },
            )
            for title, y, curve in (
                ("confidence", "mean confidence, %", confidences),
                ("ECE", "ECE, % ↓", calibration_errors),
            )
            for variant in (TENT, CRETTA)
        ]
        yield chart(item, *panels, family=family)


def over_batches(item: Item, readings: Readings) -> Iterator[Chart]:
    """Draw ECE and accuracy of the stream so far, on ImageNet-C at severity 5."""
    family = readings.scale.family("imagenet")
    streams = at_severity(WORST, family.corruptions)
    lines = {variant.label: readings.groups(family, variant, streams) for variant in THREE}
    yield chart(
        item,
        curves(readings, "ECE", "ECE of the stream so far, % ↓", running_calibration_errors, lines),
        curves(readings, "Acc", "Acc of the stream so far, % ↑", running_accuracies, lines),
    )


def by_corruption(item: Item, readings: Readings) -> Iterator[Chart]:
    """Draw ECE of each corruption of ImageNet-C, averaged over severities."""
    family = readings.scale.family("imagenet")
    lines = {
        variant.label: [
            (name, readings.groups(family, variant, [f"{name}/{severity}" for severity in family.severities]))
            for name in family.some
        ]
        for variant in THREE
    }
    yield chart(item, sweep(readings, "ImageNet-C", ("corruption", "ECE, % ↓"), calibration_error, lines, "bar"))


def pacs(item: Item, readings: Readings) -> Iterator[Table]:
    """Draw accuracy and ECE by source domain, each the mean over the other three domains."""
    numbers = printed(item.labels[0])
    family = readings.scale.family("pacs")
    for quantity, words in ((ACCURACY, "accuracy"), (CALIBRATION_ERROR, "calibration error")):
        titles = (*(source.replace("_", " ") for source in DOMAINS), "average")
        rows = []
        for variant in THREE:
            sources = [
                readings.groups(family.source(source), variant, [domain for domain in DOMAINS if domain != source])
                for source in DOMAINS
            ]
            # Every source has as many targets, so that the mean over all runs is the mean of the sources' means.
            cells = [
                readings.cell(groups, quantity.value, number)
                for groups, number in zip(
                    (*sources, by_seed(sources)), numbers[f"{quantity.title} {variant.label}"], strict=True
                )
            ]
            rows.append(Row(variant.label, tuple(cells)))
        columns = tuple(Column(title, better=quantity.better) for title in titles)
        name, title = f"{item.name}-{quantity.title.lower()}", f"{item.title}: {words}"
        yield Table(name, title, "Method", columns, tuple(rows))


def non_iid(item: Item, readings: Readings) -> Iterator[Table]:
    """Draw accuracy by δ of the Dirichlet distribution, at severity 5."""
    family = readings.scale.family("cifar100-wide")
    streams = at_severity(WORST, family.some)
    numbers = printed(item.labels[0])
    rows = []
    for variant in METHODS:
        if variant.label not in numbers:
            continue
        settings = [readings.groups(family, variant, streams, stream="dirichlet", delta=delta) for delta in DELTAS]
        cells = [
            readings.cell(groups, accuracy, number)
            for groups, number in zip((*settings, by_seed(settings)), numbers[variant.label], strict=True)
        ]
        rows.append(Row(variant.label, tuple(cells)))
    titles = (*(f"δ = {delta:g}" for delta in DELTAS), "average")
    columns = tuple(Column(title, better="higher") for title in titles)
    yield Table(item.name, item.title, "Method", columns, tuple(rows))


def gradual(item: Item, readings: Readings) -> Iterator[Table]:
    """Draw accuracy in each domain of a gradual shift, by family and method."""
    shorter, longer = (printed(label) for label in item.labels)
    numbers = {
        # Only the table without TENT returns to the source.
        stage: longer[stage] if stage in longer else (*shorter[stage][:2], None, *shorter[stage][2:], None)
        for stage in STAGES
    }
    columns, groups = [], []
    for name in ("cifar10", "cifar100"):
        family = readings.scale.family(name)
        for variant in (CRETTA, TEA, TENT):
            columns.append(Column(variant.label, family.title, "higher"))
            groups.append(
                readings.groups(
                    family,
                    variant,
                    [(CLEAN, *at_each_severity(name), CLEAN) for name in family.gradual],
                    stream="gradual",
                    images=family.gradual_images,
                )
            )
    rows = tuple(
        Row(
            stage,
            tuple(
                readings.cell(runs, accuracy_at(index), number)
                for runs, number in zip(groups, numbers[stage], strict=True)
            ),
        )
        for index, stage in enumerate(STAGES)
    )
    yield Table(item.name, item.title, "Domain", tuple(columns), rows, best_of="row")


def at_each_severity(corruption: str) -> list[str]:
    """Return the domains of a corruption from the lowest severity to the highest."""
    return [f"{corruption}/{severity}" for severity in SEVERITIES]


def accuracy_at(stage: int) -> Value:
    """Return the accuracy in percent, in the domain of this stage."""

    def value(results: Sequence[Result]) -> float:
        return 100 * mean([result.of(result.run.label(stage)).accuracy for result in results])

    return value


ITEMS = (
    Item(
        name="main",
        title="Mean corruption error and calibration error",
        labels=("tab:AccCompare",),
        draw=comparison(
            METHODS,
            BENCHMARKS,
            (
                (CORRUPTION_ERROR, "worst"),
                (CALIBRATION_ERROR, "worst"),
                (CORRUPTION_ERROR, "average"),
                (CALIBRATION_ERROR, "average"),
            ),
            ablation=False,
        ),
    ),
    Item(
        name="accuracy",
        title="Accuracy and calibration error, with clean images",
        labels=("tab:AccCompare_withclean",),
        draw=comparison(
            METHODS,
            BENCHMARKS,
            (
                (ACCURACY, "clean"),
                (ACCURACY, "worst"),
                (CALIBRATION_ERROR, "worst"),
                (ACCURACY, "average"),
                (CALIBRATION_ERROR, "average"),
            ),
            ablation=False,
        ),
    ),
    Item(
        name="ece-severity",
        title="Calibration error by severity",
        labels=("fig:ece_cifar10", "fig:ece_cifar100", "fig:ece_imagenet"),
        draw=by_severity,
        remarks=("Which methods the paper draws cannot be read from its text: here all.",),
    ),
    Item(
        name="overconfidence",
        title="Confidence and calibration error during adaptation",
        labels=("fig:overconfidence", "fig:tent_vs_ours_cifar100", "fig:tent_vs_ours_tin200"),
        draw=overconfidence,
        remarks=("Each point is one batch, the mean over corruptions; a batch's own ECE lies above the stream's.",),
    ),
    Item(
        name="imagenet",
        title="Accuracy and calibration error on ImageNet-C",
        labels=("tab:imagenet_c",),
        draw=comparison(
            THREE,
            ("imagenet",),
            (
                (ACCURACY, "worst"),
                (CALIBRATION_ERROR, "worst"),
                (ACCURACY, "average"),
                (CALIBRATION_ERROR, "average"),
            ),
            ablation=False,
        ),
    ),
    Item(
        name="imagenet-batches",
        title="ECE and accuracy over batches, ImageNet-C at severity 5",
        labels=("fig:imagenetc_ece_acc",),
        draw=over_batches,
    ),
    Item(
        name="imagenet-corruptions",
        title="ECE by corruption, ImageNet-C, averaged over severities",
        labels=("fig:ece_image",),
        draw=by_corruption,
        remarks=("The paper states the averages over all corruptions: TENT 4.85, TEA 7.21, CreTTA 2.69.",),
    ),
    Item(
        name="pacs",
        title="PACS by source domain",
        labels=("tab:pacs_accece",),
        draw=pacs,
        remarks=("A number is the mean over the three other domains; the network starts from its weights on each.",),
    ),
    Item(
        name="non-iid",
        title="Accuracy with batches that are not i.i.d., CIFAR100-C at severity 5",
        labels=("tab:imbalance",),
        draw=non_iid,
        remarks=(
            "How the paper spreads a class over batches is not printed: here in proportions from a symmetric "
            "Dirichlet(δ), the samples then cut into batches of equal size.",
        ),
    ),
    Item(
        name="gradual",
        title="Accuracy under gradual shift, and back on the source",
        labels=("tab:gradual", "tab:gradual_app"),
        draw=gradual,
        remarks=(
            "Each corruption is a stream of its own, from the clean test set through severities 1 to 5 without a "
            "reset; then the model is frozen and predicts the clean test set again.",
        ),
    ),
)
