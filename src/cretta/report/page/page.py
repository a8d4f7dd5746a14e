"""Write the page: one HTML file with everything in it, which makes no network requests."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path

from cretta import pages
from cretta.bench import Result
from cretta.errors import OptionError
from cretta.report.charts import render
from cretta.report.content import Chart, Table
from cretta.report.groups import Group, grouped
from cretta.report.page.payload import groups_payload, runs_payload, script_json, table_payload
from cretta.report.styles import Style, styles
from cretta.report.summary import summary_charts, summary_tables
from cretta.storage import atomic_write

SCRIPTS = ("table.js", "curves.js", "reliability.js", "settings.js", "main.js")
OPEN_SETTINGS = 8
"""Settings whose charts are shown."""


def write_page(
    results: Sequence[Result],
    output: str | Path,
    *,
    tables: Sequence[Table] = (),
    charts: Sequence[Chart] = (),
    notes: Sequence[str] = (),
    title: str = "cretta report",
) -> int:
    """Write ``output`` atomically, and return its size in bytes.

    Runs that differ in their seed only are shown as one, mean ± deviation. ``tables`` and ``charts`` come before those
    of the results; ``notes`` stand in the overview.
    """
    groups = grouped(results)
    if not groups and not tables and not charts:
        raise OptionError("nothing to show: expected results that have batches, tables or charts.")
    method_styles = styles(group.method for group in groups)
    data = dict.fromkeys(group.run.data for group in groups)
    own = summary_charts(groups)
    drawings = [_chart(chart, index, method_styles) for index, chart in enumerate([*charts, *own[:OPEN_SETTINGS]])]
    # A single chart stands beside the numbers it shows, not alone in a row.
    beside = drawings.pop() if len(drawings) == len(own) == 1 else ""
    if len(own) > OPEN_SETTINGS:
        notes = [*notes, f"Charts are of the first {OPEN_SETTINGS} of {len(own)} settings; the tables have all."]
    payload = {
        "tables": [
            *(table_payload(table) for table in tables),
            *(table_payload(table, folded=table.name.startswith("shifts")) for table in summary_tables(groups)),
        ],
        "runs": runs_payload(groups) if groups else None,
        **groups_payload(groups, method_styles),
    }
    own_scripts = [pages.asset(script, __package__) for script in SCRIPTS]
    script = pages.joined([pages.asset("dom.js"), pages.asset("plot.js"), *own_scripts])
    parts = {
        "policy": html.escape(pages.policy(script)),
        "title": html.escape(title),
        "style": pages.asset("style.css"),
        "lead": html.escape(f"{', '.join(method_styles)} on {', '.join(data)}") if groups else "",
        "facts": _facts(groups),
        "notes": "".join(f"<p class=note>{html.escape(note)}</p>" for note in notes),
        "beside": beside,
        "charts": "".join(drawings),
        "version": html.escape(version("cretta")),
        "data": script_json(payload),
        "script": script,
    }
    sections = {"runs": bool(groups), "charts": bool(drawings)}
    page = pages.filled(pages.asset("page.html", __package__), sections, parts).encode()
    with atomic_write(Path(output)) as temporary:
        temporary.write_bytes(page)
    return len(page)


def _facts(groups: Sequence[Group]) -> str:
    rows = [row for group in groups for result in group.results for row in result.rows]
    hours = sum(row.seconds for row in rows) / 3600
    counts = {
        "runs": sum(len(group.results) for group in groups),
        "methods": len({group.method for group in groups}),
        "datasets": len({group.run.data for group in groups}),
        "shifts": len({domain for group in groups for domain in group.run.domains}),
        "seeds": len({seed for group in groups for seed in group.seeds}),
    }
    facts = {name if count != 1 else name[:-1]: f"{count:,}" for name, count in counts.items()}
    facts["images predicted"] = f"{sum(row.images for row in rows):,}".replace(",", "\u202f")
    facts["time of all runs"] = f"{hours:.1f} h" if hours >= 1 else f"{60 * hours:.1f} min"
    return "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in facts.items())


def _chart(chart: Chart, index: int, method_styles: Mapping[str, Style]) -> str:
    drawing = render(chart, "svg", page_styles=method_styles).decode()
    drawing = drawing[drawing.index("<svg") :]
    # Names inside a drawing must be unique on the page; its ink is the page's, dark or light.
    drawing = re.sub(r'(\bid="|url\(#|xlink:href="#)', rf"\g<1>chart{index}-", drawing)
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
