"""The admin API, on listeners of its own. `app` is where to begin to read."""
