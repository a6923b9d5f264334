"""The loop: `loop.py` is all of it, `history.py` is what the agent is shown."""
