"""From an agent's spec to a pydantic-ai agent whose every model request goes through the wallet."""
