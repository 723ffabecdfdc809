"""An environment in which Vulkan finds no driver, whatever the machine has."""

from __future__ import annotations

NO_GPU = {"VK_DRIVER_FILES": "/nonexistent.json", "VK_ICD_FILENAMES": "/nonexistent.json"}
NO_DRIVER = "Vulkan has no compatible driver (vkCreateInstance); install one"
