"""What the command line shows: the live view, plain lines, events as JSON, and the end of a run."""
