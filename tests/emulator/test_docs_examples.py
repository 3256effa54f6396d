"""The kernels of docs/examples do what their comments say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from hopwell.emulator.api import Report, emulate
from hopwell.emulator.capture.launch import Launch, aligned_copy

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
SEEDS = 10


def _text(name: str) -> str:
    return (EXAMPLES / f"{name}.ptx").read_text()


def _run(text: str, name: str, block: int, *arguments: Any) -> Report:
    launch = Launch.of(text, name, (1, 1, 1), (block, 1, 1), arguments, filename=f"{name}.ptx")
    return emulate(launch, seeds=SEEDS)


def _words(count: int, first: int = 0, step: int = 0) -> Any:
    return aligned_copy((first + step * np.arange(count)).astype(np.uint32))


def test_a_loop_of_raw_bulk_copies_is_clean() -> None:
    source = _words(5 * 128, 3, 7)
    for tiles in (0, 1, 5):
        sums = _words(128)
        report = _run(_text("raw_bulk_loop"), "raw_bulk_loop", 160, source, sums, tiles)
        assert report.clean, report.rules
        np.testing.assert_array_equal(sums, source.reshape(5, 128)[:tiles].sum(0))


def test_the_missing_proxy_fence_is_found_and_its_fix_is_clean() -> None:
    text, name, target = _text("missing_proxy_fence"), "missing_proxy_fence", _words(128)
    assert _run(text, name, 128, target).rules == [name.replace("_", "-")]
    fence = "fence.proxy.async.shared::cta;\n    bar.sync"
    fixed = text.replace(f"// {fence}", fence)
    assert fixed != text
    assert _run(fixed, name, 128, target).clean
    np.testing.assert_array_equal(target, np.arange(128))


def test_the_hang_is_explained_and_its_fix_is_clean() -> None:
    text, source, sums = _text("hang"), _words(128, 1, 5), _words(32)
    report = _run(text, "hang", 64, source, sums)
    assert report.rules == ["deadlock"]
    for run in report.runs:
        said = {finding.waiter.agent: finding.words for finding in run.deadlock.findings}
        words = said["CTA (0,0,0) warp 0"]
        assert "on mbarrier empty, for phase 0" in words
        assert "31 of 32 arrivals" in words
        assert "to be signalled by CTA (0,0,0) warp 1 at hang.ptx:" in words
    fixed = text.replace("[empty], 32;", "[empty], 1;")
    assert fixed != text
    assert _run(fixed, "hang", 64, source, sums).clean
    np.testing.assert_array_equal(sums, source.reshape(4, 32).sum(0))
