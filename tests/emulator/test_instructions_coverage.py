"""Every computational instruction that is registered has a test that runs it by name."""

import re
from pathlib import Path

from tests.emulator import decoding  # noqa: F401  (registers the families)

from hopwell.emulator.instructions.modifiers import typed_instructions


def test_every_name_is_run_by_a_test() -> None:
    files = Path(__file__).parent.glob("test_instructions_*.py")
    text = "".join(file.read_text() for file in files)
    listed = set(re.findall(r'"([a-z0-9]+)[."]', text))
    assert set(typed_instructions()) - listed == set()
