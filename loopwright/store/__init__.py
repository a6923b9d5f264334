"""Where a run is recorded: in memory, and as JSON lines on disk."""
