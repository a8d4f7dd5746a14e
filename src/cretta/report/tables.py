"""Tables as files: Markdown, LaTeX and CSV."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from csv import writer
from itertools import groupby, starmap

from cretta.report.content import Cell, Column, Table
from cretta.report.ranking import MISSING, Mark, brackets, cell_text, heading, marked_rows, marks, notes

_LATEX = {
    **{letter: f"\\{letter}" for letter in "&%$#_{}"},
    "\\": "\\textbackslash{}",
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
    "<": "\\textless{}",
    ">": "\\textgreater{}",
    "|": "\\textbar{}",
    "–": "\\textendash{}",
    "…": "\\dots{}",
    # The symbols that occur in titles and labels here. Engines that read Unicode show others as they are.
    "β": "$\\beta$",
    "δ": "$\\delta$",
    "·": "$\\cdot$",
    "×": "$\\times$",
    "±": "$\\pm$",
    "−": "$-$",
    "↑": "$\\uparrow$",
    "↓": "$\\downarrow$",
    "→": "$\\rightarrow$",
}


def markdown(table: Table) -> str:
    """Return a Markdown table with its title and notes; column groups are part of the headings."""
    titles = (" · ".join(filter(None, (column.group, heading(column)))) for column in table.columns)
    lines = [
        f"**{_escape_markdown(table.title)}**",
        "",
        _markdown_row([_escape_markdown(table.first), *map(_escape_markdown, titles)]),
        _markdown_row(["---", *("---:" for _ in table.columns)]),
    ]
    for group, rows in marked_rows(table):
        if group:
            lines.append(_markdown_row([f"*{_escape_markdown(group)}*", *("" for _ in table.columns)]))
        for row, row_marks in rows:
            cells = starmap(_markdown_cell, zip(row.cells, table.columns, row_marks, strict=True))
            lines.append(_markdown_row([_escape_markdown(row.label), *cells]))
    for note in [*brackets(table), *notes(table)]:
        lines += ["", _escape_markdown(note)]
    return "\n".join(lines) + "\n"


def _escape_markdown(text: str) -> str:
    return re.sub(r"([\\`*_{}\[\]<>|#~&])", r"\\\1", " ".join(text.split()))


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _markdown_cell(cell: Cell, column: Column, mark: Mark) -> str:
    value, deviation, printed, difference = cell_text(cell, column)
    text = (value or MISSING) + (f" ± {deviation}" if deviation else "")
    text = {"best": f"**{text}**", "second": f"<u>{text}</u>", "": text}[mark]
    return f"{text} ({', '.join(filter(None, (printed, difference)))})" if printed else text


def latex(table: Table) -> str:
    r"""Return a LaTeX table that needs ``\usepackage{booktabs}``."""
    lines = [
        "% \\usepackage{booktabs}",
        "\\begin{table}",
        "\\centering",
        f"\\caption{{{_escape_latex(table.title)}}}",
        f"\\label{{tab:{re.sub('[^A-Za-z0-9]+', '-', table.name)}}}",
        f"\\begin{{tabular}}{{l{'r' * len(table.columns)}}}",
        "\\toprule",
        *_latex_group_headings(table),
        _latex_row(_escape_latex(table.first), *(_escape_latex(heading(column)) for column in table.columns)),
    ]
    for group, rows in marked_rows(table):
        lines.append("\\midrule")
        if group:
            heading_cell = f"\\multicolumn{{{len(table.columns) + 1}}}{{l}}{{\\emph{{{_escape_latex(group)}}}}}"
            lines.append(_latex_row(heading_cell))
        for row, row_marks in rows:
            cells = starmap(_latex_cell, zip(row.cells, table.columns, row_marks, strict=True))
            lines.append(_latex_row(_escape_latex(row.label), *cells))
    lines += ["\\bottomrule", "\\end{tabular}"]
    below = [*brackets(table), *notes(table)]
    lines += [f"\\par\\smallskip{{\\footnotesize {_escape_latex(note)}\\par}}" for note in below]
    return "\n".join([*lines, "\\end{table}"]) + "\n"


def _escape_latex(text: str) -> str:
    escaped = "".join(_LATEX.get(letter, letter) for letter in " ".join(text.split()))
    escaped = re.sub("-(?=-)", "-{}", escaped)  # two hyphens would be a dash
    # A bracket at the start of a row would be read as an argument of the line break before it.
    return f"{{}}{escaped}" if escaped.startswith(("[", "*")) else escaped


def _latex_group_headings(table: Table) -> list[str]:
    if not any(column.group for column in table.columns):
        return []
    heads, rules, start = [""], [], 2
    for group, members in groupby(table.columns, lambda column: column.group):
        end = start + len(list(members)) - 1
        heads.append(f"\\multicolumn{{{end - start + 1}}}{{c}}{{{_escape_latex(group)}}}")
        if group:
            rules.append(f"\\cmidrule(lr){{{start}-{end}}}")
        start = end + 1
    return [_latex_row(*heads), " ".join(rules)]


def _latex_row(*cells: str) -> str:
    return " & ".join(cells) + " \\\\"


def _latex_cell(cell: Cell, column: Column, mark: Mark) -> str:
    # A minus sign exists in formulas only; the digits stay outside, so that they can be bold.
    texts = (f"${text[0]}${text[1:]}" if text[:1] in ("+", "-") else text for text in cell_text(cell, column))
    value, deviation, printed, difference = texts
    text = value or "\\textendash"
    text = {"best": f"\\textbf{{{text}}}", "second": f"\\underline{{{text}}}", "": text}[mark]
    text += f" {{\\scriptsize $\\pm$ {deviation}}}" if deviation else ""
    return f"{text} {{\\scriptsize ({', '.join(filter(None, (printed, difference)))})}}" if printed else text


def csv(table: Table) -> str:
    """Return a line for each cell, with all digits."""
    text = io.StringIO()
    out = writer(text, lineterminator="\n")
    out.writerow(("row", "group", "column_group", "column", "value", "deviation", "printed", "note", "mark"))
    for row, row_marks in zip(table.rows, marks(table), strict=True):
        for column, cell, mark in zip(table.columns, row.cells, row_marks, strict=True):
            numbers = ("" if value is None else repr(value) for value in (cell.value, cell.deviation, cell.printed))
            out.writerow((row.label, row.group, column.group, column.title, *numbers, cell.note, mark))
    return text.getvalue()


FORMATS: dict[str, tuple[str, Callable[[Table], str]]] = {
    "md": (".md", markdown),
    "latex": (".tex", latex),
    "csv": (".csv", csv),
}
"""Suffix of the file and renderer, by format."""
