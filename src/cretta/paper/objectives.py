"""Tables 14, 19 and 22: CreTTA's objective without the source model, with random weights, and with all pairs."""

from __future__ import annotations

import dataclasses

from cretta.paper.comparison import CRETTA, Comparison, Measure, Variant
from cretta.paper.main import BENCHMARKS

ACCURACY = Measure("accuracy", "worst")
BOTH = (ACCURACY, Measure("calibration error", "worst"))

# Accuracy and ECE at severity 5 on the three benchmarks.
SOURCE_MODEL = {
    "CreTTA": (88.30, 4.15, 64.52, 7.99, 40.30, 13.52),
    "w/o Source Model Term": (88.09, 4.66, 60.02, 5.93, 37.46, 14.55),
}
UNIFORM = {
    "CreTTA": (88.30, 4.15, 64.52, 7.99, 40.30, 13.52),
    "Uniform": (87.47, 4.13, 61.66, 8.03, 38.33, 15.13),
}
# Accuracy at severity 5 on the three benchmarks.
PAIRS = {
    "CreTTA w/o CP": (88.30, 64.52, 40.30),
    "CreTTA w/ CP": (88.24, 64.69, 40.44),
}

ITEMS = (
    Comparison(
        name="source-model",
        title="CreTTA without the source model's terms, at severity 5",
        where="Table 14",
        labels=("tab:loss_abla",),
        order=21,
        families=BENCHMARKS,
        variants=(CRETTA, Variant("w/o Source Model Term", options={"objective": "pairwise"})),
        measures=BOTH,
        printed={"tab:loss_abla": SOURCE_MODEL},
    ),
    Comparison(
        name="uniform-weight",
        title="CreTTA with gradient weights drawn from U[0, 1), at severity 5",
        where="Table 19",
        labels=("tab:grad_coeff_uniform",),
        order=26,
        families=BENCHMARKS,
        variants=(CRETTA, Variant("Uniform", options={"weighting": "uniform"})),
        measures=BOTH,
        printed={"tab:grad_coeff_uniform": UNIFORM},
        remarks=("The table in the paper does not say that it is of severity 5; its first row is that of Table 9.",),
    ),
    Comparison(
        name="pairs",
        title="One source sample for each target sample, or all pairs (CP), at severity 5",
        where="Table 22",
        labels=("tab:grouping",),
        order=29,
        families=BENCHMARKS,
        variants=(
            dataclasses.replace(CRETTA, label="CreTTA w/o CP"),
            Variant("CreTTA w/ CP", options={"pairs": "cartesian"}),
        ),
        measures=(ACCURACY,),
        first="Pairs",
        printed={"tab:grouping": PAIRS},
        remarks=("The table in the paper does not say that it is of severity 5; its first row is that of Table 9.",),
    ),
)
