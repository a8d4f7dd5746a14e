"""The paper's numbers in the items are those in its source, every one, in its row and column."""

from __future__ import annotations

import pytest
from latex_tables import Float, by_label, floats, needs_paper, rows

from cretta.augment import AUGMENTATIONS
from cretta.methods import get as method
from cretta.paper import NOT_RUN, items

PRINTED = [(name, label) for name, item in items().items() for label in item.printed]


@needs_paper
@pytest.mark.parametrize(("name", "label"), PRINTED)
def test_every_number_is_transcribed(name: str, label: str) -> None:
    assert dict(items()[name].printed[label]) == rows(by_label()[label].body)


@needs_paper
def test_every_table_and_figure_has_an_item_or_a_reason() -> None:
    covered = [label for item in items().values() for label in item.labels]
    assert len(covered) == len(set(covered))
    for each in floats():
        assert each.labels, f"{each.where} has no label"
        # A table that says the same twice has two labels.
        assert set(each.labels) <= set(covered) or set(each.labels) <= set(NOT_RUN), each.where
    assert set(covered) | set(NOT_RUN) == {label for each in floats() for label in each.labels}


@needs_paper
def test_every_table_of_results_has_its_numbers() -> None:
    printed = {label for _, label in PRINTED}
    for each in floats():
        if each.kind == "table" and not set(each.labels) & set(NOT_RUN):
            assert set(each.labels) & printed, each.where


@needs_paper
def test_items_stand_where_they_say() -> None:
    everything = floats()
    for item in items().values():
        own = [each for each in everything if set(each.labels) & set(item.labels)]
        assert item.where == _called(own)
        assert everything[item.order - 1] is own[0]


@needs_paper
def test_the_presets_are_the_table_of_settings() -> None:
    found = rows(by_label()["tab:hyperparam"].body)
    for row, preset in (("CIFAR10-C", "cifar10"), ("CIFAR100-C", "cifar100"), ("TinyImageNet-C", "tiny_imagenet")):
        settings = method("cretta").presets[preset]
        assert (settings["lr"], settings["beta"]) == found[row][:2]
        assert settings["augment"] in AUGMENTATIONS


def test_the_parser_reads_what_it_should() -> None:
    body = r"""
    \midrule\midrule
    \multicolumn{3}{l}{\emph{\textbf{Normalization}}}\\
    BN Adapt & 87.44\% & \underline{4.85\%} \\
    \midrule
    \rowcolor{gray!20}
    \textsc{CreTTA}  & \textbf{71.25}\% & -1e-3 \\
    5 ($P$) &
      \textbf{89.47} & 61.39\% (+0.65\%p) \\
    BN Adapt & 1 & 2 \\
    \bottomrule
    """
    assert rows(body) == {
        "BN Adapt": (87.44, 4.85),
        "CreTTA": (71.25, -0.001),
        "5 (P)": (89.47, 61.39, 0.65),
        "BN Adapt again": (1, 2),
    }


def _called(own: list[Float]) -> str:
    """ "Table 1", "Tables 4 and 13", "Figures 5, 6 and 7"."""
    numbers = [str(each.number) for each in own]
    kind = own[0].kind.capitalize()
    if len(numbers) == 1:
        return f"{kind} {numbers[0]}"
    return f"{kind}s {', '.join(numbers[:-1])} and {numbers[-1]}"
