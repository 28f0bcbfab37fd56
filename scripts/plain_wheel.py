# SPDX-License-Identifier: BSD-3-Clause
"""The command bdist_wheel, where neither setuptools (before 70.1) nor a package wheel has it.

A fresh environment of Python 3.11 or older holds such a setuptools and no wheel, and
``pip install --no-build-isolation`` adds nothing to it. A wheel is a zip file of what is installed,
and of three files beside it: METADATA, WHEEL and RECORD (PEP 427).
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import shutil
import sys
import sysconfig
import tempfile
import zipfile
from pathlib import Path

from setuptools import Command


def is_needed() -> bool:
    """Whether this environment has no bdist_wheel of its own."""
    own = importlib.util.find_spec("setuptools.command.bdist_wheel")
    return own is None and importlib.util.find_spec("wheel") is None


def tag() -> str:
    """For which interpreter and platform a wheel is, as in ``cp311-cp311-linux_x86_64``."""
    abi = "cp" + str(sysconfig.get_config_var("SOABI")).split("-")[1]
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    return f"cp{sys.version_info.major}{sys.version_info.minor}-{abi}-{platform}"


class PlainWheel(Command):  # type: ignore[misc]
    """bdist_wheel, as far as setuptools' build backend calls it."""

    description = "write a wheel"
    user_options = [("dist-dir=", "d", "the folder for the wheel")]  # noqa: RUF012 - setuptools' type

    def initialize_options(self) -> None:
        """Sets what the command line may set."""
        self.dist_dir: str | None = None

    def finalize_options(self) -> None:
        """Fills in what the command line has left out."""
        self.dist_dir = self.dist_dir or "dist"

    def run(self) -> None:
        """Builds, and packs what was built."""
        assert self.dist_dir is not None
        name = f"{self.distribution.get_name()}-{self.distribution.get_version()}"
        self.run_command("build")
        self.run_command("egg_info")
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            install = self.reinitialize_command("install_lib")
            install.install_dir, install.compile = folder, False
            self.run_command("install_lib")
            information = root / f"{name}.dist-info"
            self._write_metadata(Path(self.get_finalized_command("egg_info").egg_info), information)
            (information / "WHEEL").write_text(
                f"Wheel-Version: 1.0\nGenerator: baraquant\nRoot-Is-Purelib: false\nTag: {tag()}\n"
            )
            target = Path(self.dist_dir) / f"{name}-{tag()}.whl"
            target.parent.mkdir(parents=True, exist_ok=True)
            pack(root, information, target)

    def egg2dist(self, egg_info: str, dist_info: str) -> None:
        """Turns a folder egg-info into a folder dist-info, as the command dist_info asks for it."""
        self._write_metadata(Path(egg_info), Path(dist_info))
        shutil.rmtree(egg_info)

    def _write_metadata(self, egg_info: Path, dist_info: Path) -> None:
        dist_info.mkdir(parents=True, exist_ok=True)
        fields, _, description = (egg_info / "PKG-INFO").read_text("utf-8").partition("\n\n")
        if "\nRequires-Dist:" not in fields:  # setuptools before 68 left that to bdist_wheel
            fields = "\n".join([fields, *self._requirements()])
        (dist_info / "METADATA").write_text(f"{fields}\n\n{description}", "utf-8")
        shutil.copy(egg_info / "top_level.txt", dist_info)
        for file in self.distribution.metadata.license_files or []:
            shutil.copy(file, dist_info)

    def _requirements(self) -> list[str]:
        distribution = self.distribution
        return [
            *(f"Requires-Dist: {text}" for text in distribution.install_requires),
            *(
                f'Requires-Dist: {text}; extra == "{extra}"'
                for extra, texts in distribution.extras_require.items()
                for text in texts
            ),
        ]


def pack(root: Path, information: Path, target: Path) -> None:
    """Writes every file below root into a wheel, and RECORD with their hashes as its last."""
    record = []
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as wheel:
        for path in sorted(p for p in root.rglob("*") if p.is_file()):
            name = path.relative_to(root).as_posix()
            digest = base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest())
            record.append(f"{name},sha256={digest.decode().rstrip('=')},{path.stat().st_size}")
            wheel.write(path, name)
        name = (information / "RECORD").relative_to(root).as_posix()
        wheel.writestr(name, "\n".join([*record, f"{name},,"]) + "\n")
