"""A configuration holds what its fields declare, or says which field does not."""

import pytest

from kernels_sm100.backward_config import BackwardConfig
from kernels_sm100.config import ForwardConfig
from kernels_sm100.errors import ConfigError


@pytest.mark.parametrize(
    ("kind", "change", "text"),
    [
        (
            ForwardConfig,
            {"inner_load": "TMA"},
            (
                "inner_load of the wrong type in ForwardConfig: got 'TMA' of type str, wanted "
                "InnerLoadMode; convert it."
            ),
        ),
        (
            ForwardConfig,
            {"stages": 2.5},
            (
                "stages of the wrong type in ForwardConfig: got 2.5 of type float, wanted int or "
                "NoneType; convert it."
            ),
        ),
        (
            ForwardConfig,
            {"head_dim": "64"},
            (
                "head_dim of the wrong type in ForwardConfig: got '64' of type str, wanted int; "
                "convert it."
            ),
        ),
        (
            ForwardConfig,
            {"q_tiles": True},
            (
                "q_tiles of the wrong type in ForwardConfig: got True of type bool, wanted int; "
                "convert it."
            ),
        ),
        (
            BackwardConfig,
            {"group": 2.0},
            (
                "group of the wrong type in BackwardConfig: got 2.0 of type float, wanted int; "
                "convert it."
            ),
        ),
        (
            BackwardConfig,
            {"deterministic": 1},
            (
                "deterministic of the wrong type in BackwardConfig: got 1 of type int, wanted "
                "bool; convert it."
            ),
        ),
    ],
)
def test_a_field_of_another_type_is_refused(kind, change, text):
    with pytest.raises(ConfigError) as raised:
        kind(**change)

    assert str(raised.value) == text
