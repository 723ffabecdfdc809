"""The exception tree. Every error tierd raises on purpose is one of these.

    TierdError
    ├── SettingsError            a setting, flag or settings file is wrong (exit code 2)
    ├── ModelError               a model cannot be loaded (exit code 4)
    │   ├── ModelFileError       the GGUF file is damaged or lies about itself
    │   └── UnsupportedModelError  a sound file that asks for what tierd does not have
    │       └── UnsupportedCodecError  its K/V is to be kept in a way that the device does not know
    ├── RequiredTierError        a model does not reach the tier that it must run on (exit code 3)
    ├── RequestError             a client's request cannot be served as asked
    │   ├── InvalidRequestError  a field is wrong; names it
    │   │   ├── ContextLengthExceededError
    │   │   └── PreviousResponseNotFoundError
    │   ├── ModelNotFoundError
    │   ├── OperationNotFoundError
    │   ├── ResponseNotFoundError
    │   ├── ConflictError        it cannot be done as things stand: a name is taken, others are in the way
    │   ├── UnauthorizedError    a key or token is missing or wrong
    │   ├── ForbiddenError       it comes by a name, or from a page, that is not to be let in
    │   ├── BusyError            too many requests wait: try again in a while that it names
    │   │   ├── QueueFullError
    │   │   ├── QueueTimeoutError
    │   │   └── RateLimitError   an API key has had what it may take
    │   ├── SlowReaderError      the client did not take what it asked for
    │   └── UnavailableError     shutting down or not ready: try again later
    ├── ExecutorError            a backend failed while it ran a step
    ├── StateError               what is to be there after a restart, or is not to be, is not so on the disk
    ├── OrderError               a model was to leave a device, or come to it, before its time
    ├── DeviceError              a Vulkan device cannot be used, or refuses what is asked of it
    │   ├── NoDeviceError        there is none that may be used
    │   ├── DeviceMemoryError    it has no room for that
    │   ├── DeviceLostError      it is gone, with all that it held
    │   └── DeviceTimeoutError   it did not finish in time
    └── DaemonError              a daemon that a command asks is not there, or says no

Messages are one line: what is wrong, where, and what to do. They are shown to people as they are.
"""

from __future__ import annotations


def one_line(text: str) -> str:
    """Return a text whose lines, if it has several, follow each other in one."""
    return " ".join(line.strip() for line in text.splitlines() if line.strip())


class TierdError(Exception):
    """Base of the tree. `str(error)` is the one line shown to a person, whatever it is made from.

    quotes: whether that may repeat what a client has sent, or was answered; no log has it then.
    """

    quotes = False

    def __str__(self) -> str:
        return one_line(super().__str__())


class SettingsError(TierdError):
    """A setting, a flag or the settings file is wrong."""

    def __init__(self, message: str, *, key: str | None = None) -> None:
        """`key` names the setting at fault, where it is one of a table."""
        super().__init__(message)
        self.key = key


class ModelError(TierdError):
    """A model cannot be loaded."""


class ModelFileError(ModelError):
    """The GGUF file is damaged, cut short, or lies about itself; names the key or tensor."""


class UnsupportedModelError(ModelError):
    """A sound file asks for an architecture, format or tokenizer that tierd does not have."""


class UnsupportedCodecError(UnsupportedModelError):
    """A model's K/V is to be kept in a codec that the device does not know."""


class RequiredTierError(TierdError):
    """A required tier was not reached: the device declines the model, or there is none; says why."""


class RequestError(TierdError):
    """A client's request cannot be served. `code` is the OpenAI error code."""

    code: str | None = None

    def __init__(self, message: str, *, param: str | None = None) -> None:
        """`param` is the path of the request field at fault, such as `messages[0].role`."""
        super().__init__(message)
        self.param = param


class InvalidRequestError(RequestError):
    """A field is missing, has the wrong type or a value out of range."""

    quotes = True


class ContextLengthExceededError(InvalidRequestError):
    """Prompt plus output do not fit the model's context."""

    quotes = False

    code = "context_length_exceeded"


class PreviousResponseNotFoundError(InvalidRequestError):
    """The response that a conversation is to go on from is not there."""

    code = "previous_response_not_found"


class ModelNotFoundError(RequestError):
    """No model of that name is served; the message lists the names that are."""

    code = "model_not_found"


class OperationNotFoundError(RequestError):
    """No operation of that id runs, or has ended lately."""

    code = "operation_not_found"


class ResponseNotFoundError(RequestError):
    """No response of that id runs or is kept."""

    code = "response_not_found"


class ConflictError(RequestError):
    """It cannot be done as things stand; the message says what is in the way."""

    code = "conflict"


class UnauthorizedError(RequestError):
    """The request shows no key or token, or a wrong one."""

    code = "invalid_api_key"


class ForbiddenError(RequestError):
    """The request names a host that is not this server, or was made by a page of somebody else's."""

    code = "forbidden"


class BusyError(RequestError):
    """More is asked of a model than it can serve now."""

    def __init__(self, message: str, *, retry_after: int) -> None:
        """`retry_after` is the number of seconds after which another try may do better."""
        super().__init__(message)
        self.retry_after = retry_after


class QueueFullError(BusyError):
    """The queue holds as many requests as it may."""

    code = "queue_full"


class QueueTimeoutError(BusyError):
    """The request has waited as long as it may."""

    code = "queue_timeout"


class RateLimitError(BusyError):
    """The API key has had as many requests or tokens as it may."""

    code = "rate_limit_exceeded"


class SlowReaderError(RequestError):
    """The client has not read its stream for too long."""

    code = "slow_reader"


class UnavailableError(RequestError):
    """The server is shutting down, or no model is ready."""

    code = "unavailable"


class ExecutorError(TierdError):
    """A backend failed while it ran a step."""


class StateError(TierdError):
    """The folder of `state.dir` does not hold what it should, or still holds what it should not."""


class OrderError(TierdError):
    """Calls on a model's seat at a device came in an order that would lose rows; nothing was touched."""


class DeviceError(TierdError):
    """A Vulkan device cannot be used, or refuses what is asked of it; says what is missing."""


class NoDeviceError(DeviceError):
    """No device is there, or none that may be used."""


class DeviceMemoryError(DeviceError):
    """The device, or the part of it that tierd may use, has no room for an allocation."""


class DeviceLostError(DeviceError):
    """The device is gone: what it held is lost, and nothing more can be asked of it."""


class DeviceTimeoutError(DeviceError):
    """The device did not finish its work in time."""


class DaemonError(TierdError):
    """A command such as `tierd chat` cannot reach its daemon, or gets an error from it."""
