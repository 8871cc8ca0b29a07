"""What every test shares: how Hypothesis runs, and that torch is left as it was found."""

from collections.abc import Iterator

import pytest
import torch
from hypothesis import settings

# First calls compile, so no deadline; a failure prints the code that repeats it.
settings.register_profile("maskplan", deadline=None, print_blob=True)
settings.load_profile("maskplan")


def defaults() -> dict[str, object]:
    """What a test may set for the whole process, and has to set back."""
    return {
        "dtype": torch.get_default_dtype(),
        "device": torch.get_default_device(),
        "gradients": torch.is_grad_enabled(),
        "threads": torch.get_num_threads(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "function modes": torch._C._len_torch_function_stack(),
        "dispatch modes": torch._C._len_torch_dispatch_stack(),
    }


@pytest.fixture(autouse=True)
def torch_is_left_as_it_was() -> Iterator[None]:
    """A default that leaks would fail some later test of the same process, and only sometimes."""
    found = defaults()
    yield
    assert defaults() == found
