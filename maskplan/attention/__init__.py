"""Running attention under a plan: `attention`, `backends` and `verify`."""

from maskplan.attention.dispatch import BackendStatus, attention, backends
from maskplan.attention.verification import VerifyReport, verify

__all__ = ["BackendStatus", "VerifyReport", "attention", "backends", "verify"]
