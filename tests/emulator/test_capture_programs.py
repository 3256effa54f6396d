"""Whole programs on CPU tensors, their kernels performed as they are launched."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

from hopwell.emulator.api import Report, emulate
from hopwell.emulator.capture import Launch
from hopwell.emulator.capture.script import run_script

HERE = Path(__file__).parent


def needs(*modules: str) -> pytest.MarkDecorator:
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


class Performing:
    """Runs each launch under some seeds, and keeps what was found."""

    def __init__(self, seeds: int) -> None:
        self.seeds = seeds
        self.reports: list[Report] = []

    def __call__(self, launch: Launch) -> None:
        self.reports.append(emulate(launch, seeds=self.seeds))

    def assert_clean(self) -> None:
        for report in self.reports:
            assert report.groups == [], report.kernel
            assert report.clean, report.kernel
            assert report.same_results


@needs("cutlass")
@pytest.mark.timeout(120)
def test_each_way_to_launch_a_cute_kernel(capsys: pytest.CaptureFixture[str]) -> None:
    performing = Performing(seeds=2)
    launches = run_script(HERE / "cute_program.py", on_launch=performing)
    assert capsys.readouterr().out == "[1.0, 10.0, 19.0, 28.0]\n"
    assert len(launches) == 3
    for launch in launches:
        assert [buffer.name for buffer in launch.buffers] == ["x", "y"]
        assert [buffer.size for buffer in launch.buffers] == [400, 400]
        assert (launch.grid, launch.block) == ((2, 1, 1), (64, 1, 1))
        assert launch.registers is not None
        assert 8 <= launch.registers <= 64
        assert str(HERE / "cute_program.py") in launch.ptx
    performing.assert_clean()


@needs("cutlass")
@pytest.mark.timeout(120)
def test_nothing_stays_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    run_script(HERE / "cute_program.py")
    capsys.readouterr()
    assert torch.cuda.is_available() == torch.backends.cuda.is_built()
    assert not torch.ones(1).is_cuda
    with pytest.raises((AssertionError, RuntimeError)):
        torch.ones(1, device="cuda:99")
    from cutlass.cute.runtime import from_dlpack

    assert from_dlpack(torch.ones(4)).memspace != from_dlpack_in_capture().memspace


def from_dlpack_in_capture() -> Any:
    from cutlass.cute.runtime import from_dlpack

    from hopwell.emulator.capture import cute

    with cute.capture():
        return from_dlpack(torch.ones(4))


@needs("cutlass")
@pytest.mark.timeout(120)
def test_what_a_receiver_raises_reaches_the_program(tmp_path: Path) -> None:
    def refuse(launch: Launch) -> None:
        raise KeyError("refused")

    with pytest.raises(KeyError, match="refused"):
        run_script(HERE / "cute_program.py", on_launch=refuse)


@needs("cutlass")
@pytest.mark.timeout(120)
def test_code_from_before_the_capture_is_refused() -> None:
    """In a process of its own, where nothing was captured before."""
    program = """
        import torch
        from tests.emulator import cute_program
        from hopwell.emulator.capture import cute
        from hopwell.errors import CaptureError
        with cute.capture() as launches:
            x = torch.ones(4)
            compiled = cute_program.cute.compile(
                cute_program.axpy, 1.0, cute_program.as_cute(x), cute_program.as_cute(x)
            )
            cute._ptx_of.clear()
            try:
                compiled(1.0, cute_program.as_cute(x), cute_program.as_cute(x))
            except CaptureError as error:
                print(error)
    """
    from tests.compile.helpers import run_program

    assert "compiled or loaded before" in run_program(program).stdout


@needs("triton")
@pytest.mark.timeout(120)
def test_triton_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    performing = Performing(seeds=2)
    add, product, copy = run_script(HERE / "triton_program.py", on_launch=performing)
    assert capsys.readouterr().out == "all right\n"
    assert [buffer.name for buffer in add.buffers] == ["x_ptr", "y_ptr"]
    assert (product.grid, product.block) == ((1, 1, 1), (128, 1, 1))
    assert product.shared_bytes > 0
    assert [mapped.map.extents for mapped in copy.tensor_maps] == [(64, 64), (64, 32)]
    performing.assert_clean()
