"""How much of the paper is run: a smoke test of minutes, a look of hours, the main tables in a day, or all of it."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from cretta.bench import Buffer, Run
from cretta.data.registry import dataset
from cretta.data.releases import data_root
from cretta.options import known
from cretta.paper.family import WORST, Family, is_mild


@dataclasses.dataclass(frozen=True)
class Scale:
    """What each family is run with, and how often."""

    name: str
    about: str
    families: Mapping[str, Family]
    seeds: tuple[int, ...]
    betas: tuple[float, ...]
    """The β of the sweep; the paper shows it as curves without saying which."""
    comparable: bool = True
    """Whether differences to the paper's numbers mean anything."""

    def family(self, name: str) -> Family:
        """Return the family of that name."""
        return self.families[known("family", name, self.families)]

    def seeds_of(self, method: str, family: Family | None = None, *, mild: bool = False) -> tuple[int, ...]:
        """Return the seeds to run a method with: Source predicts the same in any order, so that one is enough.

        ``mild``: for streams of which some are below severity 5; none where the family does not run the method there.
        """
        if mild and family and family.mild and method not in family.mild:
            return ()
        seeds = self.seeds if mild or not family or method not in family.seeds else tuple(range(family.seeds[method]))
        return seeds[:1] if method == "source" else seeds

    def resolve(self, root: str | Path | None = None, models: str | Path | None = None) -> Scale:
        """Return the scale with the folder of its networks, by default the folder models of the data ``root``.

        Families whose dataset is not installed use their fallback, if they have one.
        """
        home = data_root(root)
        folders = {"root": str(home), "models": str(models or home / "models")}
        families = {}
        for name, family in self.families.items():
            resolved = family.resolve(**folders)
            clean = resolved.record.clean
            if resolved.fallback and clean is not None and clean.find(home) is None:
                resolved = dataclasses.replace(resolved, data=resolved.fallback)
            families[name] = resolved
        return dataclasses.replace(self, families=families)

    def with_models(self, models: Mapping[str, str]) -> Scale:
        """Return the scale with the user's own networks, by family; for pacs, {source} stands for the source domain."""
        changed = {
            name: dataclasses.replace(self.family(name), model=spec, network=f"{spec}, chosen by the user", train="")
            for name, spec in models.items()
        }
        return dataclasses.replace(self, families={**self.families, **changed})


def _scale(name: str, record: dict[str, Any]) -> Scale:
    record = dict(record)
    own = record.pop("families", {})
    # Families that the scale does not name are as in the scale of the others, if it has one.
    others = _DATA["scales"][record.pop("others")]["families"] if "others" in record else own
    families = {}
    for key, fields in _DATA["families"].items():
        entries = own if key in own else others
        families[key] = _family(key, fields, entries.get("all", {}), entries.get(key, {}))
    return Scale(name, **_tuples({**record, "families": families}))


def _family(name: str, *records: dict[str, Any]) -> Family:
    fields = {key: value for record in records for key, value in record.items()}
    remarks = [remark for record in records for remark in record.get("remarks", ())]
    return Family(name=name, **_tuples({**fields, "remarks": remarks}))


def _tuples(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()}


_DATA = tomllib.loads((resources.files("cretta.paper") / "scales.toml").read_text("utf-8"))
SCALES = {name: _scale(name, record) for name, record in _DATA["scales"].items()}
SMOKE, QUICK, DAY, FULL = (SCALES[name] for name in ("smoke", "quick", "day", "full"))


def scale(name: str) -> Scale:
    """Return the scale of that name.

    >>> scale("smoke").family("cifar10").data
    'embedded'
    """
    return SCALES[known("scale", name, SCALES)]


def stages(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Return runs in the order in which they count, by title.

    Severity 5 of each dataset comes before milder ones. First, with one seed, the main methods as the paper runs them,
    then everything else, dataset by dataset; then further seeds.

    >>> from cretta.data.domains import Domain
    >>> family = SMOKE.family("cifar10")
    >>> runs = [family.run(Domain("fog", severity), seed=seed) for seed in (0, 1) for severity in (1, 5)]
    >>> list(stages([*runs, family.run(Domain("fog", 5), method="tea")]))  # doctest: +NORMALIZE_WHITESPACE
    ['CIFAR10-C, main methods', 'CIFAR10-C, others', 'CIFAR10-C, further seeds',
     'CIFAR10-C below severity 5, main methods', 'CIFAR10-C below severity 5, further seeds']
    """
    parts: dict[tuple[bool, bool, int, int], list[Run]] = {}
    titles: list[str] = []
    for run in runs:
        title = dataset(run.data).title
        titles += [] if title in titles else [title]
        parts.setdefault((is_mild(run.domains), run.seed > 0, titles.index(title), _group(run)), []).append(run)
    return {
        f"{titles[title]}{f' below severity {WORST}' if mild else ''}, {_GROUPS[group]}": part
        for (mild, _, title, group), part in sorted(parts.items(), key=lambda part: part[0])
    }


MAIN = ("source", "bn_adapt", "tent", "cretta")
"""The methods that are run first."""
_GROUPS = ("main methods", "others", "further seeds")


def _group(run: Run) -> int:
    """Return the index in ``_GROUPS``; settings of a method other than its preset are not the paper's main ones."""
    if run.seed:
        return 2
    return int(run.method not in MAIN or bool(run.options) or run.buffer != Buffer())
