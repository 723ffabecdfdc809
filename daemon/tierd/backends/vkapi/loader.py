"""What steers Vulkan's loader from outside.

https://github.com/KhronosGroup/Vulkan-Loader/blob/main/docs/LoaderDriverInterface.md
"""

from __future__ import annotations

# Environment variables that name drivers: those instead of the installed ones, and the one beside them.
DRIVERS_INSTEAD = ("VK_DRIVER_FILES", "VK_ICD_FILENAMES")
DRIVERS_BESIDE = "VK_ADD_DRIVER_FILES"
