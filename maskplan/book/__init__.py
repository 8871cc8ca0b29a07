"""Plan books: which plan a model uses at each step, layer and head."""

from maskplan.book.entries import PlanKeyError
from maskplan.book.plan_book import PlanBook

__all__ = ["PlanBook", "PlanKeyError"]
