"""Settings: a TOML file becomes frozen dataclasses.

The dataclasses below are the table of settings: a field is one row, with its name, type, default and
check, and `live` where it may change while tierd runs. `config/tierd.toml` is their manual. A row exists only
once it works; a key that has no row is an error that names the key and the nearest one that exists.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
import re
import tomllib
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tierd.errors import SettingsError

KV_DTYPES = ("f32", "f16", "q8_0", "tq4")
GPU_MODES = ("auto", "off", "resident", "rails")
GPU_TIERS = ("none", "rails", "resident")
RESUMES = ("device", "cpu")
POOLINGS = ("none", "mean", "cls", "last")
LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("text", "json")
DAY_S = 86400
MOST_OFTEN_S = 0.1
MOST_REGIONS = 1024
# Characters of a value, or of a key, in a message.
MOST_SHOWN = 200

# A check answers what is wrong with a value, in words that follow "must", or "" when it is fine.
Check = Callable[[Any], str]


def split_address(text: str) -> tuple[str, int]:
    """Split `HOST:PORT` or `[IPv6]:PORT`. Port 0 lets the system choose one.

    Raises ValueError when `text` is neither.
    """
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\s:\[\]/]+)):([0-9]{1,5})", text)
    if match is None or int(match[3]) > 65535:
        raise ValueError(f"{text!r} is not HOST:PORT")
    return match[1] or match[2], int(match[3])


def _address(value: str) -> str:
    try:
        split_address(value)
    except ValueError:
        return 'be HOST:PORT, such as "127.0.0.1:8080" or "[::1]:8080"'
    return ""


def _optional_address(value: str) -> str:
    return _address(value) if value else ""


def _socket(value: str) -> str:
    if value in ("auto", "off") or (value.startswith("/") and "\0" not in value):
        return ""
    return 'be "auto", "off" or a path that begins with /'


def _host(value: str) -> str:
    if value == "*" or re.fullmatch(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*", value):
        return ""
    return 'hold names of hosts in small letters, without a port, or "*"'


def _origin(value: str) -> str:
    if value == "*" or re.fullmatch(r"[a-z][a-z0-9+.-]*://[^\s/A-Z]+", value):
        return ""
    return 'hold origins in small letters, such as "https://chat.example.org", or "*"'


def _each(check: Check) -> Check:
    """Ask it of each entry of a list."""
    return lambda values: next(filter(None, map(check, values)), "")


def _collector(value: str) -> str:
    if re.fullmatch(r"https?://[^\s/?#]+(/\S*)?", value):
        return ""
    return 'be a URL, such as "http://127.0.0.1:4318/v1/traces"'


def _model_id(value: str) -> str:
    if re.fullmatch(r"\S{1,128}", value) and value.isprintable() and value != "-":  # which stands for none
        return ""
    return 'be a name of 1 to 128 printable characters without spaces, and not "-"'


def key_name(value: str) -> str:
    """Say what is wrong with the name of an API key, "" when it is fine."""
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}", value):
        return ""
    return "be 1 to 64 letters, digits and . _ @ -, the first a letter or digit"


def _within(low: float, high: float) -> Check:
    return lambda value: "" if low <= value <= high else f"lie between {low} and {high}"


# Each number has an end: what is counted, and what is measured in MiB.
_COUNT, _MEMORY_MB = _within(0, 2**31 - 1), _within(0, 2**30)


def _interval(value: float) -> str:
    """Between two rounds there is to be time in which none goes on."""
    if value == 0 or MOST_OFTEN_S <= value <= DAY_S:
        return ""
    return f"be 0 or lie between {MOST_OFTEN_S} and {DAY_S}"


def _one_of(*choices: str) -> Check:
    def check(value: str) -> str:
        return "" if value in choices else "be one of " + ", ".join(choices)

    return check


def _optional(check: Check) -> Check:
    """Let "" pass as well."""
    return lambda value: check(value) if value else ""


def _checked(check: Check) -> Mapping[str, Check]:
    return {"check": check}


def _live(check: Check = lambda value: "") -> Mapping[str, Check | bool]:
    """Return the metadata of a row that may change while tierd runs."""
    return {"check": check, "live": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """`[server]`: the public listener, its readers and its end.

    api_keys_file: names the keys of whom it serves, see `http.keys`; None: it serves everybody.
    hosts, cors_origins: see `http.doors`.
    connections: most of them at the same time. request_timeout_s: a request must arrive within it.
    reader_backlog: pieces of text of one stream that its client has not taken; with so many it pauses.
    reader_timeout_s: how long a stream pauses for its client before it is cancelled. See `http.protocol` for
    other answers.
    drain_s: how long running streams may take to finish once the server is told to end.
    """

    listen: str = field(default="127.0.0.1:8080", metadata=_checked(_address))
    api_keys_file: Path | None = None
    hosts: tuple[str, ...] = field(default=(), metadata=_checked(_each(_host)))
    cors_origins: tuple[str, ...] = field(default=(), metadata=_checked(_each(_origin)))
    connections: int = field(default=512, metadata=_checked(_within(1, 65536)))
    request_timeout_s: float = field(default=60.0, metadata=_checked(_within(0.1, 3600)))
    reader_backlog: int = field(default=256, metadata=_checked(_within(1, 65536)))
    reader_timeout_s: float = field(default=30.0, metadata=_checked(_within(0.01, DAY_S)))
    drain_s: float = field(default=20.0, metadata=_live(_within(0, DAY_S)))


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminSettings:
    """`[admin]`: the listeners of the admin API, never the public one.

    socket: path of a Unix socket, "off", or "auto" for the first of `admin_sockets`.
    listen: a TCP address beside it, "" for none; whoever calls there shows the token of token_file.
    """

    socket: str = field(default="auto", metadata=_checked(_socket))
    listen: str = field(default="", metadata=_checked(_optional_address))
    token_file: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """`[log]`: what is written to standard error, and how. prompts: whether prompts and answers are."""

    level: str = field(default="info", metadata=_live(_one_of(*LOG_LEVELS)))
    format: str = field(default="text", metadata=_live(_one_of(*LOG_FORMATS)))
    prompts: bool = field(default=False, metadata=_live())


@dataclass(frozen=True, slots=True, kw_only=True)
class TracesSettings:
    """`[traces]`: spans of requests. endpoint: URL of a collector of OpenTelemetry's; "": none are sent."""

    endpoint: str = field(default="", metadata=_checked(_optional(_collector)))


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """`[engine]`: how steps are run. threads 0: the cores this process may use.

    chunk_rows: most rows of prompts in a step. gap_ms: between two tokens of a stream; 0: whatever it is.
    """

    threads: int = field(default=0, metadata=_checked(_within(0, 1024)))
    chunk_rows: int = field(default=256, metadata=_checked(_within(1, 65536)))
    gap_ms: float = field(default=60.0, metadata=_live(_within(0, 60_000)))


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """`[queue]`: how many requests of one model may wait, and for how long. timeout_s 0: as it takes.

    ageing_s: by how much a priority is sooner than the next one; see `engine.queue`.
    """

    capacity: int = field(default=64, metadata=_live(_COUNT))
    timeout_s: float = field(default=30.0, metadata=_live(_within(0, DAY_S)))
    ageing_s: float = field(default=5.0, metadata=_live(_within(0, 3600)))


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitsSettings:
    """`[limits]`: tokens a request may bring and ask for. 0: what the context allows."""

    max_prompt_tokens: int = field(default=0, metadata=_live(_COUNT))
    max_output_tokens: int = field(default=0, metadata=_live(_COUNT))


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponsesSettings:
    """`[responses]`: responses of /v1/responses that are kept after they have ended.

    capacity: most of them. memory_mb: most MiB that they take together.
    """

    capacity: int = field(default=1000, metadata=_checked(_COUNT))
    memory_mb: int = field(default=64, metadata=_checked(_MEMORY_MB))


@dataclass(frozen=True, slots=True, kw_only=True)
class KVSettings:
    """`[kv]`: K/V of all models on the host.

    memory_mb: how many MiB their pages may take; 0: a share of free memory.
    bank_mb: how many MiB rows may take that are in no page and on no device; 0: a share of free memory.
    prefix_cache: whether pages are kept for later prompts that begin with the same tokens.
    share_prefix: whether they are for prompts of any API key, or of the same one alone.
    """

    memory_mb: int = field(default=0, metadata=_checked(_MEMORY_MB))
    bank_mb: int = field(default=0, metadata=_checked(_MEMORY_MB))
    prefix_cache: bool = True
    share_prefix: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSettings:
    """`[state]`: files for K/V that memory does not hold, or that is to be there after a restart.

    dir: the folder, which is made; None: K/V ends with the process, or when memory does not hold it.
    max_mb: how many MiB all files may take; 0: as the disk allows.
    interval_s: how long after all parked K/V was written there it is again; 0: at the end only.
    save_s: how long that may take at the end.
    """

    dir: Path | None = None
    max_mb: int = field(default=0, metadata=_checked(_MEMORY_MB))
    interval_s: float = field(default=0.0, metadata=_checked(_interval))
    save_s: float = field(default=30.0, metadata=_checked(_within(0, DAY_S)))


@dataclass(frozen=True, slots=True, kw_only=True)
class GPUSettings:
    """`[gpu]`: whether models run on a GPU, and what happens when they cannot.

    mode: "resident" asks for whole models there, "rails" for the large matmuls of as many layers as
    fit, "auto" for the one where there is a device at all, and for the other where a model does not fit.
    allow_software: whether a device that is a program on the processor counts.
    require: what every model must reach; with "none" it may run on the CPU instead.
    vram_limit_mb: MiB of device memory that all models may take; 0: what the device has.
    rails_rows: least rows of a step whose matmuls are worth carrying to the device, with rails.
    cooperative_matrix: whether a device that multiplies matrices does so, where bits then depend on the load.
    """

    mode: str = field(default="auto", metadata=_checked(_one_of(*GPU_MODES)))
    allow_software: bool = False
    require: str = field(default="none", metadata=_checked(_one_of(*GPU_TIERS)))
    vram_limit_mb: int = field(default=0, metadata=_checked(_MEMORY_MB))
    rails_rows: int = field(default=64, metadata=_checked(_within(1, 65535)))
    cooperative_matrix: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchSettings:
    """`[switch]`: how models take turns on a GPU that does not hold all of them.

    min_hold_s: a model with work stays at least so long, or four times as long as the last switch took.
    max_wait_s: streams that wait for their model make way for no other's work for longer than that.
    resume: where streams go on whose model has to leave: on the "device", once it is back, or on the "cpu".
    idle_s: a model that has had no stream for so long leaves the GPU; 0: only for another.
    """

    min_hold_s: float = field(default=2.0, metadata=_live(_within(0, DAY_S)))
    max_wait_s: float = field(default=10.0, metadata=_live(_within(0, DAY_S)))
    resume: str = field(default="device", metadata=_live(_one_of(*RESUMES)))
    idle_s: float = field(default=0.0, metadata=_live(_within(0, 30 * DAY_S)))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """One `[[models]]` table.

    context: most positions of one stream; 0: the model's own, as far as memory allows.
    ctx_strict: a GPU that has not the memory for `context` declines, instead of keeping less of a stream.
    streams: most requests served at the same time; further ones wait.
    regions: streams whose K/V a GPU keeps; 0: `streams`.
    resident_prefill_allowed: prompts of other streams are computed on the GPU too, in one more region.
    pin: it never leaves a GPU for another model. preload: it comes to a GPU when it is loaded, if there is
    room; else when a request wants it.
    weight: its share of a device's time, relative to other models that have work there.
    kv_dtype: "" for what `codec` says.
    require: as in [gpu]; "": what stands there.
    chat_template: a Jinja file used instead of the template in the model file.
    pooling: how embeddings come of hidden states; "": as the file says, "last" where it is silent.
    matryoshka: whether the first values of its embeddings are embeddings themselves.
    temperature to penalty_window: the sampling of a request that is silent about it; see
    `core.SamplingParams`.
    """

    id: str = field(metadata=_checked(_model_id))
    path: Path
    default: bool = False
    context: int = field(default=0, metadata=_checked(_COUNT))
    ctx_strict: bool = False
    streams: int = field(default=8, metadata=_checked(_within(1, 1024)))
    regions: int = field(default=0, metadata=_checked(_within(0, MOST_REGIONS)))
    resident_prefill_allowed: bool = False
    pin: bool = False
    preload: bool = True
    weight: int = field(default=1, metadata=_checked(_within(1, 1000)))
    kv_dtype: str = field(default="", metadata=_checked(_optional(_one_of(*KV_DTYPES))))
    require: str = field(default="", metadata=_checked(_optional(_one_of(*GPU_TIERS))))
    chat_template: Path | None = None
    pooling: str = field(default="", metadata=_checked(_optional(_one_of(*POOLINGS))))
    matryoshka: bool = False
    temperature: float = field(default=1.0, metadata=_checked(_within(0, 100)))
    top_k: int = field(default=0, metadata=_checked(_COUNT))
    top_p: float = field(default=1.0, metadata=_checked(_within(0, 1)))
    min_p: float = field(default=0.0, metadata=_checked(_within(0, 1)))
    repeat_penalty: float = field(default=1.0, metadata=_checked(_within(0.01, 100)))
    presence_penalty: float = field(default=0.0, metadata=_checked(_within(-2, 2)))
    frequency_penalty: float = field(default=0.0, metadata=_checked(_within(-2, 2)))
    penalty_window: int = field(default=0, metadata=_checked(_COUNT))

    @property
    def codec(self) -> str:
        """How K/V is kept, where nobody asks for a kv_dtype too."""
        return self.kv_dtype or "f16"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeySettings:
    """One `[[keys]]` table: what an API key may take; 0: whatever it wants.

    name: of the key; "": for all keys, or callers without one, that no other table names.
    requests: at the same time. requests_per_minute, tokens_per_minute: see `http.quotas`.
    """

    name: str = field(default="", metadata=_checked(_optional(key_name)))
    requests: int = field(default=0, metadata=_checked(_COUNT))
    requests_per_minute: int = field(default=0, metadata=_checked(_COUNT))
    tokens_per_minute: int = field(default=0, metadata=_checked(_COUNT))


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings. `models` is in the order of the file; when it is not empty, one is the default."""

    server: ServerSettings = ServerSettings()
    admin: AdminSettings = AdminSettings()
    log: LogSettings = LogSettings()
    traces: TracesSettings = TracesSettings()
    engine: EngineSettings = EngineSettings()
    queue: QueueSettings = QueueSettings()
    limits: LimitsSettings = LimitsSettings()
    responses: ResponsesSettings = ResponsesSettings()
    kv: KVSettings = KVSettings()
    state: StateSettings = StateSettings()
    gpu: GPUSettings = GPUSettings()
    switch: SwitchSettings = SwitchSettings()
    keys: tuple[KeySettings, ...] = field(default=(), metadata=_live())
    models: tuple[ModelSettings, ...] = ()

    def required(self, model: ModelSettings) -> str:
        """Return the tier that a model must reach, "none" where it need not reach any."""
        return model.require or self.gpu.require


@dataclass(frozen=True, slots=True)
class Change:
    """What comes of other settings while tierd runs. settings: those that hold then.

    taken: keys of the live rows that are other ones now. waiting: those that take a restart.
    """

    settings: Settings
    taken: tuple[str, ...]
    waiting: tuple[str, ...]


def adopt(current: Settings, wanted: Settings) -> Change:
    """Take over what may change while tierd runs."""
    sections: dict[str, Any] = {}
    taken: list[str] = []
    waiting: list[str] = []
    for section in dataclasses.fields(Settings):
        before, after = getattr(current, section.name), getattr(wanted, section.name)
        rows = dataclasses.fields(before) if dataclasses.is_dataclass(before) else ()
        others = [row for row in rows if getattr(before, row.name) != getattr(after, row.name)]
        live = [row.name for row in others if "live" in row.metadata]
        taken += [f"{section.name}.{name}" for name in live]
        waiting += [f"{section.name}.{row.name}" for row in others if "live" not in row.metadata]
        if live:
            sections[section.name] = dataclasses.replace(
                before, **{name: getattr(after, name) for name in live}
            )
        elif not rows and before != after:
            (taken if "live" in section.metadata else waiting).append(section.name)
            if "live" in section.metadata:
                sections[section.name] = after
    return Change(dataclasses.replace(current, **sections), tuple(taken), tuple(waiting))


def models_directory() -> Path:
    """Where relative model paths are looked up after the settings file's own folder."""
    data_home = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(data_home) / "tierd" / "models"


def admin_sockets() -> list[Path]:
    """Return where the admin socket may be when the settings do not say; the server takes the first.

    In the folder that systemd made for the service, in the user's own, in the system's.
    """
    made, own = os.environ.get("RUNTIME_DIRECTORY", "").split(":")[0], os.environ.get("XDG_RUNTIME_DIR")
    folders = [*([Path(made)] if made else []), *([Path(own, "tierd")] if own else []), Path("/run/tierd")]
    return [folder / "admin.sock" for folder in folders]


def load_settings(
    path: Path | None,
    *,
    models: Sequence[Path] = (),
    listen: str | None = None,
    log_level: str | None = None,
) -> Settings:
    """Read the settings file, if there is one, and let the command line have the last word.

    `models` are model files served under their stems, beside those of the file. Raises SettingsError.
    """
    settings = Settings() if path is None else _parse(path, _read(path))
    if listen is not None:
        complaint = _address(listen)
        if complaint:
            raise SettingsError(f"--listen {listen!r} must {complaint}")
        settings = dataclasses.replace(settings, server=dataclasses.replace(settings.server, listen=listen))
    if log_level is not None:
        settings = dataclasses.replace(settings, log=dataclasses.replace(settings.log, level=log_level))
    if settings.admin.listen and settings.admin.token_file is None:
        raise SettingsError(
            f"{path}: admin.listen needs admin.token_file, a file with the token that callers must show"
        )
    named = tuple(_model_from_flag(model) for model in models)
    where = str(path) if path else "--model"
    settings = dataclasses.replace(settings, models=_settle_models(where, settings.models + named))
    for model in settings.models:
        _check_required(f"{where}: ", settings, model)
    return settings


def model_at_run_time(
    settings: Settings, table: Mapping[str, Any], base: ModelSettings | None = None
) -> ModelSettings:
    """Return the model of a table that comes while the server runs, with the keys of a [[models]] table.

    base: whose values stand where the table is silent; without it the table needs a path, and a silent id is
    the file's stem. Relative paths are looked up in the models directory, so this may wait for a disk.
    `default` is no key of it. Raises SettingsError, whose `key` is the one at fault.
    """
    origin = _Origin("", models_directory())
    rows = typing.get_type_hints(ModelSettings)
    del rows["default"]
    _refuse_unknown(origin, "", table, rows)
    values = _values(origin, "", ModelSettings, table)
    if base is not None:
        model = dataclasses.replace(base, **values)
    else:
        if "path" not in values:
            raise origin.fault("path", "is missing; it is that of a GGUF file")
        stem = values["path"].stem
        complaint = "" if "id" in values else _model_id(stem)
        if complaint:
            raise origin.fault("id", f"is missing, and the file's name, {stem!r}, would have to {complaint}")
        model = ModelSettings(**{"id": stem} | values)
    _check_required("", settings, model)
    return model


def _model_from_flag(path: Path) -> ModelSettings:
    complaint = _model_id(path.stem)
    if complaint:
        raise SettingsError(
            f"--model {path}: its name, {path.stem!r}, must {complaint}; rename it or use a settings file"
        )
    return ModelSettings(id=path.stem, path=path)


def _settle_models(where: str, models: tuple[ModelSettings, ...]) -> tuple[ModelSettings, ...]:
    """Check what holds between models, and mark the first as default when none is."""
    seen: set[str] = set()
    for model in models:
        if model.id in seen:
            raise SettingsError(f"{where}: models: the id {model.id!r} is used twice; ids must differ")
        seen.add(model.id)
    defaults = [model.id for model in models if model.default]
    if len(defaults) > 1:
        raise SettingsError(
            f"{where}: models: {' and '.join(map(repr, defaults))} are both the default; "
            "set `default = true` for one only"
        )
    if not models or defaults:
        return models
    return (dataclasses.replace(models[0], default=True), *models[1:])


def _check_required(prefix: str, settings: Settings, model: ModelSettings) -> None:
    """Raise SettingsError where a tier is required that the settings keep off. prefix: begins its message."""
    required, mode = settings.required(model), settings.gpu.mode
    if (mode == "off" and required != "none") or (mode == "rails" and required == "resident"):
        raise SettingsError(
            f"{prefix}{model.id!r} cannot be {required} on the GPU, as `require` demands, "
            f"while gpu.mode is {mode}; change one of them",
            key="require",
        )


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise SettingsError(f"{path}: cannot read the settings file: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SettingsError(f"{path}: not UTF-8 (byte {error.start}); settings are TOML text") from error
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path}: not valid TOML: {error}") from error
    except ValueError as error:  # Python takes no number of thousands of digits
        raise SettingsError(f"{path}: a number has too many digits") from error
    except RecursionError as error:
        raise SettingsError(f"{path}: nested too deeply") from error


_Section = TypeVar(
    "_Section",
    ServerSettings,
    AdminSettings,
    LogSettings,
    TracesSettings,
    EngineSettings,
    QueueSettings,
    LimitsSettings,
    ResponsesSettings,
    KVSettings,
    StateSettings,
    GPUSettings,
    KeySettings,
    ModelSettings,
)


@dataclass(frozen=True, slots=True)
class _Origin:
    """Where tables come from. prefix: begins messages. folder: where relative paths are looked up first."""

    prefix: str
    folder: Path

    def fault(self, key: str, what: str) -> SettingsError:
        """Return the error of a key. what: words that follow it."""
        return SettingsError(f"{self.prefix}{key} {what}", key=key)


def _parse(file: Path, document: Mapping[str, Any]) -> Settings:
    origin = _Origin(f"{file}: ", file.parent)
    sections = typing.get_type_hints(Settings)
    _refuse_unknown(origin, "", document, sections)
    values: dict[str, Any] = {}
    for name, content in document.items():
        if name == "models":
            values[name] = _sections(origin, name, ModelSettings, content)
        elif name == "keys":
            values[name] = _settle_keys(origin, _sections(origin, name, KeySettings, content))
        elif isinstance(content, dict):
            values[name] = _section(origin, name, sections[name], content)
        else:
            raise origin.fault(name, f"must be a table, written as [{name}]")
    return Settings(**values)


def _settle_keys(origin: _Origin, keys: tuple[KeySettings, ...]) -> tuple[KeySettings, ...]:
    """Check what holds between tables of keys."""
    names = [key.name for key in keys]
    for name in names:
        if names.count(name) > 1:
            raise origin.fault("keys", f"has the name {name!r} twice; names must differ")
    return keys


def _sections(origin: _Origin, name: str, kind: type[_Section], content: object) -> tuple[_Section, ...]:
    if not _is_tables(content):
        raise origin.fault(name, f"must be written as [[{name}]] tables")
    return tuple(_section(origin, f"{name}[{i}]", kind, table) for i, table in enumerate(content))


def _is_tables(content: object) -> typing.TypeGuard[list[dict[str, Any]]]:
    return isinstance(content, list) and all(isinstance(table, dict) for table in content)


def _section(origin: _Origin, name: str, kind: type[_Section], table: Mapping[str, Any]) -> _Section:
    prefix = f"{name}."
    _refuse_unknown(origin, prefix, table, typing.get_type_hints(kind))
    values = _values(origin, prefix, kind, table)
    for row in dataclasses.fields(kind):
        if row.name not in values and row.default is dataclasses.MISSING:
            raise origin.fault(prefix + row.name, "is missing; a [[models]] table needs an id and a path")
    return kind(**values)


def _values(origin: _Origin, prefix: str, kind: type[_Section], table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of those rows that a table has, converted and checked. prefix: of their keys."""
    hints = typing.get_type_hints(kind)
    locate = _locate if kind is ModelSettings else _beside
    values: dict[str, Any] = {}
    for row in dataclasses.fields(kind):
        if row.name in table:
            key, given = prefix + row.name, table[row.name]
            value = _convert(origin, key, hints[row.name], given, locate)
            complaint = row.metadata["check"](value) if "check" in row.metadata else ""
            if complaint:
                raise origin.fault(key, f"must {complaint}, not {_shown(given)}")
            values[row.name] = value
    return values


def _refuse_unknown(origin: _Origin, prefix: str, table: Mapping[str, Any], known: Iterable[str]) -> None:
    for key in table:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
            hint = f"did you mean {prefix}{near[0]}?" if near else "known here: " + ", ".join(sorted(known))
            raise origin.fault(prefix + _short(key), f"is not a setting; {hint}")


def _convert(origin: _Origin, key: str, wanted: Any, value: Any, locate: Callable[[Path, str], Path]) -> Any:
    """Turn a value into the row's type. TOML and JSON tell integers, floats and booleans apart."""
    if wanted is float and type(value) is int:
        try:
            return float(value)
        except OverflowError:  # more than any row allows
            return math.inf if value > 0 else -math.inf
    if wanted in _WORDS and type(value) is wanted:
        return value
    if wanted == tuple[str, ...] and isinstance(value, list) and all(type(one) is str for one in value):
        return tuple(value)
    if wanted in (Path, Path | None) and isinstance(value, str) and "\0" not in value:
        if value:
            try:
                return locate(origin.folder, value)
            except RuntimeError as error:
                raise origin.fault(key, f"begins with a ~ of nobody: {_shown(value)}") from error
        if wanted is not Path:
            return None
    raise origin.fault(key, f"must be {_WORDS.get(wanted, 'a path in quotes')}, not {_shown(value)}")


def _shown(value: object) -> str:
    """Return a value of a file for the line that refuses it, whatever it is."""
    if isinstance(value, int) and value.bit_length() > 64:
        return f"a number of {value.bit_length()} bits"
    try:
        return _short(repr(value))
    except (RecursionError, ValueError):  # nested deeply; or such a number is in it
        return "what is there"


def _short(text: str) -> str:
    return text if len(text) <= MOST_SHOWN else text[: MOST_SHOWN - 1] + "…"


_WORDS: Mapping[Any, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text in quotes",
    tuple[str, ...]: "a list of texts in quotes",
}


def _beside(folder: Path, text: str) -> Path:
    return folder / Path(text).expanduser()


def _locate(folder: Path, text: str) -> Path:
    """Look a relative path up in a folder, then in the models directory.

    What is found nowhere stays in the folder: whoever opens it reports that.
    """
    beside = _beside(folder, text)
    elsewhere = _beside(models_directory(), text)
    return elsewhere if os.path.exists(elsewhere) and not os.path.exists(beside) else beside
