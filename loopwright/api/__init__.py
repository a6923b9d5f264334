"""The HTTP API: thin routes. Each parses, calls one service function and returns."""
