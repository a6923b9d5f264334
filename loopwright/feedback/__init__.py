"""Evaluators: each one small file, one registry."""
