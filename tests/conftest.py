"""Shared by all tests: hypothesis without deadlines and the same in every run, and how programs are compiled.

Most of the time of these tests goes into compiling small programs that run once. So they are compiled quickly, unless
the test is marked `optimised`, because it is about bits, rounding or speed, or runs for longer than it compiles; no
program serves both kinds of tests. What the tests start as a process of its own is compiled as it is for a user.
"""

import gc
import itertools
import os
from pathlib import Path

import jax
import pytest
from hypothesis import settings
from jax._src import compiler  # has no public name, and its configuration no switch for the two options below

os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parents[1] / ".jax_cache"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
jax.config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)

EXAMPLES = 200 if os.environ.get("CONFIDE_THOROUGH") else 60 if os.environ.get("CONFIDE_EVERYTHING") else 25
settings.register_profile("confide", deadline=None, derandomize=True, print_blob=False, max_examples=EXAMPLES)
settings.load_profile("confide")


# Fusions by LLVM alone, and each program in one piece: half the time to compile, and longer to run.
QUICK = [("xla_cpu_use_fusion_emitters", False), ("xla_cpu_parallel_codegen_split_count", 1)]
_get_compile_options = compiler.get_compile_options


def _get_quick_options(*given, **more):
    found = _get_compile_options(*given, **more)
    if jax.config.read("jax_disable_most_optimizations"):
        found.env_option_overrides = [*found.env_option_overrides, *QUICK]
    return found


compiler.get_compile_options = _get_quick_options


MAPS = Path("/proc/self/maps")
MOST_MAPS = int(os.environ.get("CONFIDE_TEST_MAPS", "30000"))  # of the 65,530 that Linux gives a process


TESTS = itertools.count()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    """Around the fixtures too, which belong to the module that they are in."""
    _forget_programs()
    quick = item.get_closest_marker("optimised") is None
    jax.config.update("jax_disable_most_optimizations", quick)
    jax.config.update("jax_threefry_gpu_kernel_lowering", quick)  # nothing to a CPU, but programs are known by it
    return (yield)


def _forget_programs():
    """Every compiled program holds maps of memory until it is forgotten; without any left, the compiler crashes."""
    if next(TESTS) % 10 == 0 and MAPS.exists() and MAPS.read_bytes().count(b"\n") > MOST_MAPS:
        jax.clear_caches()
        gc.collect()


LATER = {"long": "CONFIDE_EVERYTHING", "thorough": "CONFIDE_THOROUGH"}  # by markers, what sets them free


def pytest_collection_modifyitems(items):
    """What takes long is for continuous integration, and more of the same for `make thorough`."""
    for marker, name in LATER.items():
        if not os.environ.get(name):
            for item in items:
                if item.get_closest_marker(marker):
                    item.add_marker(pytest.mark.skip(reason=f"it takes long: set {name}=1"))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """Where datasets and a browser must be there, a test skipped for want of one has failed."""
    outcome = yield
    report = outcome.get_result()
    needed = [name for name in ("CONFIDE_DATA", "CONFIDE_BROWSER") if os.environ.get(f"{name}_REQUIRED")]
    if report.skipped and any(name in str(report.longrepr) for name in needed):
        report.outcome = "failed"
        report.longrepr = f"skipped where it must not be: {report.longrepr}"
