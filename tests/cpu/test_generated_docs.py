"""Generated parts of the documents: a real change is noticed, a run's noise is not."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "generate_docs.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_docs", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def document(part: str) -> str:
    return f"before\n<!-- generated: demo -->\n{part}<!-- end generated -->\nafter\n"


def renewed(script: ModuleType, monkeypatch: pytest.MonkeyPatch, old: str, new: str) -> str:
    monkeypatch.setitem(script.PARTS, "demo", lambda: new)
    text: str = script.regenerated(document(old))
    return text


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("error 2.21e-03 of 3.40e-03\n", "error 2.22e-03 of 3.41e-03\n"),
        ("artifact: 0123 (compiled, 4.1 s)\n", "artifact: 0123 (cache, 0.0 s)\n"),
    ],
)
def test_noise_keeps_the_committed_text(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, old: str, new: str
) -> None:
    assert renewed(script, monkeypatch, old, new) == document(old)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("artifact: 0123 (cache, 0.0 s)\n", "artifact: 4567 (cache, 0.0 s)\n"),
        ("registers 168\n", "registers 160\n"),
        ("within budget yes\n", "within budget no\n"),
        ("", "something\n"),
    ],
)
def test_change_is_noticed(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, old: str, new: str
) -> None:
    assert renewed(script, monkeypatch, old, new) == document(new)


def test_every_named_part_has_a_source(script: ModuleType) -> None:
    named = {
        match["name"]
        for path in script.DOCUMENTS
        for match in script.PART.finditer(path.read_text("utf-8"))
    }
    assert named == set(script.PARTS)


def test_links_inside_the_documents_lead_somewhere(script: ModuleType) -> None:
    for path in script.DOCUMENTS:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text("utf-8")):
            assert (path.parent / target).exists(), f"{path.name}: {target}"
