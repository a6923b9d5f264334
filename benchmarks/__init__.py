"""Benchmarks: each prints its figures, and with `--check` exits 1 where a target is missed."""
