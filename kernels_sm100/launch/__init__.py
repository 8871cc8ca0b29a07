"""From a frozen configuration to code that can be called: keys, the compile cache, CuTe DSL.

Importing this package imports neither cutlass nor tvm_ffi.
"""

from kernels_sm100.launch.cache import CompileCache as CompileCache
from kernels_sm100.launch.compile import Compiled as Compiled
from kernels_sm100.launch.compile import compile_kernel as compile_kernel
from kernels_sm100.launch.heads import expand_heads as expand_heads
from kernels_sm100.launch.key import compile_key as compile_key
