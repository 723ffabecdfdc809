"""/v1/chat/completions. `routes` is where to begin to read."""
