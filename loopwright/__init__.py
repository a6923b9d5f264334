"""Runs an agent in a feedback loop on a budget that can't be exceeded."""
