"""The numbers of printed.toml are those of the paper's source, every one, in its row and column."""

from __future__ import annotations

import pytest
from latex_tables import by_label, floats, rows

from cretta.augment import AUGMENTATIONS
from cretta.methods import get as method
from cretta.paper import items
from cretta.paper.printed import paper_data, printed

NOT_RUN = paper_data()["not_run"]
TABLES = [label for table in floats() if table.kind == "table" for label in table.labels if label not in NOT_RUN]
SECOND_LABEL = "tab:contrastive_ablation"
"""Another label of a table."""


@pytest.mark.parametrize("label", [label for label in TABLES if label != SECOND_LABEL])
def test_every_number_is_transcribed(label: str) -> None:
    assert dict(printed(label)) == rows(by_label()[label].body)


def test_every_table_and_figure_has_an_item_or_a_reason() -> None:
    covered = [label for item in items().values() for label in item.labels]
    assert len(covered) == len(set(covered))
    assert set(covered) | set(NOT_RUN) == {label for table in floats() for label in table.labels}


def test_items_are_numbered_and_ordered_as_in_the_paper() -> None:
    everything = floats()
    names = []
    for item in items().values():
        if not item.labels:
            assert item.where == "not in the paper"
            continue
        own = [table for table in everything if set(table.labels) & set(item.labels)]
        numbers = [
            sum(other.kind == table.kind for other in everything[: everything.index(table) + 1]) for table in own
        ]
        assert item.where.startswith(own[0].kind.capitalize())
        assert [int(word) for word in item.where.replace(",", "").split() if word.isdigit()] == numbers
        names.append(everything.index(own[0]))
    assert names == sorted(names)
    assert items()["ece-severity"].where == "Figures 5, 6 and 7"


def test_the_presets_are_the_table_of_settings() -> None:
    table = rows(by_label()["tab:hyperparam"].body)
    for row, preset in (("CIFAR10-C", "cifar10"), ("CIFAR100-C", "cifar100"), ("TinyImageNet-C", "tiny-imagenet")):
        settings = method("cretta").presets[preset]
        assert (settings["lr"], settings["beta"]) == table[row][:2]
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
