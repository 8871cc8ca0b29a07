"""An emulator of sm_100a PTX: it executes what the compiler emitted and says what is wrong with it.

`emulate(launch, memory)` runs one captured launch. It answers three questions that no compiler
does: are the values right, is every access ordered, and does every wait end, in any schedule.
"""

from kernels_sm100.emulator.global_memory import Allocation as Allocation
from kernels_sm100.emulator.global_memory import GlobalMemory as GlobalMemory
from kernels_sm100.emulator.launch import Launch as Launch
from kernels_sm100.emulator.launch import Report as Report
from kernels_sm100.emulator.launch import emulate as emulate
