"""Which of the targets' architectures a GPU is."""

import torch

from maskplan.errors import UnsupportedError, sentence

# Major compute capability -> the architecture whose kernels run there.
_MAJOR = {9: "sm90", 10: "sm100"}


def architecture_of(device: torch.device) -> str:
    """The name of a CUDA device's architecture; a CPU device stands for the current GPU.

    Raises:
        UnsupportedError: if there is no GPU, or one of another architecture.
    """
    place = device if device.type == "cuda" else None
    if not torch.cuda.is_available():
        found = "no CUDA device"
    else:
        major, minor = torch.cuda.get_device_capability(place)
        if major in _MAJOR:
            return _MAJOR[major]
        found = f"compute capability {major}.{minor}"
    raise UnsupportedError(
        sentence(
            what="no GPU to take the architecture from",
            where=f"device {device}",
            got=found,
            wanted="one of compute capability 9.0 (sm90) or 10.0 (sm100)",
            remedy='name the architecture: plan.lower("fa4", arch="sm90")',
        )
    )
