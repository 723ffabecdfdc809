"""The tier: which models run on the device, what they get there, and why one does not."""
