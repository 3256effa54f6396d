"""With a Hopper GPU the demo also runs, compares and times the kernel."""

from __future__ import annotations

from hopwell.commands import demo, doctor


def test_demo_executes_the_kernel_that_it_compiled() -> None:
    report = demo.report(lambda step: None)
    ran = [row for row in report["attention"] if row["backend"] == "hopper"]
    assert report["ok"]
    assert report["kernel"]["not_executed"] is None
    assert [row["layer"] for row in ran] == report["input"]["layers"]
    assert all(row["kernel"] for row in ran)
    # 12 heads of two tiles each, three key blocks: a launch of a few microseconds.
    assert 1 < report["kernel"]["microseconds"]["median"] < 1000


def test_doctor_says_that_kernels_run() -> None:
    report = doctor.report()
    verdicts = {row["name"]: row["verdict"] for row in report["capabilities"]}
    assert report["ok"]
    assert verdicts["run Hopper kernels"] == "works"
