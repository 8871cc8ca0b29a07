"""What planning and attention cost on this machine, beside the engines that are there.

A case names some works, prepared on demand. They are run in turn, so that a machine that slows down
slows all of them; the time is the median of each, and what is judged is a ratio of two. Every
finished case is a line of JSON, and a case that has its line is not run again.
"""

from maskplan.bench.case import Case, Figure, Missing, Prepared
from maskplan.bench.journal import Journal
from maskplan.bench.machine import Machine
from maskplan.bench.runner import run

__all__ = ["Case", "Figure", "Journal", "Machine", "Missing", "Prepared", "run"]
