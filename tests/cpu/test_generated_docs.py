"""Generated parts of the documents: a real change is noticed, a run's noise is not."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from hopwell.bench import record as records

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


def test_measured_numbers_name_the_artifacts_that_made_them(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(name: str, rung: str) -> records.Artifact:
        return records.Artifact(name, "k" * 64, f"{name}-".ljust(64, "0"), "s", "cache", (rung,))

    ran = (made("first", "timed"), made("second", "timed"), made("third", "executed"))
    identity = records.Identity("0", None, None, "s" * 64, {}, ran)
    gpu = SimpleNamespace(name="NVIDIA H200")
    environment = SimpleNamespace(gpu=gpu, torch="9.8.7")
    record = SimpleNamespace(
        identity=identity, created="2026-01-01T00:00:00Z", environment=environment, rows=()
    )
    monkeypatch.setattr(script, "newest_record", lambda: record)
    monkeypatch.setattr(script, "summarise", lambda _: ())
    text = script.performance()
    for artifact in ran[:2]:
        assert f"| `{artifact.plan_name}` | `{artifact.artifact_hash[:16]}` |" in text
    assert "third" not in text
    assert "9.8.7" in text
    assert "2026-01-01" in text


@pytest.mark.parametrize(
    ("ratios", "said"),
    [
        ({"d64s512": 1.0, "d128s512": 1.2}, "On none of 2 cells"),
        ({"d64s512": 0.97, "d128s512": 0.9, "d256s512": 1.2}, "On 2 of 3 cells"),
    ],
)
def test_cells_where_a_peer_is_faster_are_counted_and_the_worst_is_named(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, ratios: dict[str, float], said: str
) -> None:
    monkeypatch.setattr(script, "ratios_to_best_peer", lambda _: ratios)
    text = script.slower(SimpleNamespace())
    assert said in text
    assert ("`d128s512`" in text and "0.90" in text) == (min(ratios.values()) < 1)


def test_every_page_is_linked_from_another(script: ModuleType) -> None:
    linked = {
        (path.parent / target).resolve()
        for path in script.DOCUMENTS
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text("utf-8"))
    }
    pages = {path.resolve() for path in script.DOCUMENTS if path.name != "README.md"}
    assert any("notes" in page.parts for page in pages)
    assert pages <= linked
