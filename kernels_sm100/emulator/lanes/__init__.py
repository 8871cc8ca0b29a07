"""Arithmetic of one warp: functions from arrays of 32 lanes to arrays of 32 lanes."""
