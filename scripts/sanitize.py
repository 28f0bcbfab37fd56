# SPDX-License-Identifier: BSD-3-Clause
"""Builds the CPU library with a sanitizer, in a folder of its own, and tests it there.

    sanitize.py address [--calls N] [--skip tests]    AddressSanitizer, UndefinedBehaviorSanitizer
    sanitize.py thread                                ThreadSanitizer

Python and torch are not instrumented, so the sanitizer's runtime is preloaded into them. It takes
over the allocator, hence it sees what our code does beyond the end of any tensor. First a probe
makes mistakes on purpose: a run that would not notice them fails. docs/testing.md says what a
sanitizer does not see.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import build
import toolchain

ROOT = toolchain.ROOT
RUNTIMES = {"address": ("libasan.so", "libubsan.so"), "thread": ("libtsan.so",)}
NAMES = {"address": "asan", "thread": "tsan"}
REPORTS = ("ERROR: AddressSanitizer: ", "runtime error: ", "WARNING: ThreadSanitizer: ")
FAILED = 99  # the exit code of a process in which a sanitizer found something
# Values, errors, layouts, gradients and special values of the families of ops, the convolutions
# left out, as far as a family has them; the C++ programs, which are instrumented themselves.
OF_FAMILIES = "values", "errors", "layouts", "gradients", "learned", "observe", "random", "special"
TESTS = {
    name: tuple(n for n in OF_FAMILIES if (ROOT / "tests" / name / f"test_{n}.py").exists())
    for name in toolchain.families()
    if name != "int8_conv"
} | {"ops": ("calls", "threads", "lazy_values"), "cpp_api": ("ops", "modules", "files")}
PROBE = r"""
#include <cstdint>
extern "C" int beyond(const int8_t* values, int64_t count) { return values[count]; }
extern "C" int overflow(int value, int64_t other) { return value + static_cast<int>(other); }
extern "C" int cast(double value) { return static_cast<int>(value); }
static int shared_value;
extern "C" int race() { return ++shared_value; }
"""
PROBES = {
    "beyond": "t = torch.ones(64); lib.beyond(c_void_p(t.data_ptr()), c_int64(256))",
    "overflow": "lib.overflow(c_int(2**31 - 1), c_int64(1))",
    "cast": "lib.cast(c_double(3e9))",
    "race": "run = lambda: [lib.race() for _ in range(2000)]\n"
    "ts = [threading.Thread(target=run) for _ in range(8)]\n"
    "[t.start() for t in ts]; [t.join() for t in ts]",
    "nothing": "t = torch.ones(64); lib.beyond(c_void_p(t.data_ptr()), c_int64(255))",
}
PROBES_OF = {"address": ("nothing", "beyond", "overflow", "cast"), "thread": ("nothing", "race")}
# PyTorch's autograd notes, in code of its headers, that a node has a parent: every thread that uses
# a leaf writes the same `true` without an order.
THREAD_SUPPRESSIONS = """
race:torch::autograd::Node::topological_nr
race:torch::autograd::Node::set_next_edges
"""


def say(text: str) -> None:
    print(text, flush=True)


def pytest_configure() -> None:
    """Of pytest's `-p sanitize`: the instrumented library is the one that is tested."""
    import baraquant

    folder = Path(os.environ["BARAQUANT_SANITIZED"])
    assert folder in Path(baraquant.__file__).parents, f"{baraquant.__file__} is not in {folder}"


class Run:
    """One sanitizer: its folder below build/, its environment, its reports."""

    def __init__(self, kind: str) -> None:
        self.kind, self.name = kind, NAMES[kind]
        self.folder = ROOT / "build" / self.name
        self.lib, self.reports = self.folder / "lib", self.folder / "reports"
        self.compiler = os.environ.get("CXX", "c++").split()
        self.failures: list[str] = []

    def runtimes(self) -> list[str] | None:
        """The runtimes' paths; None where the compiler has none."""
        if shutil.which(self.compiler[0]) is None:
            return None
        found = []
        for name in RUNTIMES[self.kind]:
            command = [*self.compiler, f"-print-file-name={name}"]
            path = subprocess.run(command, check=False, capture_output=True, text=True).stdout
            if not Path(path.strip()).is_absolute():
                return None
            found.append(path.strip())
        return found

    def environment(self) -> dict[str, str]:
        """For processes that load the instrumented library."""
        log = f"log_path={self.reports / 'report'}:exitcode={FAILED}"
        common = f"halt_on_error=1:{log}"
        suppressions = self.folder / "suppressions"
        suppressions.write_text(THREAD_SUPPRESSIONS)
        return os.environ | {
            "LD_PRELOAD": " ".join(self.runtimes() or []),
            # Python keeps what it allocates until it exits, so leaks cannot be told. An allocation
            # that is too large returns null, as it does without a sanitizer: torch makes an error.
            "ASAN_OPTIONS": f"{common}:detect_leaks=0:allocator_may_return_null=1:"
            "max_allocation_size_mb=8192:detect_stack_use_after_return=1:protect_shadow_gap=0",
            "UBSAN_OPTIONS": f"{common}:print_stacktrace=1",
            "TSAN_OPTIONS": f"halt_on_error=0:{log}:suppressions={suppressions}:"
            "ignore_noninstrumented_modules=1",
            "PYTHONPATH": os.pathsep.join(map(str, (self.lib, ROOT / "scripts", ROOT))),
            "BARAQUANT_SANITIZED": str(self.lib),
            "BARAQUANT_SANITIZE": self.kind,
            "CUDA_VISIBLE_DEVICES": "",
        }

    def python(self, *arguments: str) -> list[str]:
        """ThreadSanitizer wants its addresses free: without random ones it has them."""
        fixed = ["setarch", "-R"] if self.kind == "thread" and shutil.which("setarch") else []
        return [*fixed, sys.executable, *arguments]

    def build(self) -> bool:
        """Compile what has changed."""
        places = ["--build-lib", str(self.lib), "--build-temp", str(self.folder / "temp")]
        environment = {"BARAQUANT_CUDA": "0", "BARAQUANT_SANITIZE": self.kind}
        log = self.folder / "build.log"
        if build.setup(self.name, log, "build", *places, **environment) != 0:
            self.failures.append("the build")
        return not self.failures

    def probe(self) -> None:
        """Mistakes made on purpose are found, and none where there is none."""
        source, library = self.folder / "probe.cpp", self.folder / "probe.so"
        source.write_text(PROBE)
        flags = toolchain.SANITIZERS[self.kind]
        command = [*self.compiler, *flags, "-shared", "-fPIC", str(source), "-o", str(library)]
        subprocess.run(command, check=True)
        for name in PROBES_OF[self.kind]:
            code = "import sys, threading, torch\nfrom ctypes import *\n"
            code += f"lib = CDLL({str(library)!r})\n{PROBES[name]}"
            done = subprocess.run(
                self.python("-c", code),
                check=False,
                env=self.environment(),
                capture_output=True,
                text=True,
            )
            expected = 0 if name == "nothing" else FAILED
            # Beside AddressSanitizer, the other one writes to stderr, whatever its log_path says.
            said = bool(self.found()) or any(w in done.stderr for w in REPORTS)
            if done.returncode != expected or said != bool(expected):
                self.failures.append(f"the probe {name!r} (exit code {done.returncode})")
                say(f"{done.stdout}{done.stderr}"[-3000:])
            self.clear()
        if not self.failures:
            say(f"{self.name}: the probe's mistakes are found: {PROBES_OF[self.kind][1:]}")

    def clear(self) -> None:
        """Forget the reports so far."""
        shutil.rmtree(self.reports, ignore_errors=True)
        self.reports.mkdir(parents=True)

    def found(self) -> list[Path]:
        """The reports that tell of a mistake; not those of an allocation that was too large."""
        files = sorted(self.reports.glob("*"))
        return [p for p in files if any(w in p.read_text(errors="replace") for w in REPORTS)]

    def step(self, name: str, *arguments: str) -> None:
        """Run Python in the sanitizer's environment; a failure or a report is noted."""
        say(f"{self.name}: {name}")
        start = time.monotonic()
        # `python -m` looks into the working folder first: there is the instrumented library.
        done = subprocess.run(
            self.python(*arguments), check=False, cwd=self.lib, env=self.environment()
        )
        seconds = f"{time.monotonic() - start:.0f} s"
        state = "passed" if done.returncode == 0 else f"FAILED (exit code {done.returncode})"
        say(f"{self.name}: {name}: {state} in {seconds}")
        if done.returncode != 0:
            self.failures.append(name)

    def tests(self, workers: str) -> None:
        """Of the files in TESTS, what the short run takes."""
        files = [
            str(ROOT / "tests" / folder / f"test_{name}.py")
            for folder, names in TESTS.items()
            for name in names
        ]
        self.step(
            "the short tests",
            *("-m", "pytest", "-p", "sanitize", "-q", "-n", workers, "--dist", "worksteal"),
            *("-o", f"pythonpath={self.lib} . scripts", "-p", "no:cacheprovider", "--no-header"),
            # Without this, pytest would put the repository's folder in front of the others.
            "--import-mode=append",
            *("--capture=sys", "-r", "fE", "-m", "not exhaustive", *files),
        )

    def finish(self) -> int:
        """Show the reports, and say in a line what came of it all."""
        reports = self.found()
        for path in reports[:5]:
            say(f"--- {path}\n{path.read_text(errors='replace')[:6000]}")
        if reports:
            self.failures.append(f"{len(reports)} reports in {self.reports.relative_to(ROOT)}")
        if self.failures:
            say(f"{self.name}: FAILED: {'; '.join(self.failures)}")
            return 1
        say(f"{self.name}: passed, no report")
        return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=RUNTIMES)
    parser.add_argument("--calls", type=int, default=20_000, help="hostile calls")
    parser.add_argument("--files", type=int, default=2000, help="damaged files")
    parser.add_argument("--workers", default="2", help="processes side by side")
    parser.add_argument("--skip", nargs="*", default=[], choices=("tests", "calls", "files"))
    options = parser.parse_args()
    run = Run(options.kind)
    if run.runtimes() is None:
        names = " and ".join(RUNTIMES[options.kind])
        say(f"{run.name}: skipped, {run.compiler[0]} has no {names} (they come with g++)")
        return 1 if os.environ.get("CI") == "true" else 0
    run.folder.mkdir(parents=True, exist_ok=True)
    run.clear()
    if not run.build():
        return run.finish()
    run.probe()
    if options.kind == "thread":
        run.step("eight threads", "-m", "tests.ops.eight_threads", "--quick")
        return run.finish()
    if "tests" not in options.skip:
        run.tests(options.workers)
    if "calls" not in options.skip:
        calls = [str(options.calls), "--processes", options.workers]
        run.step(f"{options.calls} hostile calls", "-m", "tests.ops.hostile", *calls)
    if "files" not in options.skip:
        files = ("-m", "tests.serialization.fuzz", "--files", str(options.files))
        run.step(f"{options.files} damaged files, in Python and C++", *files)
    return run.finish()


if __name__ == "__main__":
    sys.exit(main())
