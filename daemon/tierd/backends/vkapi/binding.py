"""The one door to Vulkan: functions, constants and structs by their names, out of the `vulkan` package.

Functions are called through cffi with structs built here, not through the package's wrappers: those copy
nested structs and let go of what they point to. cffi releases the GIL during every call. Each call is
counted, each result that is not a success becomes an error of tierd's tree (`results`), and a result can be
injected (`faults`), so that a fault takes the path of a real one. A device that is lost is given up at once.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Iterable
from typing import Any

from tierd.backends.vkapi.faults import Faults
from tierd.backends.vkapi.results import INCOMPLETE, error_of
from tierd.errors import DeviceError, DeviceLostError

# Calls that stand above any instance; the loader knows them without one.
_GLOBAL = frozenset(
    {
        "vkCreateInstance",
        "vkEnumerateInstanceVersion",
        "vkEnumerateInstanceExtensionProperties",
        "vkEnumerateInstanceLayerProperties",
    }
)


class Structs:
    """Builds structs, and keeps each of them and all that it points to as long as itself.

    A local variable that holds one until the function returns is enough to call Vulkan safely.
    """

    def __init__(self, vk: Vk) -> None:
        self._vk = vk
        self._kept: list[Any] = []

    def new(self, name: str, **fields: Any) -> Any:
        """Return a pointer to a zeroed struct with its sType and the given fields set.

        A str becomes a C string; structs nested by value are given as `pointer[0]`.
        """
        struct = self._vk.ffi.new(f"{name} *")
        type_id = self._vk.type_id(name)
        if type_id is not None:
            struct.sType = type_id
        for field, value in fields.items():
            if isinstance(value, str):
                value = self.text(value)
            setattr(struct, field, value)
            self._kept.append(value)
        self._kept.append(struct)
        return struct

    def array(self, ctype: str, values: Iterable[Any]) -> Any:
        """Return a C array of `ctype`, which may be a handle, a number or a struct."""
        values = list(values)
        array = self._vk.ffi.new(f"{ctype}[]", values)
        self._kept.extend((values, array))
        return array

    def text(self, value: str) -> Any:
        """Return a C string."""
        text = self._vk.ffi.new("char[]", value.encode())
        self._kept.append(text)
        return text

    def texts(self, values: Iterable[str]) -> Any:
        """Return an array of C strings."""
        return self.array("char *", [self.text(value) for value in values])

    def chain(self, *structs: Any) -> Any:
        """Link structs by their pNext, in order, and return the first."""
        for struct, following in itertools.pairwise(structs):
            struct.pNext = following
        return structs[0]


class Vk:
    """Vulkan, bound to an instance and a device once these are set.

    ffi: the package's cffi, null its NULL. k: where its constants are. where: what errors say has failed.
    calls: the calls made so far, exact while one thread makes them. given_up: why nothing is called any more,
    "" as long as it is.
    """

    def __init__(self) -> None:
        """Raise DeviceError where the package or the system's Vulkan loader is missing."""
        try:
            self.k: Any = importlib.import_module("vulkan")
        except ImportError as error:
            raise DeviceError(f"the Python package vulkan cannot be imported ({error}); install it") from None
        except OSError:
            raise DeviceError(
                "the system has no Vulkan loader, libvulkan.so.1; install it (Debian: libvulkan1)"
            ) from None
        self.ffi: Any = self.k.ffi
        self.null: Any = self.ffi.NULL
        self.instance: Any = self.null
        self.device: Any = self.null
        self.where = "Vulkan"
        self.calls = 0
        self.given_up = ""
        self._functions: dict[str, Any] = {}
        self._type_ids: dict[str, int | None] = {}
        self._faults = Faults()

    def call(self, name: str, *args: Any) -> None:
        """Call a function that returns a result or nothing. Raises DeviceError for whatever is no success."""
        result = self.value(name, *args)
        if result:
            error = error_of(int(result), name, self.where)
            if isinstance(error, DeviceLostError):
                self.give_up(error)
            raise error

    def give_up(self, error: DeviceError) -> None:
        """Call nothing any more because of an error, the first of which stays the reason.

        What would free something does nothing from now on, since work that never ends may still use it; all
        else raises DeviceLostError.
        """
        self.given_up = self.given_up or str(error)

    def check(self) -> None:
        """Raise DeviceLostError, with the reason, where nothing is called any more."""
        if self.given_up:
            raise DeviceLostError(f"{self.where} was given up: {self.given_up}")

    def value(self, name: str, *args: Any) -> Any:
        """Call a function and return what it returns, a result code included."""
        if self.given_up:
            if name.startswith(("vkDestroy", "vkFree")):
                return None
            self.check()
        self.calls += 1
        if self._faults and (fault := self._faults.take(name)) is not None:
            return fault
        try:
            function = self._functions[name]
        except KeyError:
            function = self._functions[name] = self._resolve(name)
        return function(*args)

    def inject(self, name: str, result: int | None, *, after: int = 0, times: int | None = None) -> None:
        """Let calls of a function return `result` without being made; None: let them be made again.

        after: how many are made before. times: how many return it, None for all.
        """
        if result is None:
            self._faults.clear(name)
        else:
            self._faults.put(name, result, after=after, times=times)

    def create(self, name: str, ctype: str, *args: Any) -> Any:
        """Call a function whose last parameter is where it puts the `ctype` it makes, and return that."""
        out = self.ffi.new(f"{ctype} *")
        self.call(name, *args, out)
        return out[0]

    def enumerate(self, name: str, ctype: str, *args: Any) -> Any:
        """Call a function that fills a counted array of `ctype`, and return the array."""
        type_id = self.type_id(ctype) if self.ffi.typeof(ctype).kind == "struct" else None
        while True:
            count = self.ffi.new("uint32_t *")
            self.call(name, *args, count, self.null)
            items = self.ffi.new(f"{ctype}[]", count[0])
            if type_id is not None:
                for item in items:
                    item.sType = type_id
            result = self.value(name, *args, count, items)
            if result and result != INCOMPLETE:
                raise error_of(int(result), name, self.where)
            if not result and count[0] == len(items):  # else their number has changed in between
                return items

    def structs(self) -> Structs:
        """Return a builder of structs."""
        return Structs(self)

    def text(self, chars: Any) -> str:
        """Return a C string as str."""
        return str(self.ffi.string(chars).decode(errors="replace"))

    def type_id(self, name: str) -> int | None:
        """Return the sType of a struct, None for one that has none."""
        if name not in self._type_ids:
            typed = any(field == "sType" for field, _ in self.ffi.typeof(name).fields)
            self._type_ids[name] = int(getattr(self.k, name)().sType) if typed else None
        return self._type_ids[name]

    def _takes_device(self, name: str) -> bool:
        """Whether a function is of a device, or of what belongs to one; not of a physical device."""
        above = [self.ffi.typeof(handle) for handle in ("VkInstance", "VkPhysicalDevice")]
        return self.ffi.typeof(f"PFN_{name}").args[0] not in above

    def _resolve(self, name: str) -> Any:
        """Find a function as near to the device as it is known, which saves the loader's dispatch."""
        if name in _GLOBAL:
            return getattr(self.k.lib, name)
        address = self.null
        text = self.ffi.new("char[]", name.encode())
        if self.device != self.null and self._takes_device(name):
            address = self.k.lib.vkGetDeviceProcAddr(self.device, text)
        if address == self.null:
            address = self.k.lib.vkGetInstanceProcAddr(self.instance, text)
        if address == self.null:
            raise DeviceError(f"{self.where} lacks the function {name}; update the driver")
        return self.ffi.cast(f"PFN_{name}", address)
