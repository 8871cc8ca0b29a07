"""Files that `maskplan convert` reads and writes: what each is, and what it leaves out."""

from maskplan.cli.formats.answers import Answers, check
from maskplan.cli.formats.table import FORMATS, Format, format_of

__all__ = ["FORMATS", "Answers", "Format", "check", "format_of"]
