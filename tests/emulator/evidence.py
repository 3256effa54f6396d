"""Records of runs that are too long for every test run: what was seen, and of which code.

A record speaks for a case only while the case's compiled code is the one that was run.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCHEMA = 1
_RECORDS = Path(__file__).with_name("records")


@dataclass(frozen=True)
class Record:
    """A file of entries by name, each with the hash of the code that it is of.

    Attributes:
        name: of the file.
        renew: the command that writes it.
    """

    name: str
    renew: str

    @property
    def path(self) -> Path:
        return _RECORDS / f"{self.name}.json"

    def entries(self) -> Mapping[str, Any]:
        """What was recorded, by name; each entry's ``artifact`` is the hash of its code."""
        if not self.path.exists():
            return {}
        data = json.loads(self.path.read_text())
        assert data["schema"] == SCHEMA, f"{self.path}: schema {data['schema']}"
        entries: Mapping[str, Any] = data["entries"]
        return entries

    def stale(self, name: str, artifact: str) -> str | None:
        """Why the record does not speak for this code, or None where it does."""
        entry = self.entries().get(name)
        if entry is None:
            return f"never run: {self.renew}"
        if entry["artifact"] != artifact:
            return f"the code has changed since the record: {self.renew}"
        return None

    def write(self, entries: Mapping[str, Any]) -> None:
        """Replace the record."""
        self.path.parent.mkdir(exist_ok=True)
        text = json.dumps({"schema": SCHEMA, "entries": entries}, indent=1, sort_keys=True)
        self.path.write_text(text + "\n")
