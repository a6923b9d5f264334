"""Nouns and rules of the loop. Nothing here does I/O, and nothing here imports another room."""
