"""What keeps `tierd serve` from serving: one line that says what to do, and the exit code."""

from __future__ import annotations

import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from tierd.cli import main
from tierd.http.listeners import listen_at
from tierd.kv.sizing import available_memory
from tiny import write_llama


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("faults") / "tiny.gguf", context=1 << 20)


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose pages are large."""
    return write_llama(tmp_path_factory.mktemp("faults") / "deep.gguf", context=1 << 20, layers=64)


@pytest.fixture(scope="module")
def taken() -> Iterator[str]:
    """An address that somebody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def fault(*arguments: str | Path) -> tuple[int, str]:
    """Run `tierd serve` to its end; return its exit code and its line."""
    out, errors = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(errors):
        code = main(["serve", *map(str, arguments)])
    return code, line_of(out.getvalue(), errors.getvalue())


def fault_of_a_process(*arguments: str | Path, most_kib: int | None = None) -> tuple[int, str]:
    """Run it in a process of its own, in at most so much address space."""
    command = [sys.executable, "-m", "tierd", "serve", *map(str, arguments)]
    if most_kib is not None:
        command = ["sh", "-c", f'ulimit -v {most_kib}; exec "$@"', "sh", *command]
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return run.returncode, line_of(run.stdout, run.stderr)


def line_of(out: str, errors: str) -> str:
    """Return the only line that was said."""
    assert out == ""
    (line,) = errors.splitlines()
    assert line.startswith("tierd: ")
    return line.removeprefix("tierd: ")


def settings(folder: Path, text: str) -> Path:
    file = folder / "tierd.toml"
    file.write_text(f"server.listen = '127.0.0.1:0'\n{text}\n")
    return file


class TestModelFiles:
    def loads(self, path: Path) -> tuple[int, str]:
        return fault("--model", path, "--listen", "127.0.0.1:0")

    def test_missing(self, tmp_path: Path) -> None:
        path = tmp_path / "missing.gguf"
        assert self.loads(path) == (
            4,
            f"missing: {path} cannot be opened: No such file or directory; check the path",
        )

    def test_a_folder(self, tmp_path: Path) -> None:
        path = tmp_path / "folder.gguf"
        path.mkdir()
        assert self.loads(path) == (4, f"folder: {path} is not a regular file; check the path")

    def test_something_else(self, tmp_path: Path) -> None:
        path = tmp_path / "page.gguf"
        path.write_bytes(b"<!DOCTYPE html>".ljust(100))
        code, line = fault_of_a_process("--model", path, "--listen", "127.0.0.1:0")
        assert code == 4
        assert line == (
            f"page: {path} is not a GGUF file: it begins with b'<!DO'; fetch or convert the file again"
        )

    def test_cut_short(self, tmp_path: Path, model: Path) -> None:
        path = tmp_path / "cut.gguf"
        path.write_bytes(model.read_bytes()[:-5000])
        code, line = self.loads(path)
        assert code == 4
        assert line.startswith(f"cut: {path}: tensor ")
        assert line.endswith("; fetch or convert the file again")

    def test_an_unknown_architecture(self, tmp_path: Path, model: Path) -> None:
        path = tmp_path / "strange.gguf"
        path.write_bytes(model.read_bytes().replace(b"llama", b"lhama"))
        code, line = self.loads(path)
        assert code == 4
        assert line.startswith("strange: ")
        assert "lhama" in line

    def test_one_of_two_serves_none(self, tmp_path: Path, model: Path) -> None:
        missing = tmp_path / "missing.gguf"
        flags = ("--listen", "127.0.0.1:0", "--log-level", "error")
        code, line = fault("--model", model, "--model", missing, *flags)
        assert code == 4
        assert line.startswith("missing: ")


class TestSettings:
    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("server = ", "not valid TOML: "),
            ("[serve]\nlisten = 'x:1'", "serve is not a setting; did you mean server?"),
            ("server.listen = 'x'", "server.listen must be HOST:PORT"),
            ("log.level = 'loud'", "log.level must be one of debug, info, warning, error, not 'loud'"),
            ("admin.socket = 'here'", 'admin.socket must be "auto", "off" or a path that begins with /'),
            ("admin.listen = 'x:1'", "admin.listen needs admin.token_file, a file with the token"),
            ("", "there is no [[models]] table; add one, or give --model FILE.gguf"),
        ],
    )
    def test_a_bad_one_is_named(self, tmp_path: Path, text: str, message: str) -> None:
        file = tmp_path / "tierd.toml"
        file.write_text(text)
        code, line = fault("--config", file)
        assert code == 2
        assert line.startswith(f"{file}: {message}")

    def test_a_token_that_others_may_read(self, tmp_path: Path, model: Path) -> None:
        token = tmp_path / "token"
        token.write_text("0123456789abcdef")
        token.chmod(0o644)
        file = settings(tmp_path, "[admin]\nlisten = '127.0.0.1:0'\ntoken_file = 'token'")
        assert fault("--config", file, "--model", model) == (
            2,
            f"admin.token_file: others may use {token}, mode 644; run: chmod 600 {token}",
        )

    def test_a_template_that_is_missing(self, tmp_path: Path, model: Path) -> None:
        table = f"[[models]]\nid = 'tiny'\npath = '{model}'\nchat_template = 'missing.jinja'"
        code, line = fault("--config", settings(tmp_path, table))
        assert code == 2
        assert line.startswith("tiny: cannot read chat_template")

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (None, "cannot read {}: No such file or directory"),
            (b"short\n", "{} must hold one word of 16 characters or more; `openssl rand -hex 32` makes"),
            (b"two words of a token", "{} must hold one word of 16 characters or more"),
            (b"\xff" * 20, "{} holds more than ASCII characters"),
        ],
    )
    def test_a_token_that_will_not_do(
        self, tmp_path: Path, model: Path, content: bytes | None, message: str
    ) -> None:
        token = tmp_path / "token"
        if content is not None:
            token.write_bytes(content)
            token.chmod(0o600)
        file = settings(tmp_path, "[admin]\nlisten = '127.0.0.1:0'\ntoken_file = 'token'")
        code, line = fault("--config", file, "--model", model)
        assert code == 2
        assert line.startswith(f"admin.token_file: {message.format(token)}")


class TestAddresses:
    """They are found before the models are looked at: the model's file here is missing."""

    def test_a_port_in_use(self, taken: str) -> None:
        assert fault_of_a_process("--model", "missing.gguf", "--listen", taken) == (
            2,
            f"server.listen: cannot listen on {taken}: the port is in use; "
            "stop what uses it or choose another port",
        )

    def test_the_admin_port_in_use(self, taken: str, tmp_path: Path) -> None:
        (tmp_path / "token").write_text("0123456789abcdef")
        (tmp_path / "token").chmod(0o600)
        file = settings(tmp_path, f"[admin]\nlisten = '{taken}'\ntoken_file = 'token'")
        code, line = fault("--config", file, "--model", "missing.gguf")
        assert code == 2
        assert line.startswith(f"admin.listen: cannot listen on {taken}: the port is in use; ")

    def test_the_admin_socket_in_use(self, tmp_path: Path) -> None:
        path = tmp_path / "admin.sock"
        file = settings(tmp_path, f"admin.socket = '{path}'")
        with listen_at(path):
            code, line = fault("--config", file, "--model", "missing.gguf")
        assert code == 2
        assert line.startswith(f"admin.socket: cannot listen on {path}: the path is in use; ")

    def test_an_address_of_nobody(self) -> None:
        code, line = fault("--model", "missing.gguf", "--listen", "203.0.113.7:80")
        assert code == 2
        assert line == (
            "server.listen: cannot listen on 203.0.113.7:80: "
            "Cannot assign requested address; choose another address"
        )


class TestMemory:
    def test_too_little_is_allowed(self, tmp_path: Path, model: Path) -> None:
        table = f"kv.memory_mb = 1\n[[models]]\nid = 'tiny'\npath = '{model}'\ncontext = 100_000"
        code, line = fault("--config", settings(tmp_path, table))
        assert code == 4
        assert line.startswith("tiny: one stream of 100000 positions needs ")
        assert line.endswith("only 1.0 MiB are there for it; lower context or raise kv.memory_mb")

    def test_the_system_gives_none(self, tmp_path: Path, model: Path) -> None:
        table = f"kv.memory_mb = 2500\n[[models]]\nid = 'tiny'\npath = '{model}'\nstreams = 256"
        code, line = fault_of_a_process("--config", settings(tmp_path, table), most_kib=5 << 19)
        assert code == 4
        assert line.startswith(f"tiny: {model}: no memory for ")
        assert line.endswith("lower kv.memory_mb, context or streams")

    def test_more_than_the_machine_has(self, tmp_path: Path, deep: Path) -> None:
        table = f"[[models]]\nid = 'tiny'\npath = '{deep}'\nstreams = 1024\nkv_dtype = 'f32'"
        code, line = fault("--config", settings(tmp_path, f"kv.memory_mb = 1_000_000_000\n{table}"))
        assert code == 4
        assert re.fullmatch(
            r"tiny: its K/V pool of [\d,.]+ MiB and [\d,.]+ MiB of weights and buffers are more than the "
            r"[\d,.]+ MiB of memory that are free; lower kv.memory_mb, context or streams",
            line,
        )

    def test_more_than_the_machine_has_for_all_models(self, tmp_path: Path, deep: Path) -> None:
        """Each pool fits by itself: 1024 streams take five eighths of what is free."""
        share = int(available_memory() * 0.625) >> 20
        tables = "".join(
            f"\n[[models]]\nid = '{name}'\npath = '{deep}'\nstreams = 1024\nkv_dtype = 'f32'" for name in "ab"
        )
        quiet = "log.level = 'error'\n"
        code, line = fault("--config", settings(tmp_path, f"{quiet}kv.memory_mb = {2 * share}{tables}"))
        assert code == 4
        assert re.search(r"free, [\d,.]+ MiB are promised to other models; lower kv.memory_mb", line)
