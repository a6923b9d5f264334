"""The use cases. Every door calls these and nothing below."""
