"""Tables 1 and 9: every method on the three corruption benchmarks."""

from __future__ import annotations

from cretta.paper.comparison import SOURCE, Comparison, Measure, Variant

BENCHMARKS = ("cifar10", "cifar100", "tiny-imagenet")

BASELINES = (
    Variant("BN Adapt", "bn_adapt", group="Normalization"),
    Variant("PL", "pl", group="Pseudo labeling"),
    Variant("SHOT", "shot", group="Pseudo labeling"),
    Variant("TENT", "tent", group="Entropy minimization"),
    Variant("ETA", "eta", group="Entropy minimization"),
    Variant("EATA", "eata", group="Entropy minimization"),
    Variant("SAR", "sar", group="Entropy minimization"),
    Variant("AEA", "aea", group="Entropy minimization"),
    Variant("TEA", "tea", group="Energy-based models"),
)
METHODS = (SOURCE, *BASELINES, Variant("CreTTA", group="Energy-based models"))

# For each benchmark: mCE and ECE at severity 5, mCE and ECE over all severities.
ERRORS = {
    "Source": (100.00, 10.18, 100.00, 5.45, 100.00, 17.71, 100.00, 11.73, 100.00, 16.17, 100.00, 13.46),
    "BN Adapt": (87.44, 4.85, 101.48, 3.15, 86.61, 8.32, 96.81, 6.88, 94.39, 13.66, 98.20, 12.12),
    "PL": (84.94, 10.10, 90.03, 6.20, 93.31, 23.81, 95.57, 16.66, 99.36, 30.95, 98.93, 23.47),
    "SHOT": (73.46, 5.42, 86.46, 3.86, 78.71, 8.93, 88.48, 7.44, 94.01, 13.81, 97.79, 12.24),
    "TENT": (73.91, 5.49, 86.83, 3.89, 78.94, 8.93, 88.68, 7.47, 94.03, 13.82, 97.81, 12.24),
    "ETA": (87.44, 4.85, 101.47, 3.15, 84.44, 8.54, 94.54, 7.10, 94.29, 13.70, 98.08, 12.16),
    "EATA": (87.44, 4.85, 101.47, 3.15, 84.38, 8.54, 94.57, 7.11, 94.27, 13.70, 98.07, 12.16),
    "SAR": (81.40, 4.79, 95.59, 3.13, 82.43, 8.31, 92.55, 6.91, 94.31, 13.72, 98.11, 12.16),
    "AEA": (71.69, 5.09, 85.85, 3.73, 78.79, 9.16, 88.66, 7.61, 93.97, 13.82, 97.75, 12.25),
    "TEA": (73.18, 3.83, 88.11, 2.68, 80.47, 7.68, 91.02, 6.33, 93.84, 13.84, 97.57, 12.24),
    "CreTTA": (71.25, 4.15, 84.40, 2.88, 78.39, 7.99, 87.67, 6.82, 93.20, 13.52, 96.31, 11.85),
}

# For each benchmark: accuracy on clean images, accuracy and ECE at severity 5, and over all severities.
ACCURACIES = {
    "Source": (
        *(95.08, 81.73, 10.18, 88.82, 5.45),
        *(76.28, 53.25, 17.71, 64.11, 11.73),
        *(59.60, 35.12, 16.17, 43.16, 13.46),
    ),
    "BN Adapt": (
        *(93.59, 85.46, 4.85, 89.12, 3.15),
        *(72.84, 60.74, 8.32, 65.83, 6.88),
        *(56.72, 39.60, 13.66, 44.72, 12.12),
    ),
    "PL": (
        *(94.85, 84.85, 10.10, 90.09, 6.20),
        *(75.98, 56.33, 23.81, 65.72, 16.66),
        *(58.95, 35.40, 30.95, 43.79, 23.47),
    ),
    "SHOT": (
        *(94.38, 87.91, 5.42, 90.78, 3.86),
        *(75.00, 64.41, 8.93, 68.80, 7.44),
        *(56.90, 39.84, 13.81, 44.95, 12.24),
    ),
    "TENT": (
        *(94.35, 87.84, 5.49, 90.74, 3.89),
        *(74.95, 64.31, 8.93, 68.73, 7.47),
        *(56.92, 39.83, 13.82, 44.94, 12.24),
    ),
    "ETA": (
        *(93.72, 85.46, 4.85, 89.12, 3.15),
        *(73.71, 61.77, 8.54, 66.66, 7.10),
        *(56.82, 39.67, 13.70, 44.79, 12.16),
    ),
    "EATA": (
        *(93.72, 85.46, 4.85, 89.12, 3.15),
        *(73.66, 61.79, 8.54, 66.65, 7.11),
        *(56.86, 39.68, 13.70, 44.79, 12.16),
    ),
    "SAR": (
        *(93.61, 86.54, 4.79, 89.80, 3.13),
        *(73.73, 62.71, 8.31, 67.36, 6.91),
        *(56.77, 39.66, 13.72, 44.77, 12.16),
    ),
    "AEA": (
        *(94.21, 88.27, 5.09, 90.88, 3.73),
        *(75.17, 64.40, 9.16, 68.75, 7.61),
        *(56.97, 39.87, 13.82, 44.97, 12.25),
    ),
    "TEA": (
        *(94.06, 88.06, 3.83, 90.67, 2.68),
        *(74.18, 63.66, 7.68, 67.93, 6.33),
        *(57.17, 39.96, 13.84, 45.08, 12.24),
    ),
    "CreTTA": (
        *(94.43, 88.30, 4.15, 91.01, 2.88),
        *(75.26, 64.52, 7.99, 69.05, 6.82),
        *(58.23, 40.30, 13.52, 45.75, 11.85),
    ),
}

ITEMS = (
    Comparison(
        name="main",
        title="Mean corruption error and calibration error",
        where="Table 1",
        labels=("tab:AccCompare",),
        order=2,
        families=BENCHMARKS,
        variants=METHODS,
        measures=(
            Measure("corruption error", "worst"),
            Measure("calibration error", "worst"),
            Measure("corruption error", "average"),
            Measure("calibration error", "average"),
        ),
        ablation=False,
        printed={"tab:AccCompare": ERRORS},
    ),
    Comparison(
        name="accuracy",
        title="Accuracy and calibration error, with clean images",
        where="Table 9",
        labels=("tab:AccCompare_withclean",),
        order=13,
        families=BENCHMARKS,
        variants=METHODS,
        measures=(
            Measure("accuracy", "clean"),
            Measure("accuracy", "worst"),
            Measure("calibration error", "worst"),
            Measure("accuracy", "average"),
            Measure("calibration error", "average"),
        ),
        ablation=False,
        printed={"tab:AccCompare_withclean": ACCURACIES},
    ),
)
