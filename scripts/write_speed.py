"""Write the generated parts of docs/speed.md from what benchmarks saved in benchmarks/results/.

    python scripts/write_speed.py

Each part stands between `<!-- generated: name -->` and `<!-- end -->`; every processor has its own tables.
"""

from __future__ import annotations

import json
import re
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "speed.md"
RESULTS = ROOT / "benchmarks" / "results"


def load(folder: Path, name: str) -> dict[str, Any]:
    """Return a saved result, or an empty dictionary."""
    path = folder / f"{name}.json"
    content: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return content


def block(text: str) -> str:
    """Return text as it was printed."""
    return f"```\n{text}\n```"


def about(machine: dict[str, Any]) -> str:
    """Return the line under a heading: what was measured on, and when."""
    return (
        f"{machine['threads']} threads, torch {machine['torch']} ({machine['instructions']}), custom CPU kernels: "
        f"{machine['kernels']}, {machine['date']}."
    )


def steps(folder: Path, step: dict[str, Any]) -> Iterator[str]:
    """Yield the tables of WRN-40-2 and the limits."""
    saved = load(folder, "step")
    for part in ("limits", "methods", "textbook-tea", "tea"):
        content = saved.get(f"wrn {part}")
        if content:
            yield f"`--network wrn --part {part}`: {content['title']}. {about(content['machine'])}"
            yield block(step["table"](content))
            if content["backend"]:
                yield f"`model.backend` of CreTTA: {content['backend']}."
    lines = [line for line, _ in step["limits"](saved)]
    if lines:
        yield "The limits, and the ratios of these runs:"
        yield block("\n".join(line.rstrip() for line in lines))


def paths(folder: Path, step: dict[str, Any]) -> Iterator[str]:
    """Yield the times of each setting of CRETTA_KERNELS, and how `auto` compares with `off`."""
    parts = [content for key, content in load(folder, "step").items() if key.endswith(" paths")]
    for content in parts:
        yield f"{content['title']}. {about(content['machine'])}"
        yield block(step["table"](content))
    lines = [line for content in parts for line, _ in step["slowdowns"](content)]
    if lines:
        yield "`auto` relative to `off`, and the limit:"
        yield block("\n".join(lines))


def printed(folder: Path, pattern: str) -> Iterator[str]:
    """Yield what benchmarks printed whose names match ``pattern``."""
    for path in sorted(folder.glob(f"{pattern}.json")):
        content = json.loads(path.read_text())
        yield f"`{content['command']}`. {about(content['machine'])}"
        yield block(content["output"])


def tables(folder: Path, pattern: str) -> Iterator[str]:
    """Yield what benchmarks printed in Markdown."""
    for path in sorted(folder.glob(f"{pattern}.json")):
        content = json.loads(path.read_text())
        yield f"`{content['command']}`. {about(content['machine'])}"
        yield content["output"]


def parts() -> dict[str, str]:
    """Return the text of each generated part."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        step = runpy.run_path(str(ROOT / "benchmarks" / "step.py"))
    finally:
        sys.path.pop(0)
    makers: dict[str, Callable[[Path], Iterator[str]]] = {
        "steps": lambda folder: steps(folder, step),
        "paths": lambda folder: paths(folder, step),
        "fast": lambda folder: tables(folder, "fast"),
        "bfloat16": lambda folder: tables(folder, "bfloat16"),
        "tiles": lambda folder: printed(folder, "rounding-tiles"),
        "rounding": lambda folder: printed(folder, "rounding"),
        "kernels": lambda folder: printed(folder, "kernels"),
        "breakdown": lambda folder: printed(folder, "breakdown-*"),
        "startup": lambda folder: printed(folder, "startup"),
        "flat": lambda folder: printed(folder, "flat"),
    }
    texts = {}
    for name, maker in makers.items():
        sections = []
        # In the folder paper are results of the paper's items, not of a machine's speed.
        for folder in sorted(path for path in RESULTS.iterdir() if path.is_dir() and path.name != "paper"):
            content = list(maker(folder))
            if content:
                machine = next(iter(json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))))
                machine = machine.get("machine") or next(iter(machine.values()))["machine"]
                heading = f"**{machine['processor']}, {machine['cores']} cores**"
                sections.append("\n\n".join([heading, *content]))
        texts[name] = "\n\n".join(sections) or "Not measured yet."
    return texts


def render(page: str) -> str:
    """Return the page with its generated parts replaced."""
    texts = parts()
    names = re.findall(r"<!-- generated: (\w+) -->", page)
    if sorted(names) != sorted(texts):
        raise ValueError(f"expected the parts {sorted(texts)} in {PAGE}, got {sorted(names)}")
    for name, text in texts.items():
        start = f"<!-- generated: {name} -->\n"
        before, _, rest = page.partition(start)
        _, _, after = rest.partition("<!-- end -->")
        page = f"{before}{start}\n{text}\n\n<!-- end -->{after}"
    return page


def main() -> None:
    PAGE.write_text(render(PAGE.read_text()))


if __name__ == "__main__":
    main()
