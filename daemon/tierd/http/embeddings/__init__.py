"""/v1/embeddings. `routes` is where to begin to read."""
