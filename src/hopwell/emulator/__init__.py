"""A machine that runs compiled PTX on a CPU and names every hazard."""
