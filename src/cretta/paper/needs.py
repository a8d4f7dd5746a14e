"""What runs need that is not there, and how to get it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from cretta.bench import Run, RunContext
from cretta.data.pacs import DOMAINS
from cretta.errors import CrettaError
from cretta.paper.family import Family
from cretta.paper.scale import Scale


def missing(runs: Iterable[Run], scale: Scale, context: RunContext) -> dict[Run, str]:
    """The runs that cannot be done, each with what it needs; the others can."""
    told: dict[tuple[object, ...], str] = {}
    found = {}
    for run in runs:
        key = (run.data, run.size, run.domains, run.model, run.method, run.preset, run.options, run.buffer.data)
        if key not in told:
            told[key] = _reason(run, scale, context)
        if told[key]:
            found[run] = told[key]
    return found


def _reason(run: Run, scale: Scale, context: RunContext) -> str:
    try:
        context.key(run)
    except CrettaError as wrong:
        # What the network's own code says is plainer than that it failed.
        plain = str(wrong.__cause__ if isinstance(wrong.__cause__, CrettaError) else wrong)
        if not run.model.endswith(".safetensors") or Path(run.model).exists():
            return plain
        try:
            # Networks are trained on the data: these come first.
            context.benchmark(run.data, run.size).training()
        except CrettaError as first:
            return str(first)
        return f"{run.model} is not there. {_how(run, scale) or 'It is made when the data are there.'}"
    return ""


def _how(run: Run, scale: Scale) -> str:
    made = next((family.make for family in _each(scale) if family.model == run.model and family.make), "")
    folder = Path(run.model).parent
    first = "" if folder.is_dir() else f"mkdir -p {folder} && "
    return f"Make it with: {first}{made}" if made else ""


def _each(scale: Scale) -> Iterable[Family]:
    for family in scale.families.values():
        if family.name == "pacs":
            yield from (family.source(domain) for domain in DOMAINS)
        else:
            yield family
