"""Runs sm_100a PTX on a CPU, and says what is wrong with it."""
