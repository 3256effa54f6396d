"""Exact arithmetic of GPU number formats on NumPy arrays.

Every function takes and gives arrays of any one-dimensional shape and knows nothing of PTX
syntax, warps or registers. Results are correctly rounded unless
:mod:`hopwell.emulator.numerics.approximate` gives a bound for them.
"""
