"""A second opinion on a captured launch, from a verifier by others.

SentryWard proves synchronisation, race freedom and lifetimes of one launch shape, for every
schedule. It has no values: integer tables that decide control flow are given to it, and where data
decides a branch it is told which way. What it does not model (fences, values) the emulator does.
"""

from kernels_sm100.verify.description import Captured as Captured
from kernels_sm100.verify.description import describe as describe
from kernels_sm100.verify.sentryward import Verdict as Verdict
from kernels_sm100.verify.sentryward import verify as verify
from kernels_sm100.verify.sentryward import vote_branches as vote_branches
