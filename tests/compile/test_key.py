"""The compile key: what changes it, what does not, and where its list of sources comes from."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.compile.helpers import TinyPlan, run_program

from hopwell.compile import key as keys
from hopwell.hopper.plan import (
    HopperForwardPlan,
    OutputStorage,
    PSource,
    Rescale,
    TileOrder,
    shipped_forward_plans,
)

PLAN = HopperForwardPlan("bfloat16", 128, 128, False, tile_m=128, tile_n=64)
#: One valid change of each plan field, with whatever else has to change for the plan to be valid.
CHANGES: dict[str, dict[str, Any]] = {
    "dtype": {"dtype": "float16"},
    "head_dim": {"head_dim": 96},
    "head_dim_v": {"head_dim_v": 64},
    "causal": {"causal": True},
    "tile_m": {"tile_m": 64, "ping_pong": False},
    "tile_n": {"tile_n": 96},
    "stages": {"stages": 3},
    "q_stages": {"q_stages": 2},
    "overlap": {"overlap": False, "rescale": Rescale.BEFORE},
    "ping_pong": {"ping_pong": False},
    "p_source": {"p_source": PSource.SHARED},
    "rescale": {"rescale": Rescale.BEFORE},
    "tile_order": {"tile_order": TileOrder.LONGEST_FIRST},
    "output_storage": {"output_storage": OutputStorage.ALIAS_Q},
    "producer_registers": {"producer_registers": 32, "consumer_registers": 232},
    "consumer_registers": {"consumer_registers": 232},
}
TOOLCHAIN = keys.Toolchain(dsl="4.8.1", libs="cu13", libs_version="4.8.1", options="-O3")


def test_every_plan_field_has_a_change() -> None:
    assert set(CHANGES) == {field.name for field in dataclasses.fields(HopperForwardPlan)}


@pytest.mark.parametrize("field", CHANGES)
def test_each_plan_field_is_a_miss(field: str) -> None:
    changed = dataclasses.replace(PLAN, **CHANGES[field])
    assert getattr(changed, field) != getattr(PLAN, field)
    assert keys.request_of(changed) != keys.request_of(PLAN)
    assert keys.compile_key(changed, TOOLCHAIN) != keys.compile_key(PLAN, TOOLCHAIN)


@pytest.mark.parametrize("field", keys.Toolchain._fields)
def test_each_part_of_the_toolchain_is_a_miss(field: str) -> None:
    other = TOOLCHAIN._replace(**{field: "other"})
    assert keys.compile_key(PLAN, other) != keys.compile_key(PLAN, TOOLCHAIN)


def test_the_host_is_part_of_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    before = keys.request_of(PLAN)
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    assert keys.request_of(PLAN) != before


def test_python_and_torch_versions_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    before = keys.compile_key(PLAN, TOOLCHAIN)
    monkeypatch.setattr("platform.python_version", lambda: "3.99.0")
    monkeypatch.setattr("torch.__version__", "99.0")
    monkeypatch.setattr(sys, "version_info", (3, 99, 0, "final", 0))
    assert keys.compile_key(PLAN, TOOLCHAIN) == before


def test_equal_plans_have_equal_keys_and_all_shipped_ones_differ() -> None:
    plans = shipped_forward_plans()
    assert len({keys.request_of(plan) for plan in plans}) == len(plans)
    copy = HopperForwardPlan.from_json(json.loads(json.dumps(PLAN.to_json())))
    assert keys.request_of(copy) == keys.request_of(PLAN)


def test_two_classes_of_plan_never_share_a_request() -> None:
    class Other(TinyPlan):
        pass

    assert keys.request_of(Other()) != keys.request_of(TinyPlan())


# -- sources -------------------------------------------------------------------------------


def test_sources_are_what_tracing_really_imports() -> None:
    """The closure found in the text covers every Hopwell module that importing the kernel loads."""
    program = """
    import sys, json
    import hopwell
    before = set(sys.modules)
    import hopwell.hopper.forward
    names = {n for n in set(sys.modules) - before if n.startswith("hopwell.")}
    print(json.dumps(sorted(n for n in names if not hasattr(sys.modules[n], "__path__"))))
    """
    loaded = json.loads(run_program(program).stdout)
    found = keys.sources("hopwell.hopper.forward")
    assert len(loaded) >= 4
    assert set(loaded) <= set(found)
    assert "hopwell.compile.cache" not in found
    assert {"hopwell/compile/build.py", "hopwell/compile/runtime.c"} <= set(found)


def test_a_changed_source_is_a_miss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "leaf_module.py").write_text("WIDTH = 1\n")
    root = tmp_path / "root_kernel"
    root.mkdir()
    (root / "__init__.py").write_text("")
    (root / "forward.py").write_text("from root_kernel.shared import (\n    helper,  # why\n)\n")
    (root / "shared.py").write_text("def helper():\n    from root_kernel import late\n")
    (root / "late.py").write_text("import leaf_module\n")
    (root / "unrelated.py").write_text("")

    class Plan(TinyPlan):
        @property
        def kernel_module(self) -> str:
            return "root_kernel.forward"

    def request() -> str:
        keys.sources.cache_clear()
        return keys.request_of(Plan())

    first = request()
    for name in ("forward", "shared", "late"):
        file = root / f"{name}.py"
        text = file.read_text()
        file.write_text(text + "# changed\n")
        assert request() != first, name
        file.write_text(text)
        assert request() == first
    (root / "unrelated.py").write_text("# changed\n")
    assert request() == first
    keys.sources.cache_clear()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import hopwell.a as b, hopwell.c", {"hopwell.a", "hopwell.c"}),
        ("if x: from  hopwell.a\timport\tb as c", {"hopwell.a", "hopwell.a.b"}),
        (
            "from p.a import (  # why\n    b,  # and, why\n    imported as c,\n)\n",
            {"p.a", "p.a.b", "p.a.imported"},
        ),
        ("from p import \\\n    b", {"p", "p.b"}),
        ("exec('import p.a')", {"p.a"}),
        ("from p import b; from p.c import d; import p.e", {"p", "p.b", "p.c", "p.c.d", "p.e"}),
        ("from . import b\nimport json, pathlib\nfrom pp import x", set()),
    ],
)
def test_every_import_of_a_source_is_found(text: str, found: set[str]) -> None:
    assert found <= keys._imports(text, "p")
    assert {name.partition(".")[0] for name in keys._imports(text, "p")} <= {"p", "hopwell"}


# -- toolchain -----------------------------------------------------------------------------


def test_the_toolchain_is_found_without_importing_it() -> None:
    program = """
    import sys
    from hopwell.compile import key
    print(key.toolchain("sm_90a").libs)
    assert not any(name.split(".")[0] in ("cutlass", "torch", "tvm_ffi") for name in sys.modules)
    """
    assert run_program(program).stdout.strip() in ("cu12", "cu13")


@pytest.mark.parametrize(
    ("installed", "driver", "expected"),
    [
        ({"cu12": "1", "cu13": "2"}, None, "cu13"),
        ({"cu12": "1", "cu13": "2"}, 13, "cu13"),
        ({"cu12": "1", "cu13": "2"}, 12, "cu12"),
        ({"cu12": "1"}, 13, "cu12"),
        ({"cu13": "2"}, 12, None),
        ({}, None, None),
    ],
)
def test_the_variant_is_the_one_that_the_compiler_will_load(
    monkeypatch: pytest.MonkeyPatch,
    installed: dict[str, str],
    driver: int | None,
    expected: str | None,
) -> None:
    versions = {f"nvidia-cutlass-dsl-libs-{name}": v for name, v in installed.items()}
    monkeypatch.setattr(keys, "_version", {"nvidia-cutlass-dsl": "9", **versions}.get)
    monkeypatch.setattr(keys, "_driver_major", lambda: driver)
    keys.toolchain.cache_clear()
    found = keys.toolchain("sm_90a")
    keys.toolchain.cache_clear()
    assert (found.libs if found else None) == expected
