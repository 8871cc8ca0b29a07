"""Running attention under a plan: `attention`, `backends` and `verify`."""

from maskplan.attention.dispatch import BackendStatus, attention, backends

__all__ = ["BackendStatus", "attention", "backends"]
