"""Settings of the environment under which libraries run the programs that they have for another processor.

| name      | BLAS        | XLA  | NumPy                    | C library  |
|-----------|-------------|------|--------------------------|------------|
| "newest"  | AVX-512     | all  | all                      | all        |
| "haswell" | Haswell     | AVX2 | without AVX-512          | all        |
| "zen"     | Zen         | AVX2 | without AVX-512          | all        |
| "oldest"  | Sandybridge | AVX  | what every processor has | neither FMA nor AVX2 |

A processor that lacks AVX-512 runs the same programs under "newest" as it does without any setting.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

DISPATCHED = list(getattr(getattr(np, "_core", None), "_multiarray_umath", np).__dict__.get("__cpu_dispatch__", []))
WIDE = " ".join(name for name in DISPATCHED if "512" in name or name == "X86_V4")
SETTINGS = {
    "newest": {"OPENBLAS_CORETYPE": "SkylakeX"},
    "haswell": {
        "OPENBLAS_CORETYPE": "Haswell",
        "XLA_FLAGS": "--xla_cpu_max_isa=AVX2",
        "NPY_DISABLE_CPU_FEATURES": WIDE,
    },
    "zen": {"OPENBLAS_CORETYPE": "Zen", "XLA_FLAGS": "--xla_cpu_max_isa=AVX2", "NPY_DISABLE_CPU_FEATURES": WIDE},
    "oldest": {
        "OPENBLAS_CORETYPE": "Sandybridge",
        "XLA_FLAGS": "--xla_cpu_max_isa=AVX",
        "NPY_DISABLE_CPU_FEATURES": " ".join(DISPATCHED),
        "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX2,-FMA",
    },
}
VARIABLES = sorted({name for setting in SETTINGS.values() for name in setting})


def run(program: str, setting: str, folder: Path, *arguments: str) -> dict:
    """What a program of `python -c` writes to `result.json` in the folder, run under a setting.

    Compiled programs are kept for each setting by itself: a program of another one would hide the difference.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tests = Path(__file__).parents[1]
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES} | SETTINGS[setting]
    environment["PYTHONPATH"] = os.pathsep.join([str(tests), str(tests.parent / "src")])
    home = os.environ.get("JAX_COMPILATION_CACHE_DIR", str(tests.parent / ".jax_cache"))
    environment["JAX_COMPILATION_CACHE_DIR"] = f"{home}-{setting}"
    command = [sys.executable, "-W", "ignore", "-c", program, str(folder), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads((folder / "result.json").read_text())


if __name__ == "__main__":
    setting, *command = sys.argv[1:]
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[2] / f".jax_cache-{setting}"))
    os.execvpe(command[0], command, os.environ | SETTINGS[setting])
