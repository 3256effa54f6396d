"""Hopper (SM90): plans, the forward kernel and its launch. Importing this imports no compiler."""
