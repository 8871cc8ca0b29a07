"""The array type of lanes."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Lanes = NDArray[Any]  # 32 values, or 64 where two are packed in a lane
Mask = NDArray[np.bool_]
