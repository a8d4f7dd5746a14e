"""The methods side by side, from what they state of themselves."""

from __future__ import annotations

from cretta import methods

HEADINGS = ("method", "objective", "updates", "statistics", "source data", "forwards", "backwards", "logits")


def method_table() -> str:
    """A Markdown table of cretta's own methods; passes are those of a whole batch, with default options."""
    rows = [HEADINGS, tuple("---" for _ in HEADINGS)]
    for name in methods.names():
        facts = methods.get(name).facts
        rows.append(
            (
                f"`{name}`",
                facts.loss.replace("|", "\\|"),
                facts.updates,
                facts.statistics,
                "yes" if facts.source_data else "no",
                str(facts.forwards),
                str(facts.backwards),
                facts.logits,
            )
        )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
