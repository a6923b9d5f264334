"""Evaluators against real servers and real processes."""
