"""The Python environments of the peers, the files of the workloads and the built ruler.

All of it lives in one cache folder and is made when it is missing or out of date:

    venv-NAME/       one per key of REQUIREMENTS, with requirements.txt written last
    models/          the files of workloads.generate()
    floor            floor.cpp, built
    inductor/        torch.compile's code cache, emptied by run.py unless runs are merged
    results.json     the raw results of run.py
"""

from __future__ import annotations

import hashlib
import pathlib
import shlex
import shutil
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
DEFAULT_CACHE = pathlib.Path("~/.cache/onnxgrad/peers")

REQUIREMENTS: dict[str, list[str]] = {
    # scikit-learn's environment also writes the models and the data.
    "sklearn": ["scikit-learn==1.9.1", "numpy==2.4.6", "onnx==1.23.2"],
    "jax": ["jax==0.10.2", "numpy==2.4.6"],
    "ort": [
        "onnxruntime-training-cpu==1.19.2", "numpy==1.26.4", "onnx==1.16.2", "h5py==3.16.0",
        "setuptools<80",
    ],
    # 5.4 GB: torch's wheel does not import without its CUDA wheels.
    "torch": ["torch==2.15.0", "numpy==2.4.6", "setuptools==84.2.1"],
}  # fmt: skip
FLOOR_FLAGS = ["-O3", "-march=native", "-std=c++20", "-ffast-math", "-I/usr/include/eigen3"]
FLOOR_LIBRARIES = ["-lxsmm", "-lxsmmext", "-lxsmmnoblas", "-lpthread", "-ldl"]


class SetUpError(Exception):
    """An environment, a model or the ruler cannot be made; the message has the reason."""


def log(*words: object) -> None:
    print(time.strftime("%H:%M:%S"), *words, file=sys.stderr, flush=True)


def run_checked(command: list[str], what: str) -> None:
    """Runs a command without printing its output; raises with the end of it if it fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        tail = " ".join(done.stdout.split())[-400:]
        raise SetUpError(f"{what} failed ({shlex.join(command)[:120]}): {tail}")


class Cache:
    """The cache folder; every method makes what is missing and returns where it is."""

    def __init__(self, folder: pathlib.Path, interpreter: str = sys.executable) -> None:
        self.folder = folder.expanduser().resolve()
        self.interpreter = interpreter
        self.folder.mkdir(parents=True, exist_ok=True)

    @property
    def results(self) -> pathlib.Path:
        return self.folder / "results.json"

    def python(self, environment: str) -> str:
        """The interpreter of an environment: a key of REQUIREMENTS, or "project"."""
        if environment == "project":
            path = REPOSITORY / ".venv" / "bin" / "python"
            if not path.exists():
                raise SetUpError(f"{path} is missing: run 'make build' first")
            return str(path)
        folder = self.folder / f"venv-{environment}"
        python, marker = folder / "bin" / "python", folder / "requirements.txt"
        wanted = "".join(line + "\n" for line in REQUIREMENTS[environment])
        if marker.exists() and marker.read_text() == wanted:
            return str(python)
        log("making the Python environment", folder)
        shutil.rmtree(folder, ignore_errors=True)
        run_checked([self.interpreter, "-m", "venv", str(folder)], f"venv-{environment}")
        install = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        run_checked(install + REQUIREMENTS[environment], f"venv-{environment}")
        marker.write_text(wanted)
        return str(python)

    def models(self, names: list[str]) -> pathlib.Path:
        """The folder with the files of the workloads, written again if their definition changed."""
        folder = self.folder / "models"
        digest = hashlib.sha256()
        for source in ("workloads.py", "models.py"):
            digest.update((HERE / source).read_bytes())
        stamp = folder / "definition.sha256"
        current = stamp.exists() and stamp.read_text() == digest.hexdigest()
        if not current:
            shutil.rmtree(folder, ignore_errors=True)
        missing = [name for name in names if not (folder / f"{name}.weights.npz").exists()]
        if missing:
            log("writing", ", ".join(missing), "to", folder)
            command = [self.python("sklearn"), str(HERE / "workloads.py"), str(folder), *missing]
            run_checked(command, "writing the models")
        stamp.write_text(digest.hexdigest())
        return folder

    def floor(self) -> str:
        """The ruler, built with g++ against libxsmm (Debian: libxsmm-dev)."""
        program, source = self.folder / "floor", HERE / "floor.cpp"
        if program.exists() and program.stat().st_mtime > source.stat().st_mtime:
            return str(program)
        compiler = shutil.which("g++")
        if compiler is None:
            raise SetUpError("no g++")
        if not pathlib.Path("/usr/include/libxsmm.h").exists():
            raise SetUpError("no libxsmm (Debian: libxsmm-dev)")
        log("building the ruler", program)
        command = [compiler, *FLOOR_FLAGS, str(source), "-o", str(program), *FLOOR_LIBRARIES]
        run_checked(command, "building floor.cpp")
        return str(program)

    def inductor(self, keep: bool) -> pathlib.Path:
        """torch.compile's code cache, empty unless `keep`."""
        folder = self.folder / "inductor"
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(exist_ok=True)
        return folder
