"""Environments that hold the wheel of dist/ and nothing of the checkout."""

import email
import fcntl
import hashlib
import re
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# All but Ray, which weighs 300 MB with its dependencies: it has an environment of its own, "ray".
EXTRAS = ("compat", "data", "image", "plot", "sklearn", "tensorboard")


def find_wheel() -> Path:
    found = sorted((ROOT / "dist").glob("onnxgrad-*.whl"))
    if len(found) != 1:
        raise pytest.UsageError(f"dist/ holds {len(found)} wheels of onnxgrad: run make wheel")
    return found[0]


def find_python(version: str) -> str | None:
    """An interpreter of this version, "3.12": on PATH, or where pyenv keeps them."""
    kept = sorted((Path.home() / ".pyenv/versions").glob(f"{version}.*/bin/python"))
    for candidate in (shutil.which(f"python{version}"), *map(str, reversed(kept))):
        if candidate is None:
            continue
        command = [candidate, "-c", "import sys; print(*sys.version_info[:2], sep='.')"]
        printed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        if printed.strip() == version:
            return candidate
    return None


def requirements_of(wheel: Path, extras: tuple[str, ...]) -> list[str]:
    """The wheel's own requirements and those of the extras, as it states them."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(x for x in archive.namelist() if x.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
    found = []
    for line in metadata.get_all("Requires-Dist") or []:
        requirement, _, marker = (part.strip() for part in line.partition(";"))
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", marker)
        if (extra is None or extra[1] in extras) and not requirement.startswith("onnxgrad"):
            found.append(requirement)
    return found


@dataclass(frozen=True)
class Environment:
    """An environment with the wheel, and a folder to run programs in."""

    version: str
    versions: str
    folder: Path

    def run(self, *command: str, cwd: Path) -> str:
        """Run a program with no other variables; return what it printed, errors too."""
        program = self.folder / "bin" / command[0]
        place = {"HOME": str(cwd), "PATH": f"{self.folder}/bin:/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
        done = subprocess.run(
            [str(program), *command[1:]],
            cwd=cwd,
            env=place,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}"
        return done.stdout


def install(wheel: Path, python: str, folder: Path, versions: str) -> None:
    """Make the environment `folder`."""
    uv = [str(Path(sys.executable).with_name("uv")), "-q"]
    subprocess.run([*uv, "venv", "--python", python, str(folder)], check=True)
    place = ["--python", str(folder / "bin/python"), "--only-binary", ":all:"]
    command = [*uv, "pip", "install", *place, str(wheel)]
    if versions == "ray":
        command += requirements_of(wheel, ("ray",))
    elif versions != "bare":
        # Only what is named on the command line is taken in its lowest version.
        resolution = {"oldest": "lowest-direct", "newest": "highest"}[versions]
        named = [*requirements_of(wheel, EXTRAS), "onnxruntime>=1.20"]
        command += ["--resolution", resolution, *named]
    subprocess.run(command, check=True)


def make_environment(version: str, versions: str) -> Environment:
    """Install the wheel: alone ("bare"), with Ray, or with all extras, "oldest" or "newest"."""
    python = find_python(version)
    if python is None:
        pytest.skip(f"no Python {version} on this machine")
    wheel = find_wheel()
    folder = ROOT / "build/wheel-test" / f"{version}-{versions}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    stamp = folder / "wheel"
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    with (folder.parent / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # workers of pytest share it
        if not stamp.exists() or stamp.read_text() != digest:
            shutil.rmtree(folder, ignore_errors=True)
            install(wheel, python, folder, versions)
            stamp.write_text(digest)
    return Environment(version, versions, folder)
