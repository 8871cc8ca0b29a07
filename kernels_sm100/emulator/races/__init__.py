"""Data races by happens-before: clocks, shadow memory, and the events that order accesses."""
