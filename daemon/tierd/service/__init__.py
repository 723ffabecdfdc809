"""How tierd stands to what runs it: what systemd hands over, and what it is told."""
