"""Fixtures shared by all tests: where the real models and the oracle's answers lie."""

from __future__ import annotations

import gc
import lzma
import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import settings

from findings import Findings
from kompute import Faults

REPOSITORY = Path(__file__).resolve().parent.parent
# That of the user who runs the tests; the tests themselves have one of their own.
USERS_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")

# Every run tries the same examples, and how long one takes on a busy machine is no fault.
settings.register_profile("steady", deadline=None, derandomize=True)
settings.load_profile("steady")


def pytest_configure(config: pytest.Config) -> None:
    """Keep what tests find where TIERD_TEST_RESULTS names a folder, as `make test-long` does."""
    if "TIERD_TEST_RESULTS" in os.environ:
        config.pluginmanager.register(Findings(Path(os.environ["TIERD_TEST_RESULTS"])))


def pytest_collection() -> None:
    """Nothing of what is imported to find tests is garbage."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Have the collector leave out what is there before the first test, of which nothing goes meanwhile."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _directories(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Let servers put their admin sockets and caches into folders of the tests, not into the user's."""
    os.environ["XDG_RUNTIME_DIR"] = str(tmp_path_factory.mktemp("run"))
    os.environ["XDG_CACHE_HOME"] = str(tmp_path_factory.mktemp("cache"))
    os.environ.pop("RUNTIME_DIRECTORY", None)


@pytest.fixture(scope="session", autouse=True)
def _shader_cache() -> None:
    """Let Mesa keep what it compiles for processes beside this one, and for later runs, of other clones too.

    It takes minutes. It lies with the user's caches where they can be written.
    """
    cache = USERS_CACHE / "tierd-tests" if os.access(USERS_CACHE, os.W_OK) else REPOSITORY / "build" / "mesa"
    cache.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("MESA_SHADER_CACHE_DIR", str(cache))


@pytest.fixture(scope="session", autouse=True)
def _hidden_memory() -> None:
    """Let no device's memory be seen by the host, in processes that tests start too: all goes by staging.

    With TIERD_HIDE_HOST_VISIBLE=0 the tests run on what the host sees.
    """
    os.environ.setdefault("TIERD_HIDE_HOST_VISIBLE", "1")


def _model(name: str) -> Path:
    path = Path(os.environ.get("TIERD_TEST_MODELS", REPOSITORY / ".models")) / name
    if not path.is_file():
        pytest.fail(f"{path} is missing; `make models` fetches it", pytrace=False)
    return path


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """SmolLM2-135M-Instruct, Q4_1."""
    return _model("SmolLM2-135M-Instruct.Q4_1.gguf")


@pytest.fixture(scope="session")
def gemma3_path() -> Path:
    """Gemma 3 270M base, by bytes mostly Q8_0 and Q5_0."""
    return _model("gemma-3-270m-q4_k_m.gguf")


@pytest.fixture(scope="session")
def oracle_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of the oracle's JSON files, one per real model: TIERD_ORACLE, or the copy in this repository."""
    if "TIERD_ORACLE" in os.environ:
        return Path(os.environ["TIERD_ORACLE"])
    folder = tmp_path_factory.mktemp("oracle")
    for packed in (REPOSITORY / "tests" / "fixtures" / "oracle").glob("*.json.xz"):
        (folder / packed.stem).write_bytes(lzma.decompress(packed.read_bytes()))
    return folder


@pytest.fixture(scope="session")
def sanitized_environment() -> dict[str, str]:
    """Variables under which a Python process loads the kernels built with ASan and UBSan."""
    library = REPOSITORY / "build" / "sanitize" / "libhostkernels.so"
    if not library.is_file():
        pytest.fail(f"{library} is missing; `make sanitize` builds it", pytrace=False)
    asan = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True)
    return {
        "LD_PRELOAD": asan.stdout.strip(),
        "ASAN_OPTIONS": "detect_leaks=0",
        "HOSTKERNELS_LIBRARY": str(library),
    }


@pytest.fixture
def faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Faults:
    """Have Kompute's processes that are started by the test fail when it says so."""
    monkeypatch.setenv("TIERD_TEST_FAULT", str(tmp_path / "fault"))
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY / "tests" / "faulty_kompute"))
    return Faults(tmp_path / "fault")
