# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Which method for my stream?
#
# Four methods on the same stream: 120 CIFAR-10 test images in fog, then 120 with noise, without a reset. The numbers of
# so short a stream mean little; raise `IMAGES` for your own.

# %%
import dataclasses
from pathlib import Path

import matplotlib.pyplot as plt

from cretta.bench import Buffer, Domain, Run, RunContext, Store, run_all

IMAGES = 120
METHODS = ("source", "bn_adapt", "tent", "cretta")

# %% [markdown]
# A run is described completely. Results are stored, and none is computed twice: run this cell again, and it is instant.

# %%
base = Run(
    data="embedded",
    domains=(Domain("fog", 5), Domain("gaussian_noise", 5)),
    stream="continual",
    model="wrn-40-2-cifar10",
    images=IMAGES,
    batch_size=40,
    buffer=Buffer(size=200),
)
runs = [dataclasses.replace(base, method=method) for method in METHODS]
results = dict(run_all(runs, Store(Path("results")), RunContext()))

# %% [markdown]
# Accuracy, calibration error and overconfidence of the whole stream:

# %%
for run, result in results.items():
    scores = result.scores
    gap = scores.bins.mean_confidence - scores.accuracy
    print(f"{run.method:10} accuracy {scores.accuracy:.1%}  ECE {scores.calibration_error:.1%}  gap {gap:+.1%}")

# %% [markdown]
# And over the batches:

# %%
figure, axes = plt.subplots()
for run, result in results.items():
    axes.plot([row.right / row.images for row in result.rows], label=run.method)
axes.set(xlabel="batch", ylabel="accuracy")
axes.legend()
figure.savefig("comparison.png")
