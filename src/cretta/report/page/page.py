"""Writes the page: one HTML file with everything in it, which asks no network for anything."""

from __future__ import annotations

import base64
import hashlib
import html
import io
import re
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from cretta.bench import Result
from cretta.errors import OptionError
from cretta.report.charts import render
from cretta.report.content import Chart, Table
from cretta.report.groups import Group, by_setting, grouped
from cretta.report.page.payload import groups_payload, runs_payload, script_json, table_payload
from cretta.report.ranking import Mark, marks, number, spread
from cretta.report.styles import Style, styles
from cretta.report.summary import over, overall_table, summary_charts, summary_tables
from cretta.storage import atomic_write

Example = bytes | NDArray[np.uint8]
"""A PNG file, or pixels (H, W, 3)."""

SCRIPTS = ("dom.js", "table.js", "plot.js", "curves.js", "reliability.js", "settings.js", "main.js")
OPEN_SETTINGS = 8
"""Settings that are shown at once in overview and charts."""

NAMED = 4
"""Methods that are equally good and named; more are counted."""


def write_page(
    results: Sequence[Result],
    output: str | Path,
    *,
    tables: Sequence[Table] = (),
    charts: Sequence[Chart] = (),
    examples: Mapping[str, Example] | None = None,
    notes: Sequence[str] = (),
    title: str = "cretta report",
) -> int:
    """Writes ``output``, whole or not at all, and returns its size in bytes.

    Runs that differ in their seed only are shown as one, mean ± deviation. ``tables`` and ``charts`` come before those
    that are made of the results; ``examples`` are images by what they show; ``notes`` stand in the overview.
    """
    groups = grouped(results)
    if not groups and not tables and not charts:
        raise OptionError("a page of nothing: give results that have batches, tables or charts.")
    looks = styles(group.method for group in groups)
    made = summary_tables(groups)
    own = summary_charts(groups)
    shown = [_chart(chart, place, looks) for place, chart in enumerate([*charts, *own[:OPEN_SETTINGS]])]
    # A single chart stands beside what it shows, not alone in a row.
    beside = shown.pop() if len(shown) == len(own) == 1 else ""
    if len(own) > OPEN_SETTINGS:
        notes = [*notes, f"Charts are of the first {OPEN_SETTINGS} of {len(own)} settings; the tables have all."]
    payload = {
        "tables": [
            *(table_payload(table) for table in tables),
            *(table_payload(table, folded=table.name.startswith("shifts")) for table in made),
        ],
        "runs": runs_payload(groups) if groups else None,
        **groups_payload(groups, looks),
    }
    script = '(() => {\n"use strict";\n' + "\n".join(map(_asset, SCRIPTS)) + "\n})();"
    parts = {
        "policy": html.escape(_policy(script)),
        "title": html.escape(title),
        "style": _asset("style.css"),
        "lead": _lead(groups),
        "facts": _facts(groups),
        "notes": "".join(f"<p class=note>{html.escape(note)}</p>" for note in notes),
        "best": f"<div class=beside>{_best(groups)}{beside}</div>",
        "charts": "".join(shown),
        "examples": "".join(_example(name, image) for name, image in (examples or {}).items()),
        "version": html.escape(version("cretta")),
        "data": script_json(payload),
        "script": script,
    }
    has = {"runs": bool(groups), "charts": bool(shown), "examples": bool(examples)}
    page = _filled(_without(_asset("page.html"), {name for name, there in has.items() if not there}), parts).encode()
    _write(Path(output), page)
    return len(page)


def _asset(name: str) -> str:
    return (files(__package__) / "assets" / name).read_text(encoding="utf-8")


def _without(template: str, absent: set[str]) -> str:
    """The template less what lies between ``<!--name-->`` and ``<!--/name-->`` of what is not there."""

    def kept(found: re.Match[str]) -> str:
        return "" if found[1] in absent else found[2]

    return re.sub(r"<!--(\w+)-->(.*?)<!--/\1-->", kept, template, flags=re.DOTALL)


def _filled(template: str, parts: Mapping[str, str]) -> str:
    """In one go: what is put in is not looked at again."""
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], template)


def _policy(script: str) -> str:
    """What a browser may do for this page: run this very script, show images that are in it, and nothing else."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )


def _lead(groups: Sequence[Group]) -> str:
    methods = dict.fromkeys(group.method for group in groups)
    data = dict.fromkeys(str(group.run["data"]) for group in groups)
    if not groups:
        return ""
    return html.escape(f"{', '.join(methods)} on {', '.join(data)}")


def _facts(groups: Sequence[Group]) -> str:
    rows = [row for group in groups for result in group.results for row in result.rows]
    domains = {domain for group in groups for domain in group.run["domains"]}
    hours = sum(row.seconds for row in rows) / 3600
    told = {
        "runs": f"{sum(len(group.results) for group in groups):,}",
        "methods": f"{len({group.method for group in groups}):,}",
        "datasets": f"{len({group.run['data'] for group in groups}):,}",
        "shifts": f"{len(domains):,}",
        "seeds": f"{len({seed for group in groups for seed in group.seeds}):,}",
        "images predicted": f"{sum(row.images for row in rows):,}".replace(",", "\u202f"),
        "time of all runs": f"{hours:.1f} h" if hours >= 1 else f"{60 * hours:.1f} min",
    }
    return "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in told.items())


def _best(groups: Sequence[Group]) -> str:
    """For each setting with several methods, which ones are best by each measure."""
    cards = []
    for setting, members in by_setting(groups).items():
        table = overall_table(members)
        marked = marks(table)
        lines = [_best_line(table, marked, place) for place in range(len(table.columns))]
        if any(lines):
            cards.append(
                f"<article class=card><h3>{html.escape(setting)}</h3><p class=quiet>{html.escape(over(members))}</p>"
                f"<div class=scroll><table class=plain><tbody>{''.join(lines)}</tbody></table></div></article>"
            )
    if not cards:
        return ""
    more = cards[OPEN_SETTINGS:]
    folded = f"<details><summary>{len(more)} more</summary><div class=cards>{''.join(more)}</div></details>"
    return f"<div class=cards>{''.join(cards[:OPEN_SETTINGS])}</div>{folded if more else ''}"


def _best_line(table: Table, marked: Sequence[Sequence[Mark]], place: int) -> str:
    """The best by one measure, as the table marks them; nothing where there are not two to compare."""
    column = table.columns[place]
    cells = {row.label: row.cells[place] for row in table.rows if row.cells[place].value is not None}
    if column.better == "neither" or len(cells) < 2:
        return ""
    labels = [row.label for row, each in zip(table.rows, marked, strict=True) if each[place] == "best"]
    told = ", ".join(labels) if len(labels) <= NAMED else f"{len(labels)} alike"
    shown = ""
    if labels:
        values = [cell.value for label, cell in cells.items() if label in labels and cell.value is not None]
        shown = number(max(values) if column.better == "higher" else min(values), column.digits)
    if len(labels) == 1 and (deviation := spread(cells[labels[0]], column)):
        shown += f" ± {deviation}"
    word = "highest" if column.better == "higher" else "lowest"
    return (
        f"<tr><th scope=row>{word} {html.escape(column.title)}</th><td>{html.escape(told or 'no clear best')}</td>"
        f"<td class=number>{shown}</td></tr>"
    )


def _chart(chart: Chart, place: int, looks: Mapping[str, Style]) -> str:
    drawing = render(chart, "svg", looks=looks, selectable=True, bare=True).decode()
    drawing = drawing[drawing.index("<svg") :]
    # Names inside a drawing are its own; ink is the page's, dark or light.
    prefix = f"chart{place}-"
    drawing = re.sub(r'(\bid="|url\(#|xlink:href="#)', rf"\g<1>{prefix}", drawing)
    drawing = re.sub(r"<metadata>.*?</metadata>", "", drawing, flags=re.DOTALL)
    drawing = drawing.replace("#000000", "currentColor").replace("#ffffff", "var(--paper)")
    drawing = re.sub('#([0-9a-f]{6})(?=[;"])', r"var(--\1, #\1)", drawing)
    title, width = html.escape(chart.title), re.search(r'<svg[^>]*? width="([\d.]+)pt"', drawing)
    natural = float(width[1]) * 4 / 3 if width else 600
    drawing = drawing.replace("<svg", f'<svg role="img" aria-label="{title}"', 1)
    notes = "".join(f"<p class=note>{html.escape(note)}</p>" for note in chart.notes)
    return (
        f'<figure class=chart style="--natural: {natural:.0f}px"><figcaption>{title}</figcaption>'
        f'<div class=scroll tabindex=0 role=region aria-label="{title}">{drawing}</div>{notes}</figure>'
    )


def _example(name: str, image: Example) -> str:
    content = image if isinstance(image, bytes) else _png(image, name)
    with Image.open(io.BytesIO(content)) as opened:
        width, height = opened.size
    # Small images are shown large, pixel by pixel.
    scale = max(1, 96 // height)
    told = html.escape(name)
    return (
        f'<figure class=example><img alt="Example images of {told}" width={scale * width} '
        f'height={scale * height} src="data:image/png;base64,{base64.b64encode(content).decode()}">'
        f"<figcaption>{told}</figcaption></figure>"
    )


def _png(pixels: NDArray[np.uint8], name: str) -> bytes:
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3:
        raise OptionError(
            f"example {name!r}: {pixels.dtype} of shape {pixels.shape}; give uint8 of shape (H, W, 3), or a PNG file."
        )
    made = io.BytesIO()
    Image.fromarray(pixels).save(made, "PNG", optimize=True)
    return made.getvalue()


def _write(path: Path, content: bytes) -> None:
    with atomic_write(path) as temporary:
        temporary.write_bytes(content)
