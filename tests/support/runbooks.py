"""The pages for who is on call: which there are, and what they tell one to type."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

RUNBOOKS = Path(__file__).parents[2] / "docs" / "runbooks"
PAGES = sorted(RUNBOOKS.glob("Paceline*.md"))


def runbook_commands(program: str) -> list[list[str]]:
    """Command lines of a program on all pages, each once, in blocks and inside sentences."""
    texts = [page.read_text(encoding="utf-8") for page in PAGES]
    lines = {line for text in texts for line in re.findall(rf"^ *\$ ({program} .+)$", text, re.MULTILINE)}
    lines |= {line for text in texts for line in re.findall(rf"`({program} [^`]+)`", text)}
    return [shlex.split(line) for line in sorted(lines)]


def runbook_steps() -> list[list[str]]:
    """All lines to type on all pages, each once."""
    lines = {line for page in PAGES for line in re.findall(r"^ *\$ (.+)$", page.read_text("utf-8"), re.MULTILINE)}
    return [shlex.split(line) for line in sorted(lines)]


def runbook_queries() -> list[str]:
    """PromQL of all pages."""
    return [
        query.strip()
        for page in PAGES
        for query in re.findall(r"```promql\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    ]
