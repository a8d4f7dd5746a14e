"""What runs need that is not installed, and how to get it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from cretta.bench import Run, RunContext
from cretta.errors import CrettaError
from cretta.paper.scale import Scale


def missing(runs: Iterable[Run], scale: Scale, context: RunContext) -> dict[Run, str]:
    """Return the runs that cannot be done, each with the reason and what to do."""
    reasons: dict[tuple[object, ...], str] = {}
    lacking = {}
    for run in runs:
        key = (run.data, run.size, run.domains, run.model, run.method, run.preset, run.options, run.buffer.data)
        if key not in reasons:
            reasons[key] = _reason(run, scale, context)
        if reasons[key]:
            lacking[run] = reasons[key]
    return lacking


def _reason(run: Run, scale: Scale, context: RunContext) -> str:
    try:
        context.key(run)
    except CrettaError as error:
        # What the network's own code says is clearer than that it failed.
        message = str(error.__cause__ if isinstance(error.__cause__, CrettaError) else error)
        if not run.model.endswith(".safetensors") or Path(run.model).exists():
            return message
        try:
            # Networks are trained on the data, so that these come first.
            context.benchmark(run.data, run.size).training()
        except CrettaError as data_error:
            return str(data_error)
        return _how_to_train(run.model, scale) or message
    return ""


def _how_to_train(model: str, scale: Scale) -> str:
    """Name the command for a network, if there is one; all source domains of PACS have the same."""
    families = [family for family in scale.families.values() if any(m.model == model for m in family.members())]
    family = next((family for family in families if family.train), None)
    if family is None:
        return ""
    every = " for every source domain" if "{source}" in family.model else ""
    folder = Path(model).parent
    command = family.train if folder.is_dir() else f"mkdir -p {folder} && {family.train}"
    return f"{family.model} does not exist{every}. Make it with: {command}"
