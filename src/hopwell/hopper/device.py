"""Whether a Hopper GPU is there."""

from __future__ import annotations

#: Compute capability of the GPUs that run ``sm_90a`` code.
CAPABILITY = (9, 0)


def why_not_hopper(index: int | None = None) -> str | None:
    """Why no Hopper kernel can run on a CUDA device (the current one), or None when one can."""
    import torch

    # PyTorch for ROCm answers torch.cuda's questions about its own devices.
    if torch.version.cuda is None or not torch.cuda.is_available():
        return "no CUDA device"
    major, minor = torch.cuda.get_device_capability(index)
    if (major, minor) == CAPABILITY:
        return None
    return f"{torch.cuda.get_device_name(index)} (sm_{major}{minor}), not sm_90"
