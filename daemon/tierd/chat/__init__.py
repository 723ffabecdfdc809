"""Text becomes token ids and back: tokenizers, chat templates, stop strings."""
