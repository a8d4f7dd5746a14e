"""Tables in LaTeX, with the rules of booktabs."""

from __future__ import annotations

import re
from itertools import groupby, starmap

from cretta.report.content import Cell, Column, Table
from cretta.report.ranking import Mark, brackets, grouped_rows, heading, marks, notes, number, spread

_GREEK = {
    "α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "ε": "varepsilon", "η": "eta", "θ": "theta",
    "λ": "lambda", "μ": "mu", "π": "pi", "ρ": "rho", "σ": "sigma", "τ": "tau", "φ": "phi", "ψ": "psi", "ω": "omega",
    "Γ": "Gamma", "Δ": "Delta", "Θ": "Theta", "Λ": "Lambda", "Σ": "Sigma", "Φ": "Phi", "Ψ": "Psi", "Ω": "Omega",
}  # fmt: skip
_MATHS = {
    "↑": "uparrow", "↓": "downarrow", "→": "rightarrow", "±": "pm", "×": "times", "·": "cdot", "≤": "le", "≥": "ge",
    "≈": "approx", "∞": "infty",
}  # fmt: skip
_ESCAPES = {
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    **{letter: f"$\\{name}$" for letter, name in {**_GREEK, **_MATHS}.items()},
    "\\": "\\textbackslash{}",
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
    "<": "\\textless{}",
    ">": "\\textgreater{}",
    "|": "\\textbar{}",
    "–": "\\textendash{}",
    "−": "$-$",
    "…": "\\dots{}",
}


def latex(table: Table) -> str:
    r"""A LaTeX table that needs ``\usepackage{booktabs}``."""
    marked = marks(table)
    lines = [
        "% \\usepackage{booktabs}",
        "\\begin{table}",
        "\\centering",
        f"\\caption{{{escape(table.title)}}}",
        f"\\label{{tab:{re.sub('[^A-Za-z0-9]+', '-', table.name)}}}",
        f"\\begin{{tabular}}{{l{'r' * len(table.columns)}}}",
        "\\toprule",
        *_group_headings(table),
        _row(escape(table.first), *(escape(heading(column)) for column in table.columns)),
    ]
    for group, places in grouped_rows(table):
        lines.append("\\midrule")
        if group:
            lines.append(_row(f"\\multicolumn{{{len(table.columns) + 1}}}{{l}}{{\\emph{{{escape(group)}}}}}"))
        for place in places:
            row = table.rows[place]
            cells = starmap(_cell, zip(row.cells, table.columns, marked[place], strict=True))
            lines.append(_row(escape(row.label), *cells))
    lines += ["\\bottomrule", "\\end{tabular}"]
    below = [*brackets(table), *notes(table)]
    lines += [f"\\par\\smallskip{{\\footnotesize {escape(note)}\\par}}" for note in below]
    return "\n".join([*lines, "\\end{table}"]) + "\n"


def escape(text: str) -> str:
    """Plain text, on one line, whatever characters LaTeX has a meaning for."""
    told = "".join(_ESCAPES.get(letter, letter) for letter in " ".join(text.split()))
    told = re.sub("-(?=-)", "-{}", told)  # two hyphens would be a dash
    # A bracket first in a row would be read as an argument of the line break before it.
    return f"{{}}{told}" if told.startswith(("[", "*")) else told


def _group_headings(table: Table) -> list[str]:
    if not any(column.group for column in table.columns):
        return []
    heads, rules, start = [""], [], 2
    for group, members in groupby(table.columns, lambda column: column.group):
        end = start + len(list(members)) - 1
        heads.append(f"\\multicolumn{{{end - start + 1}}}{{c}}{{{escape(group)}}}")
        if group:
            rules.append(f"\\cmidrule(lr){{{start}-{end}}}")
        start = end + 1
    return [_row(*heads), " ".join(rules)]


def _row(*cells: str) -> str:
    return " & ".join(cells) + " \\\\"


def _cell(cell: Cell, column: Column, mark: Mark) -> str:
    if cell.value is None:
        text = "\\textendash"
    else:
        text = _signed(number(cell.value, column.digits))
        text = {"best": f"\\textbf{{{text}}}", "second": f"\\underline{{{text}}}", "": text}[mark]
        if deviation := spread(cell, column):
            text += f" {{\\scriptsize $\\pm$ {deviation}}}"
    if cell.printed is None:
        return text
    beside = _signed(number(cell.printed, column.digits))
    if cell.difference is not None:
        beside += f", {_signed(number(cell.difference, column.digits, signed=True))}"
    return f"{text} {{\\scriptsize ({beside})}}"


def _signed(text: str) -> str:
    """With a minus sign, which LaTeX has in formulas only; a bold number's stays bold."""
    return f"${text[0]}${text[1:]}" if text[0] in "+-" else text
