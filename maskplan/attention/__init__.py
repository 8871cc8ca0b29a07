"""Running attention under a plan: `attention`, `backends` and `verify`."""

from maskplan.attention.choice import BackendStatus
from maskplan.attention.dispatch import attention, backends
from maskplan.attention.report import VerifyReport
from maskplan.attention.verification import verify

__all__ = ["BackendStatus", "VerifyReport", "attention", "backends", "verify"]
