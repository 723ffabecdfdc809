"""The Vulkan instance: which physical devices there are, and what the validation layer says."""

from __future__ import annotations

import logging
from contextlib import closing
from typing import Any, Literal

from tierd.backends.vkapi.binding import Structs, Vk
from tierd.backends.vkapi.choose import choose_device
from tierd.backends.vkapi.facts import DeviceFacts, read_facts, version_of
from tierd.errors import DeviceError

Validation = bool | Literal["sync"]
_LAYER = "VK_LAYER_KHRONOS_validation"
_API = (1, 3)

_log = logging.getLogger(__name__)


def loader_version() -> tuple[int, int, int]:
    """Return the version of Vulkan that the loader knows. DeviceError where there is no loader."""
    vk = Vk()
    out = vk.ffi.new("uint32_t *")
    vk.call("vkEnumerateInstanceVersion", out)
    return version_of(int(out[0]))


def physical_devices() -> list[DeviceFacts]:
    """Return the facts of every physical device. DeviceError where there is no Vulkan, or no driver."""
    with closing(Instance()) as instance:
        return instance.facts


class Instance:
    """An instance, with the validation layer if asked for.

    messages: the layer's warnings and errors, in order. facts: of every physical device, in order.
    """

    def __init__(self, *, validate: Validation = False) -> None:
        """validate: "sync" also checks barriers. DeviceError where there is no Vulkan, or no such layer."""
        self.vk = Vk()
        self.messages: list[str] = []
        self._messenger: Any = self.vk.null
        self._callback: Any = None
        self._create(validate)
        try:
            handles = self.vk.enumerate("vkEnumeratePhysicalDevices", "VkPhysicalDevice", self.vk.instance)
            self.physical = list(handles)
            self.facts = [read_facts(self.vk, physical) for physical in self.physical]
        except DeviceError:
            self.close()
            raise

    def choose(self, *, allow_software: bool) -> tuple[Any, DeviceFacts]:
        """Return the device to use and its facts. Raises DeviceError with the reasons when there is none."""
        index = choose_device(self.facts, allow_software=allow_software)
        return self.physical[index], self.facts[index]

    def close(self) -> None:
        """Destroy it. Idempotent; its devices are closed."""
        vk = self.vk
        if vk.instance == vk.null:
            return
        if self._messenger != vk.null:
            vk.call("vkDestroyDebugUtilsMessengerEXT", vk.instance, self._messenger, vk.null)
        vk.call("vkDestroyInstance", vk.instance, vk.null)
        vk.instance = vk.null

    def _create(self, validate: Validation) -> None:
        vk, structs = self.vk, self.vk.structs()
        application = structs.new(
            "VkApplicationInfo", pApplicationName="tierd", apiVersion=_API[0] << 22 | _API[1] << 12
        )
        layers, extensions, following = [], [], vk.null
        if validate:
            self._demand_layer()
            layers, extensions = [_LAYER], ["VK_EXT_debug_utils"]
            following = self._messenger_info(structs)
            if validate == "sync":
                extensions.append("VK_EXT_validation_features")
                following.pNext = self._synchronisation(structs)
        info = structs.new(
            "VkInstanceCreateInfo",
            pNext=following,
            pApplicationInfo=application,
            enabledLayerCount=len(layers),
            ppEnabledLayerNames=structs.texts(layers),
            enabledExtensionCount=len(extensions),
            ppEnabledExtensionNames=structs.texts(extensions),
        )
        vk.instance = vk.create("vkCreateInstance", "VkInstance", info, vk.null)
        if validate:
            following.pNext = vk.null
            self._messenger = vk.create(
                "vkCreateDebugUtilsMessengerEXT",
                "VkDebugUtilsMessengerEXT",
                vk.instance,
                following,
                vk.null,
            )

    def _demand_layer(self) -> None:
        found = self.vk.enumerate("vkEnumerateInstanceLayerProperties", "VkLayerProperties")
        if _LAYER not in {self.vk.text(layer.layerName) for layer in found}:
            raise DeviceError(f"the system has no {_LAYER}; install it (Debian: vulkan-validationlayers)")

    def _messenger_info(self, structs: Structs) -> Any:
        k, ffi = self.vk.k, self.vk.ffi

        def heard(_severity: int, _kind: int, data: Any, _user: Any) -> int:
            message = self.vk.text(data.pMessage)
            _log.warning("Vulkan validation: %s", message)
            self.messages.append(message)
            return 0

        self._callback = ffi.callback("PFN_vkDebugUtilsMessengerCallbackEXT", heard)
        return structs.new(
            "VkDebugUtilsMessengerCreateInfoEXT",
            messageSeverity=k.VK_DEBUG_UTILS_MESSAGE_SEVERITY_WARNING_BIT_EXT
            | k.VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT,
            messageType=k.VK_DEBUG_UTILS_MESSAGE_TYPE_GENERAL_BIT_EXT
            | k.VK_DEBUG_UTILS_MESSAGE_TYPE_VALIDATION_BIT_EXT
            | k.VK_DEBUG_UTILS_MESSAGE_TYPE_PERFORMANCE_BIT_EXT,
            pfnUserCallback=self._callback,
        )

    def _synchronisation(self, structs: Structs) -> Any:
        enabled = [self.vk.k.VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT]
        return structs.new(
            "VkValidationFeaturesEXT",
            enabledValidationFeatureCount=len(enabled),
            pEnabledValidationFeatures=structs.array("VkValidationFeatureEnableEXT", enabled),
        )
