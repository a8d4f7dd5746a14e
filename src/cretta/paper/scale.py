"""How much of the paper is run: a smoke test of minutes, a look of hours, or all of it."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from cretta.data.releases import data_root
from cretta.options import known
from cretta.paper.family import Family


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

    def seeds_of(self, method: str) -> tuple[int, ...]:
        """Return the seeds to run a method with: Source predicts the same in any order, so that one is enough."""
        return self.seeds[:1] if method == "source" else self.seeds

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
    own = record.get("families", {})
    families = {
        key: _family(key, fields, own.get("all", {}), own.get(key, {})) for key, fields in _DATA["families"].items()
    }
    return Scale(name, **_tuples({**record, "families": families}))


def _family(name: str, *records: dict[str, Any]) -> Family:
    fields = {key: value for record in records for key, value in record.items()}
    remarks = [remark for record in records for remark in record.get("remarks", ())]
    return Family(name=name, **_tuples({**fields, "remarks": remarks}))


def _tuples(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in fields.items()}


_DATA = tomllib.loads((resources.files("cretta.paper") / "scales.toml").read_text("utf-8"))
SCALES = {name: _scale(name, record) for name, record in _DATA["scales"].items()}
SMOKE, QUICK, FULL = (SCALES[name] for name in ("smoke", "quick", "full"))


def scale(name: str) -> Scale:
    """Return the scale of that name.

    >>> scale("smoke").family("cifar10").data
    'embedded'
    """
    return SCALES[known("scale", name, SCALES)]
