"""The tuner without a GPU: what it finds, checks first, blames and reports."""

from __future__ import annotations

import argparse
import importlib.util
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from tests.compile.test_cache import artifact_in

from hopwell.bench.timing import Statistic
from hopwell.compile import artifact as files
from hopwell.errors import CompileError
from hopwell.hopper.plan import HopperForwardPlan, forward_plan

SCRIPT = Path(__file__).parents[2] / "scripts" / "tune_forward.py"
PLANS = {
    "full": forward_plan("bfloat16", (128, 128), False),
    "causal": forward_plan("bfloat16", (128, 128), True),
}


@pytest.fixture(scope="module")
def tune() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("tune_forward", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "tune_forward", module)  # its dataclasses look for it
        spec.loader.exec_module(module)
        yield module


def put(directory: Path, plan: HopperForwardPlan) -> None:
    directory.mkdir(parents=True)
    manifest = artifact_in(directory).manifest._replace(plan=plan.to_json(), plan_name=plan.name)
    files.write(directory, manifest, ".version 9.4\n", b"cubin")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    put(tmp_path / "a" / "full", PLANS["full"])
    put(tmp_path / "b" / "causal", PLANS["causal"])
    put(tmp_path / "damaged", PLANS["full"])
    (tmp_path / "damaged" / files.LIBRARY).write_bytes(b"other code")
    (tmp_path / "no manifest").mkdir()
    (tmp_path / "no manifest" / files.MANIFEST).write_text("{")
    return tmp_path


def test_whole_artifacts_are_found_and_damaged_ones_named(
    tune: ModuleType, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = tune.find_variants(root, "")
    assert [variant.name for variant in found] == ["a/full", "b/causal"]
    assert found[1].group == ("bfloat16", 128, 128, True)
    said = capsys.readouterr().err
    assert "! damaged: " in said
    assert "! no manifest: " in said
    assert [v.name for v in tune.find_variants(root, "_causal_")] == ["b/causal"]


def test_a_variant_is_loaded_as_the_library_loads_it(tune: ModuleType, root: Path) -> None:
    """These bytes are no library: the loader that judges them is the package's own."""
    with pytest.raises(CompileError, match="hopwell_launch"):
        tune.find_variants(root, "full")[0].load()


def test_checks_cover_edges_groups_and_more_tiles_than_multiprocessors(
    tune: ModuleType, root: Path
) -> None:
    for variant in tune.find_variants(root, ""):
        cells = tune.check_problems(variant)
        m, n = variant.plan["tile_m"], variant.plan["tile_n"]
        assert {cell.causal for cell in cells} == {variant.plan["causal"]}
        assert any(cell.seqlen_q % m and cell.seqlen_k % n for cell in cells)
        assert any(cell.heads_q > cell.heads_k for cell in cells)
        assert max(cell.batch * cell.heads_q * cell.seqlen_q // m for cell in cells) > 132


def test_the_report_compares_with_the_best_peer_and_names_failures(
    tune: ModuleType, root: Path
) -> None:
    variants = tune.find_variants(root, "")
    tuner = tune.Tuner(variants, argparse.Namespace(seqlens=[4096]))
    assert tuner.pending() == ["a/full", "b/causal"]
    tuner.take({"event": "passed", "variant": "a/full", "errors": {"frobenius": 2e-3}})
    tuner.blame({"variant": "b/causal", "step": "check b1"}, "hung for 45 s")
    assert tuner.pending() == []
    (cell,) = tuner.cells()
    assert cell.name == "d128s4096"
    seconds = {"a/full": 1.0e-3, "cudnn": 0.8e-3, "flash-attn-4": 0.9e-3}
    laps = {name: Statistic.of([value]).to_json() for name, value in seconds.items()}
    tuner.take({"event": "timed", "cell": cell.to_json(), "seconds": laps, "errors": {}})
    assert tuner.cells() == []
    assert tuner.against_peers("a/full", tuner.timed) == pytest.approx(0.8)
    table = "\n".join(tuner.tables())
    assert "0.800" in table
    assert "check b1: hung for 45 s" in table
    assert set(json.loads(json.dumps(tuner.to_json()))["variants"]) == {"a/full", "b/causal"}
