"""Each part of the box that `tierd doctor` looks at, arranged as it may be found."""

from __future__ import annotations

import contextlib
import grp
import json
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from backends.vkapi.devices import LLVMPIPE, NVIDIA, VIRTUAL, device
from tierd.backends.cores import usable_cores
from tierd.backends.vkapi import DeviceFacts, missing_features
from tierd.backends.vkapi.choose import REQUIRED_FEATURES
from tierd.cli.checks import drivers, folders, machine, rails, rights, vulkan
from tierd.cli.checks.finding import Finding, Verdict
from tierd.errors import SettingsError
from tierd.kv.spill import open_spill
from tierd.settings import AdminSettings, EngineSettings, GPUSettings, KVSettings, Settings, StateSettings
from tierd.tier.availability import Verdict as Availability

NOBODY = 65534
OK, NOTE, PROBLEM = Verdict.OK, Verdict.NOTE, Verdict.PROBLEM


@contextlib.contextmanager
def another_user() -> Iterator[None]:
    """Have the rights of nobody, where the tests have those of root."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that everybody may look into."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


def ask(call: str, **environment: str) -> Finding:
    """Ask a check in a process of its own; call: what stands behind `tierd.cli.checks.`."""
    code = (
        f"import dataclasses, json\nfrom tierd.cli.checks import {call.partition('.')[0]}\n"
        f"found = {call}\nprint(json.dumps({{**dataclasses.asdict(found), 'error': None}}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, check=True, env=os.environ | environment,
    )  # fmt: skip
    return Finding(**json.loads(done.stdout))


@pytest.mark.parametrize(
    ("level", "verdict", "words", "remedy"),
    [
        (
            "portable",
            NOTE,
            "kernels of level portable, as HOSTKERNELS_LEVEL allows no",
            "unset HOSTKERNELS_LEVEL",
        ),
        ("sse9", PROBLEM, "HOSTKERNELS_LEVEL is 'sse9'; use one of portable, ", "unset HOSTKERNELS_LEVEL"),
    ],
)
def test_a_level_that_is_forced_is_told(level: str, verdict: str, words: str, remedy: str) -> None:
    found = ask("machine.processor()", HOSTKERNELS_LEVEL=level)
    assert (found.verdict, found.remedy) == (verdict, remedy)
    assert found.text.startswith(words)


def test_kernels_that_cannot_be_loaded_are_a_problem(tmp_path: Path) -> None:
    (tmp_path / "hostkernels.h").touch()
    found = ask("machine.processor()", HOSTKERNELS_LIBRARY=str(tmp_path / "none.so"))
    assert found.verdict == PROBLEM
    assert "cannot be loaded" in found.text


def test_what_is_asked_of_the_machine_is_held_against_what_it_has() -> None:
    plain = Settings()
    assert machine.cores(plain).verdict is machine.memory(plain).verdict is OK
    usable = usable_cores()
    greedy = Settings(engine=EngineSettings(threads=usable + 1), kv=KVSettings(memory_mb=1 << 30))
    cores, memory = machine.cores(greedy), machine.memory(greedy)
    assert (cores.verdict, cores.remedy) == (NOTE, f"set engine.threads = {usable}, or 0")
    assert memory.verdict is NOTE
    assert "less than the 1,073,741,824.0 MiB of kv.memory_mb" in memory.text


def test_a_gpu_without_rights_names_the_group_to_join(open_folder: Path) -> None:
    (open_folder / "dri").mkdir()
    node = open_folder / "dri" / "renderD128"
    node.touch()
    group = next(each for each in grp.getgrall() if each.gr_gid) if os.geteuid() == 0 else None
    if group is not None:
        os.chown(node, 0, group.gr_gid)
        assert rights.rights([], open_folder) == Finding(
            subject="rights", text=f"{rights.user()} may open {node}"
        )
        node.chmod(0o660)
    else:
        node.chmod(0o000)
    with another_user():
        found = rights.rights([], open_folder)
        user = rights.user()
    assert found.verdict is NOTE
    assert found.text.startswith(f"{user} may not open {node}, which is ")
    if group is not None:
        assert found.text.endswith(f"which is {group.gr_name}'s (-rw-rw----)")
        assert found.remedy == f"sudo usermod -aG {group.gr_name} {user}, then log in again"


def test_a_gpu_that_no_group_may_open_needs_another_mode(open_folder: Path) -> None:
    node = open_folder / "nvidia0"
    node.touch()
    node.chmod(0o000)
    with another_user():
        found = rights.rights([], open_folder)
    assert found.verdict is NOTE
    assert found.remedy.startswith(f"sudo chgrp render {node} && sudo chmod g+rw {node}")


def test_a_folder_of_gpus_that_may_not_be_seen(open_folder: Path) -> None:
    (open_folder / "dri").mkdir(0o000)
    with another_user():
        found = rights.rights([], open_folder)
    assert (found.verdict, found.remedy) == (NOTE, f"chmod a+rx {open_folder / 'dri'}")
    (open_folder / "dri").chmod(0o755)


@pytest.mark.parametrize(
    ("cards", "words", "remedy"),
    [
        ([], "there is no GPU: none has a file in {}, and PCI has none", "in a container, hand the GPU in"),
        (
            ["NVIDIA"],
            "no GPU has a file in {}: the kernel has no driver for that of NVIDIA",
            "sudo apt install nvidia-driver (of Debian's non-free), then reboot; in a container, ",
        ),
        (
            ["Intel", "AMD", "AMD", "vendor 0x1a03"],
            "no GPU has a file in {}: the kernel has no driver for that of Intel, AMD, AMD, vendor 0x1a03",
            "sudo apt install firmware-misc-nonfree (of Debian's non-free-firmware), then reboot; "
            "sudo apt install firmware-amd-graphics (of Debian's non-free-firmware), then reboot; in a cont",
        ),
    ],
)
def test_a_box_without_a_gpu_of_the_kernels(
    tmp_path: Path, cards: list[str], words: str, remedy: str
) -> None:
    found = rights.rights(cards, tmp_path)
    assert (found.verdict, found.text) == (NOTE, words.format(tmp_path / "dri"))
    assert found.remedy.startswith(remedy)
    assert f"--device {tmp_path / 'dri'}, or for NVIDIA's --gpus all" in found.remedy


def card(folder: Path, name: str, kind: str, vendor: str) -> None:
    (folder / name).mkdir()
    (folder / name / "class").write_text(f"{kind}\n")
    (folder / name / "vendor").write_text(f"{vendor}\n")


def test_graphics_cards_are_known_by_their_vendor(tmp_path: Path) -> None:
    card(tmp_path, "0000:00:01.0", "0x010802", "0x10de")  # a disk
    card(tmp_path, "0000:00:02.0", "0x030200", "0x10de")
    card(tmp_path, "0000:00:03.0", "0x030000", "0x1a03")
    (tmp_path / "0000:00:04.0").mkdir()
    cards = drivers.graphics_cards(tmp_path)
    assert cards == ["NVIDIA", "vendor 0x1a03"]
    assert drivers.cards_found(cards).text == "NVIDIA, vendor 0x1a03"
    assert drivers.cards_found(drivers.graphics_cards(tmp_path / "none")).text == "none on PCI"


def manifest(path: Path, library: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"ICD": {"library_path": library, "api_version": "1.3.0"}}))
    return path


def searched(root: Path) -> dict[str, str]:
    """An environment in which the loader's folders lie in one of the test's, but for /etc/vulkan."""
    names = ("HOME", "XDG_CONFIG_HOME", "XDG_CONFIG_DIRS", "XDG_DATA_HOME", "XDG_DATA_DIRS")
    return {name: str(root / name) for name in names}


@pytest.mark.skipif(any(Path("/etc/vulkan/icd.d").glob("*.json")), reason="this machine has drivers in /etc")
def test_a_system_without_drivers_is_told_which_to_install(tmp_path: Path) -> None:
    found = drivers.drivers(["Intel"], searched(tmp_path))
    assert (found.verdict, found.remedy) == (NOTE, "sudo apt install mesa-vulkan-drivers")
    found = drivers.drivers(["Intel", "NVIDIA"], searched(tmp_path))
    assert found.remedy.startswith("sudo apt install nvidia-driver nvidia-vulkan-icd")


def test_drivers_are_found_where_the_loader_looks(tmp_path: Path) -> None:
    folder = tmp_path / "XDG_DATA_DIRS" / "vulkan" / "icd.d"
    manifest(folder / "a.json", "libvulkan_a.so")
    manifest(folder / "gone.json", str(tmp_path / "gone.so"))
    (folder / "odd.json").write_text("[]")
    more = manifest(tmp_path / "more" / "b.json", "../b.so")
    (tmp_path / "b.so").touch()
    found = drivers.drivers([], searched(tmp_path) | {"VK_ADD_DRIVER_FILES": str(more)})
    assert found.verdict is OK
    assert found.text.split(", ")[-2:] == ["a.json", "b.json"]
    assert "gone.json" not in found.text


@pytest.mark.parametrize("name", ["VK_DRIVER_FILES", "VK_ICD_FILENAMES"])
def test_drivers_that_are_named_count_alone(tmp_path: Path, name: str) -> None:
    file = manifest(tmp_path / "a.json", "liba.so")
    assert drivers.drivers([], {name: str(tmp_path)}).text == f"a.json, named by {name}"
    file.unlink()
    found = drivers.drivers(["NVIDIA"], {name: str(file)})
    assert (found.verdict, found.remedy) == (NOTE, f"unset {name}")
    assert found.text == f"{name} names {file}, where there is no driver"


def test_a_loader_that_cannot_be_loaded(tmp_path: Path) -> None:
    (tmp_path / "libvulkan.so.1").write_text("no library")
    found = ask("vulkan.loader()", LD_LIBRARY_PATH=str(tmp_path))
    assert (found.verdict, found.remedy) == (NOTE, "sudo apt install libvulkan1")
    assert found.text.startswith("the system has no Vulkan loader")
    assert ask("vulkan.loader()").text.startswith("Vulkan 1.")


def test_a_loader_without_the_package_that_calls_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "vulkan", None)
    found = vulkan.loader()
    assert (found.verdict, found.remedy) == (NOTE, f"{sys.executable} -m pip install vulkan")
    assert found.text.startswith("the Python package vulkan cannot be imported")


def test_a_device_that_computes_wrongly(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Availability("llvmpipe adds wrongly; its driver cannot be trusted", None)
    monkeypatch.setattr(vulkan, "available", lambda *, allow_software: "" if allow_software else "none")
    found = vulkan.witness(GPUSettings(allow_software=True), wrong)
    assert (found.verdict, found.text) == (NOTE, wrong.reason)
    assert found.remedy == "update the device's driver; gpu.mode = 'off' goes without it"
    assert vulkan.witness(GPUSettings(), wrong).remedy == ""


def looked_at(
    monkeypatch: pytest.MonkeyPatch, *facts: DeviceFacts, **gpu: bool
) -> dict[str, tuple[Verdict, str, str]]:
    """Say what is found of devices of these facts."""
    monkeypatch.setattr(vulkan, "physical_devices", lambda: facts)
    found = vulkan.devices(GPUSettings(**gpu), ["AMD"])  # type: ignore[arg-type]
    return {each.subject: (each.verdict, each.text, each.remedy) for each in found}


def test_devices_are_told_with_why_they_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    short = replace(VIRTUAL, name="Short", features=frozenset(), type="discrete")
    found = looked_at(monkeypatch, LLVMPIPE, NVIDIA, short, replace(NVIDIA, name="Second"))
    software, short_one = found[f"device {LLVMPIPE.name}"], found["device Short"]
    assert software[0] is short_one[0] is NOTE
    assert software[2] == "for tests, set gpu.allow_software = true"
    assert short_one[1].endswith(f"; lacks {', '.join(REQUIRED_FEATURES)}")
    assert short_one[2] == "update its driver"
    assert found[f"device {NVIDIA.name}"][1].endswith("it is the one that is used")
    assert found["device Second"][1].endswith("could be used, another one comes first")
    assert found["features"][:2] == (
        NOTE,
        f"{NVIDIA.name} goes without {', '.join(missing_features(NVIDIA))}",
    )
    assert "shaderInt8" in found["features"][1]
    assert "cooperativeMatrix" not in found["features"][1]


def test_matrix_units_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    able = device("Able", heaps=[(1 << 30, True)], types=[(0, "local visible")], matrices=((16, 16, 16),))
    assert looked_at(monkeypatch, able)["matrix units"] == (
        OK, "of sizes 16 x 16 x 16, not used unless gpu.cooperative_matrix is set", ""
    )  # fmt: skip
    used = looked_at(monkeypatch, able, cooperative_matrix=True)["matrix units"]
    assert used[:2] == (OK, "of sizes 16 x 16 x 16, used")
    verdict, text, remedy = looked_at(monkeypatch, NVIDIA, cooperative_matrix=True)["matrix units"]
    assert (verdict, remedy) == (NOTE, "unset gpu.cooperative_matrix, or update the driver")
    assert text.startswith(f"{NVIDIA.name} lacks cooperativeMatrix")


def test_drivers_without_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    assert looked_at(monkeypatch) == {
        "devices": (NOTE, "Vulkan's drivers find no device", "sudo apt install mesa-vulkan-drivers")
    }


PACKAGES = "g++, cmake, libvulkan-dev, libfmt-dev, pybind11-dev"


def tried(monkeypatch: pytest.MonkeyPatch, folder: Path, content: str, reason: str = "") -> Finding:
    """Try a package kp of this content, with which Kompute does not work for this reason."""
    (folder / "kp.py").write_text(content)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "kp", raising=False)
    try:
        return rails.kompute(lambda: reason)
    finally:
        sys.modules.pop("kp", None)


def test_kompute_that_works(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = tried(monkeypatch, tmp_path, "__version__ = '0.9.0'")
    assert (found.verdict, found.text, found.remedy) == (OK, "kp 0.9.0 multiplies right on the device", "")


@pytest.mark.parametrize(
    ("content", "reason", "text", "remedy"),
    [
        (
            "import nothing_of_that_name",
            "",
            "kp cannot be imported: it lacks nothing_of_that_name",
            f"{sys.executable} -m pip install nothing_of_that_name",
        ),
        (
            "raise ImportError('libfmt.so.9: not found\\n  (required by kp)')",
            "",
            "kp cannot be imported: libfmt.so.9: not found (required by kp)",
            f"{sys.executable} -m pip uninstall kp, then in tierd's source: {sys.executable} "
            f"tools/install_kompute.py, which builds it (Debian: {PACKAGES})",
        ),
        (
            "",
            "GPU multiplies wrongly through Kompute; its driver cannot be trusted",
            "kp does not work: GPU multiplies wrongly through Kompute; its driver cannot be trusted",
            "update the device's driver; gpu.mode = 'resident' goes without rails",
        ),
    ],
)
def test_kompute_that_does_not_work(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str, reason: str, text: str, remedy: str
) -> None:
    found = tried(monkeypatch, tmp_path, content, reason)
    assert (found.verdict, found.text, found.remedy) == (NOTE, text, remedy)


@pytest.mark.parametrize(("version", "remedy"), [((3, 12), PACKAGES), ((3, 13), "Python 3.12 or 3.11")])
def test_kompute_that_is_not_installed(
    monkeypatch: pytest.MonkeyPatch, version: tuple[int, int], remedy: str
) -> None:
    monkeypatch.setitem(sys.modules, "kp", None)
    monkeypatch.setattr(sys, "version_info", version)
    found = rails.absent()
    assert found is not None
    assert found.verdict is NOTE
    assert found.text.startswith("kp is not installed, without which no model can be on the GPU in part")
    assert ("numpy below 2" in found.text) == (version == (3, 13))
    assert remedy in found.remedy


def test_what_kompute_takes_of_debian_is_what_is_installed() -> None:
    tool = Path(__file__).parents[3] / "tools" / "install_kompute.py"
    assert tool.name in rails.INSTALL
    packages = runpy.run_path(str(tool))["PACKAGES"]
    assert f"(Debian: {', '.join(packages)})" in rails.INSTALL


def test_folders_that_may_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    socket = AdminSettings(socket=str(tmp_path / "run" / "admin.sock"))
    found = [
        folders.cache(),
        folders.state(StateSettings(dir=tmp_path / "a" / "b")),
        folders.state(StateSettings()),
        folders.admin_socket(socket),
        folders.admin_socket(AdminSettings(socket="off")),
    ]
    assert [each.verdict for each in found] == [OK] * 5
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("place", ["state", "state/bank"])
def test_a_state_that_is_not_of_one_user_is_no_better_for_the_doctor_than_for_the_daemon(
    tmp_path: Path, place: str
) -> None:
    folder = tmp_path / place
    settings = StateSettings(dir=tmp_path / "state")
    folder.mkdir(0o700, parents=True)
    folder.parent.chmod(0o700)
    assert folders.state(settings).verdict is OK
    folder.chmod(0o755)
    with pytest.raises(SettingsError) as refused:
        open_spill(settings, lambda done: None)
    found = folders.state(settings)
    assert (found.verdict, found.error, found.text) == (PROBLEM, SettingsError, str(refused.value))
    assert found.text == f"state.dir: others may use {folder}, mode 755; run: chmod 700 {folder}"


def test_a_state_that_another_tierd_uses_is_told_and_left_to_it(tmp_path: Path) -> None:
    settings = StateSettings(dir=tmp_path / "state")
    spill = open_spill(settings, lambda done: None)
    assert spill is not None
    found = folders.state(settings)
    assert found.verdict is NOTE
    assert found.text == f"another tierd uses {tmp_path}/state: one that is started beside it ends at once"
    with pytest.raises(SettingsError, match="another tierd uses "):
        open_spill(settings, lambda done: None)
    assert spill.close()
    assert folders.state(settings).verdict is OK
    spill = open_spill(settings, lambda done: None)
    assert spill is not None
    assert spill.close()


def test_a_state_whose_lock_is_none_is_no_better_for_the_doctor_than_for_the_daemon(tmp_path: Path) -> None:
    settings = StateSettings(dir=tmp_path / "state")
    lock = tmp_path / "state" / "bank" / "lock"
    for folder in (lock.parent.parent, lock.parent, lock):
        folder.mkdir(0o700)
    with pytest.raises(SettingsError) as refused:
        open_spill(settings, lambda done: None)
    found = folders.state(settings)
    assert (found.verdict, found.error, found.text) == (PROBLEM, SettingsError, str(refused.value))
    assert found.text == f"state.dir: cannot use {lock}: Is a directory"


def test_folders_that_may_not(open_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = open_folder / "own"
    folder.mkdir(0o555)
    for name in ("XDG_CACHE_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.setenv(name, str(folder))
    monkeypatch.delenv("RUNTIME_DIRECTORY", raising=False)
    with another_user():
        user = rights.user()
        found = [
            folders.cache(),
            folders.admin_socket(AdminSettings()),
            folders.admin_socket(AdminSettings(socket=str(folder / "admin.sock"))),
            folders.state(StateSettings(dir=folder / "state")),
        ]
    assert [each.verdict for each in found] == [NOTE, NOTE, PROBLEM, PROBLEM]
    assert [each.error for each in found] == [None, None, SettingsError, SettingsError]
    for each in found:
        assert f"{user} may not write to {folder} (dr-xr-xr-x)" in each.text
    assert found[3].remedy == f"sudo install -d -m 0700 -o {user} {folder / 'state'}"


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert folders.obstacle_to(tmp_path / "file" / "state") == f"{tmp_path / 'file'} is no folder"
