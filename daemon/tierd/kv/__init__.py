"""K/V memory on the host: its pages, and how many a model gets."""
