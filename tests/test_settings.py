from __future__ import annotations

import dataclasses
import itertools
import re
import tomllib
from pathlib import Path

import pytest

from tierd.errors import SettingsError
from tierd.models.formats import KV_CODECS
from tierd.settings import (
    KV_DTYPES,
    GPUSettings,
    KeySettings,
    ModelSettings,
    Settings,
    adopt,
    load_settings,
    model_at_run_time,
    split_address,
)

MANUAL = Path(__file__).resolve().parent.parent / "config" / "tierd.toml"


@pytest.fixture
def settings_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path / "tierd.toml"


def load(file: Path, text: str) -> Settings:
    file.write_text(text, encoding="utf-8")
    return load_settings(file)


def complaint(file: Path, text: str) -> str:
    with pytest.raises(SettingsError) as caught:
        load(file, text)
    message = str(caught.value)
    assert message.startswith(f"{file}: ")
    assert "\n" not in message
    return message.removeprefix(f"{file}: ")


def test_manual_shows_every_setting_with_its_default() -> None:
    manual = tomllib.loads(MANUAL.read_text(encoding="utf-8"))
    (manual_model,) = manual.pop("models")
    (manual_key,) = manual.pop("keys")
    model = dataclasses.asdict(ModelSettings(id=manual_model["id"], path=Path(manual_model["path"])))
    expected = dataclasses.asdict(Settings())
    del expected["models"]
    del expected["keys"]
    expected["server"]["api_keys_file"] = ""
    expected["server"]["hosts"] = expected["server"]["cors_origins"] = []
    expected["admin"]["token_file"] = ""
    expected["state"]["dir"] = ""

    assert manual == expected
    assert manual_key == dataclasses.asdict(KeySettings())
    assert {**manual_model, "path": Path(manual_model["path"]), "chat_template": None} == model
    assert manual_model["chat_template"] == ""


def test_manual_explains_every_setting() -> None:
    lines = MANUAL.read_text(encoding="utf-8").splitlines()
    for before, line in itertools.pairwise(lines):
        key = line.partition(" =")[0]
        if " = " in line and key not in ("top_k", "top_p", "min_p"):
            assert before.startswith("# "), f"{key} has no comment above it"


def test_manual_loads() -> None:
    settings = load_settings(MANUAL)
    assert [(model.id, model.default) for model in settings.models] == [("smol", True)]


def test_no_file_means_defaults() -> None:
    assert load_settings(None) == Settings()


def test_values_reach_their_fields(settings_file: Path) -> None:
    settings = load(
        settings_file,
        """
        server.listen = "[::1]:0"
        engine = {threads = 3, chunk_rows = 7}
        limits.max_output_tokens = 5
        kv.memory_mb = 64
        keys = [{requests = 2}, {name = "alice", tokens_per_minute = 5}]
        models = [
            {id = "a", path = "/models/a.gguf", kv_dtype = "tq4", temperature = 0},
            {id = "b", path = "/models/b.gguf", default = true, chat_template = "/b.jinja"},
        ]
        """,
    )
    assert settings.server.listen == "[::1]:0"
    assert (settings.engine.threads, settings.engine.chunk_rows) == (3, 7)
    assert settings.limits.max_output_tokens == 5
    assert settings.kv.memory_mb == 64
    assert settings.keys == (KeySettings(requests=2), KeySettings(name="alice", tokens_per_minute=5))
    first, second = settings.models
    assert (first.path, first.kv_dtype, first.temperature) == (Path("/models/a.gguf"), "tq4", 0.0)
    assert isinstance(first.temperature, float)
    assert (first.default, second.default) == (False, True)
    assert second.chat_template == Path("/b.jinja")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[server]\nlistn = 'x:1'", "server.listn is not a setting; did you mean server.listen?"),
        ("[sever]\nlisten = 'x:1'", "sever is not a setting; did you mean server?"),
        ("[engine]\nzzz = 1", "engine.zzz is not a setting; known here: chunk_rows, gap_ms, threads"),
        ("keys = 1", "keys must be written as [[keys]] tables"),
        ("[[keys]]\nname = 'a b'", "keys[0].name must be 1 to 64 letters, digits and . _ @ -, the first a"),
        ("[[keys]]\n[[keys]]", "keys has the name '' twice; names must differ"),
        ("[[keys]]\nrequest = 1", "keys[0].request is not a setting; did you mean keys[0].requests?"),
        ("[[models]]\nid = 'a'\npath = 'b'\ncontxt = 1", "models[0].contxt is not a setting; did you mean"),
    ],
)
def test_unknown_key_is_named_with_the_nearest(settings_file: Path, text: str, message: str) -> None:
    assert complaint(settings_file, text).startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("server = 1", "server must be a table, written as [server]"),
        ("models = 1", "models must be written as [[models]] tables"),
        ("[models]\nid = 'a'", "models must be written as [[models]] tables"),
        ("server.listen = 8080", "server.listen must be text in quotes, not 8080"),
        ("server.hosts = 'a'", "server.hosts must be a list of texts in quotes, not 'a'"),
        ("server.hosts = [1]", "server.hosts must be a list of texts in quotes, not [1]"),
        ("engine.threads = 1.5", "engine.threads must be a whole number, not 1.5"),
        ("engine.threads = true", "engine.threads must be a whole number, not True"),
        ("[[models]]\nid='a'\npath='b'\ndefault=1", "models[0].default must be true or false, not 1"),
        ("[[models]]\nid='a'\npath='b'\ntop_p='1'", "models[0].top_p must be a number, not '1'"),
        ("[[models]]\nid='a'\npath=1", "models[0].path must be a path in quotes, not 1"),
        ("[[models]]\nid='a'\npath=''", "models[0].path must be a path in quotes, not ''"),
        (
            "[[models]]\nid='a'\npath='b'\nchat_template=1",
            "models[0].chat_template must be a path in quotes, not 1",
        ),
    ],
)
def test_wrong_type_is_named(settings_file: Path, text: str, message: str) -> None:
    assert complaint(settings_file, text) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("server.listen = '127.0.0.1'", "server.listen must be HOST:PORT"),
        ("server.hosts = ['a', 'b:1']", "server.hosts must hold names of hosts in small letters, without a"),
        ("server.cors_origins = ['a']", "server.cors_origins must hold origins in small letters, such as"),
        ("server.cors_origins = ['https://A.org']", "server.cors_origins must hold origins in small letters"),
        (
            "server.cors_origins = ['https://a.org/']",
            "server.cors_origins must hold origins in small letters",
        ),
        ("engine.threads = -1", "engine.threads must lie between 0 and 1024, not -1"),
        ("engine.chunk_rows = 0", "engine.chunk_rows must lie between 1 and 65536, not 0"),
        ("kv.memory_mb = -1", "kv.memory_mb must lie between 0 and 1073741824, not -1"),
        ("queue.timeout_s = 1e10", "queue.timeout_s must lie between 0 and 86400, not 10000000000.0"),
        ("queue.timeout_s = inf", "queue.timeout_s must lie between 0 and 86400, not inf"),
        ("server.reader_timeout_s = nan", "server.reader_timeout_s must lie between 0.01 and 86400, not nan"),
        ("state.interval_s = 0.09", "state.interval_s must be 0 or lie between 0.1 and 86400, not 0.09"),
        ("state.interval_s = nan", "state.interval_s must be 0 or lie between 0.1 and 86400, not nan"),
        ("server.drain_s = inf", "server.drain_s must lie between 0 and 86400, not inf"),
        (f"server.drain_s = 1{400 * '0'}", "server.drain_s must lie between 0 and 86400, not a number of"),
        (
            "[[models]]\nid='a'\npath='b'\nkv_dtype='f8'",
            "models[0].kv_dtype must be one of f32, f16, q8_0, tq4",
        ),
        ('[[models]]\nid="a\\u200b"\npath="b"', "models[0].id must be a name"),
        ('admin.socket = "/a\\u0000"', 'admin.socket must be "auto", "off" or a path that begins with /'),
        ("[[models]]\nid='-'\npath='b'", "models[0].id must be a name"),
        ("gpu.mode = 'on'", "gpu.mode must be one of auto, off, resident, rails, not 'on'"),
        ("gpu.require = ''", "gpu.require must be one of none, rails, resident, not ''"),
        ("gpu.vram_limit_mb = -1", "gpu.vram_limit_mb must lie between 0 and 1073741824, not -1"),
        (
            "[[models]]\nid='a'\npath='b'\nrequire='cpu'",
            "models[0].require must be one of none, rails, resident",
        ),
        ("[[models]]\nid='a b'\npath='b'", "models[0].id must be a name"),
        ("[[models]]\nid='a'\npath='b'\ntop_p=nan", "models[0].top_p must lie between 0 and 1, not nan"),
        ("[[models]]\nid='a'", "models[0].path is missing"),
        ("[[models]]\npath='a'", "models[0].id is missing"),
    ],
)
def test_bad_value_is_named(settings_file: Path, text: str, message: str) -> None:
    assert complaint(settings_file, text).startswith(message)


def test_a_tier_that_is_kept_off_cannot_be_required(settings_file: Path) -> None:
    table = "[[models]]\nid='a'\npath='m.gguf'\n"
    message = (
        "'a' cannot be resident on the GPU, as `require` demands, while gpu.mode is off; change one of them"
    )
    off = "gpu.mode = 'off'\n"
    assert complaint(settings_file, f"{off}gpu.require = 'resident'\n{table}") == message
    assert complaint(settings_file, f"{off}{table}require = 'resident'\n") == message
    rails = "gpu.mode = 'rails'\n"
    assert complaint(settings_file, f"{rails}{table}require = 'resident'\n") == message.replace(
        "off", "rails"
    )
    load(settings_file, f"{rails}{table}require = 'rails'\n")
    settings = load(settings_file, f"{off}gpu.require = 'resident'\n{table}require = 'none'\n")
    assert settings.required(settings.models[0]) == "none"
    settings = load(settings_file, f"gpu.require = 'resident'\n{table}")
    assert settings.required(settings.models[0]) == "resident"


def test_models_are_told_apart(settings_file: Path) -> None:
    table = "[[models]]\nid='{}'\npath='m.gguf'\n{}\n"
    twice = table.format("a", "") + table.format("a", "")
    assert complaint(settings_file, twice) == "models: the id 'a' is used twice; ids must differ"
    defaults = table.format("a", "default=true") + table.format("b", "default=true")
    assert complaint(settings_file, defaults).startswith("models: 'a' and 'b' are both the default")


def test_unreadable_files_are_named(settings_file: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"missing\.toml: cannot read the settings file: No such file"):
        load_settings(tmp_path / "missing.toml")
    assert complaint(settings_file, "server = ").startswith("not valid TOML: ")
    assert complaint(settings_file, "server = " + "[" * 100_000) == "nested too deeply"
    assert complaint(settings_file, "kv.memory_mb = " + "9" * 5000) == "a number has too many digits"
    settings_file.write_bytes(b"# \xff")
    with pytest.raises(SettingsError, match=r"not UTF-8 \(byte 2\)"):
        load_settings(settings_file)


def test_relative_paths_are_looked_up_beside_the_file_then_in_the_models_directory(
    settings_file: Path, tmp_path: Path
) -> None:
    text = "[[models]]\nid='m'\npath='m.gguf'"
    beside = tmp_path / "m.gguf"
    elsewhere = tmp_path / "data" / "tierd" / "models" / "m.gguf"

    assert load(settings_file, text).models[0].path == beside
    elsewhere.parent.mkdir(parents=True)
    elsewhere.touch()
    assert load(settings_file, text).models[0].path == elsewhere
    beside.touch()
    assert load(settings_file, text).models[0].path == beside


def test_command_line_has_the_last_word(settings_file: Path) -> None:
    settings_file.write_text("server.listen='h:1'\n[[models]]\nid='a'\npath='/a.gguf'")
    settings = load_settings(settings_file, models=[Path("some/b.Q4_1.gguf")], listen="h:2")
    assert settings.server.listen == "h:2"
    assert [(model.id, model.path, model.default) for model in settings.models] == [
        ("a", Path("/a.gguf"), True),
        ("b.Q4_1", Path("some/b.Q4_1.gguf"), False),
    ]


@pytest.mark.parametrize(
    ("models", "listen", "message"),
    [
        ([], "nowhere", "--listen 'nowhere' must be HOST:PORT"),
        (["x/a.gguf", "y/a.gguf"], None, "--model: models: the id 'a' is used twice"),
        (["a b.gguf"], None, "--model a b.gguf: its name, 'a b', must be a name"),
        (["a\udcff.gguf"], None, "--model a\udcff.gguf: its name, 'a\\udcff', must be a name"),
    ],
)
def test_bad_flags_are_named(models: list[str], listen: str | None, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(None, models=[Path(model) for model in models], listen=listen)
    assert str(caught.value).startswith(message)


@pytest.fixture
def models_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return tmp_path / "tierd" / "models"


def test_a_table_at_run_time_is_one_of_the_settings(models_folder: Path) -> None:
    table = {"id": "a", "path": "m.gguf", "streams": 3, "temperature": 0, "chat_template": "/t.jinja"}
    assert model_at_run_time(Settings(), table) == ModelSettings(
        id="a",
        path=models_folder / "m.gguf",
        streams=3,
        temperature=0.0,
        chat_template=Path("/t.jinja"),
    )
    assert model_at_run_time(Settings(), {"path": "/x/m.Q4.gguf"}) == ModelSettings(
        id="m.Q4", path=Path("/x/m.Q4.gguf")
    )


def test_a_table_at_run_time_changes_what_is_known() -> None:
    base = ModelSettings(id="a", path=Path("/a.gguf"), default=True, streams=3, weight=2)
    assert model_at_run_time(Settings(), {"id": "a"}, base) == base
    assert model_at_run_time(Settings(), {"id": "a", "streams": 5}, base) == dataclasses.replace(
        base, streams=5
    )


@pytest.mark.parametrize(
    ("table", "key", "message"),
    [
        ({"path": "/m", "contxt": 1}, "contxt", "contxt is not a setting; did you mean context?"),
        ({"path": "/m", "default": True}, "default", "default is not a setting; known here: chat_template,"),
        ({"path": "/m", "streams": 0}, "streams", "streams must lie between 1 and 1024, not 0"),
        ({"path": "/m", "streams": 2.0}, "streams", "streams must be a whole number, not 2.0"),
        ({"path": "/m", "pin": None}, "pin", "pin must be true or false, not None"),
        ({"path": "/m", "kv_dtype": ["f16"]}, "kv_dtype", "kv_dtype must be text in quotes, not ['f16']"),
        ({"path": "/m", "id": "a b"}, "id", "id must be a name"),
        ({"path": "/a b.gguf"}, "id", "id is missing, and the file's name, 'a b', would have to be a name"),
        ({"path": ""}, "path", "path must be a path in quotes, not ''"),
        ({"path": 7}, "path", "path must be a path in quotes, not 7"),
        ({"path": "/m\0"}, "path", "path must be a path in quotes, not '/m\\x00'"),
        ({"path": "~no-such-user/m"}, "path", "path begins with a ~ of nobody: '~no-such-user/m'"),
        ({"id": "a"}, "path", "path is missing"),
        ({"path": "/m", "require": "resident"}, "require", "'m' cannot be resident on the GPU"),
    ],
)
def test_a_table_at_run_time_that_is_wrong_names_the_key(
    table: dict[str, object], key: str, message: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        model_at_run_time(Settings(gpu=GPUSettings(mode="off")), table)
    assert str(caught.value).startswith(message)
    assert caught.value.key == key


def test_a_path_that_no_file_can_have_is_left_to_whoever_opens_it(models_folder: Path) -> None:
    name = 5000 * "x"
    assert model_at_run_time(Settings(), {"id": "a", "path": name}).path == models_folder / name


@pytest.mark.parametrize(
    ("text", "address"),
    [("localhost:80", ("localhost", 80)), ("[::1]:8080", ("::1", 8080)), ("0.0.0.0:0", ("0.0.0.0", 0))],
)
def test_addresses_are_split(text: str, address: tuple[str, int]) -> None:
    assert split_address(text) == address


@pytest.mark.parametrize("text", ["", ":80", "h", "h:", "h:65536", "::1:80", "h:p", "http://h:80", "h:80 "])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not HOST:PORT"):
        split_address(text)


def test_kv_dtypes_are_the_codecs() -> None:
    assert set(KV_DTYPES) == set(KV_CODECS)


def test_the_manual_says_what_may_change_while_tierd_runs() -> None:
    live = set()
    for section in dataclasses.fields(Settings):
        if "live" in section.metadata:
            live.add(f"[[{section.name}]]")
        elif section.name != "models":
            rows = dataclasses.fields(section.default)
            names = {f"{section.name}.{row.name}" for row in rows if "live" in row.metadata}
            live |= {f"{section.name}.*"} if len(names) == len(rows) else names
    said = re.search(r"# log says which: (.+)\.\n", MANUAL.read_text(encoding="utf-8"))
    assert said is not None
    assert set(re.split(", | and ", said[1])) == live


def test_what_is_live_is_adopted_and_the_rest_waits(settings_file: Path) -> None:
    before = load(settings_file, "queue.capacity = 3\nkv.memory_mb = 64\nserver.drain_s = 1.0")
    wanted = load(
        settings_file,
        """
        queue.timeout_s = 5
        kv = {memory_mb = 32, bank_mb = 1}
        server = {drain_s = 2, connections = 7}
        log.level = "debug"
        keys = [{requests = 2}]
        models = [{id = "a", path = "/models/a.gguf"}]
        """,
    )
    change = adopt(before, wanted)
    assert change.taken == ("server.drain_s", "log.level", "queue.capacity", "queue.timeout_s", "keys")
    assert change.waiting == ("server.connections", "kv.memory_mb", "kv.bank_mb", "models")
    now = change.settings
    assert (now.queue, now.log, now.keys) == (wanted.queue, wanted.log, wanted.keys)
    assert (now.kv, now.models) == (before.kv, before.models)
    assert (now.server.drain_s, now.server.connections) == (2, before.server.connections)
    again = adopt(now, wanted)
    assert (again.settings, again.taken, again.waiting) == (now, (), change.waiting)
