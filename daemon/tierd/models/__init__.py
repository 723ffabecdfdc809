"""A file becomes a plan: GGUF reading, weight and K/V formats, the op list, one file per family."""
