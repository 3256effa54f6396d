"""Hopwell: exact attention for NVIDIA Hopper and Blackwell, and the instruments that prove it."""
