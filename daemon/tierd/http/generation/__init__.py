"""What all that generate text share: from a body to the engine, and its events back."""
