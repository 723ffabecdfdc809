"""/v1/completions. `routes` is where to begin to read."""
