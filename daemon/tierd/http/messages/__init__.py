"""/v1/messages: Anthropic's API. `routes` is where to begin to read."""
