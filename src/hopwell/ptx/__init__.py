"""PTX as CuTe DSL, Triton and nvcc emit it: text to syntax tree and back."""
