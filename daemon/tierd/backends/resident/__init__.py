"""A whole model on a Vulkan device: its plan as dispatches that are recorded once and replayed."""
