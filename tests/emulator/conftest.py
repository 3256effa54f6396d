"""Shared by the tests of the emulator."""

from __future__ import annotations

import hypothesis

# Reproducible in CI; a failing example is printed with its arguments.
hypothesis.settings.register_profile("hopwell", deadline=None, derandomize=True, max_examples=60)
hypothesis.settings.load_profile("hopwell")
