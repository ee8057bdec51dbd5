"""Makes the .venv import onnxgrad from this checkout; run by `make build`, takes milliseconds.

The extension comes from the same build tree as the C++ tests (preset release puts it into
python/onnxgrad), so nothing is compiled twice. Written into site-packages: a .pth file, the
metadata that pip would write, and bin/onnxgrad. `pip uninstall onnxgrad` removes it all.
"""

import re
import stat
import sys
import sysconfig
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def read_version(root: Path = ROOT) -> str:
    """Return the version in include/onnxgrad/version.h, e.g. "0.1.0"."""
    text = (root / "include/onnxgrad/version.h").read_text(encoding="utf-8")
    found = re.search(r'kVersion = "([0-9.]+)"', text)
    if found is None:
        raise SystemExit("develop: include/onnxgrad/version.h does not hold a version")
    return found.group(1)


def write_if_changed(path: Path, text: str) -> None:
    """Write `text` to `path` unless it is already its content."""
    if not path.exists() or path.read_text(encoding="utf-8") != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def install(site_packages: Path, bin_folder: Path, interpreter: str, root: Path = ROOT) -> None:
    """Write the .pth file, the metadata and the console scripts."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    version = read_version(root)
    info = site_packages / f"onnxgrad-{version}.dist-info"
    for old in site_packages.glob("onnxgrad-*.dist-info"):
        if old != info:
            for file in old.iterdir():
                file.unlink()
            old.rmdir()

    scripts: dict[str, str] = project["scripts"]
    metadata = [f"Metadata-Version: 2.1\nName: onnxgrad\nVersion: {version}\n"]
    metadata.append(f"Requires-Python: {project['requires-python']}\n")
    metadata += [f"Requires-Dist: {name}\n" for name in project["dependencies"]]
    entry_points = "[console_scripts]\n" + "".join(f"{k} = {v}\n" for k, v in scripts.items())

    files = {
        site_packages / "_onnxgrad_develop.pth": f"{root / 'python'}\n",
        info / "METADATA": "".join(metadata),
        info / "WHEEL": "Wheel-Version: 1.0\nGenerator: onnxgrad\nRoot-Is-Purelib: false\n",
        info / "entry_points.txt": entry_points,
        info / "INSTALLER": "scripts/develop.py\n",
    }
    for name, target in scripts.items():
        module, function = target.split(":")
        files[bin_folder / name] = (
            f"#!{interpreter}\nimport sys\n\nfrom {module} import {function}\n\n"
            f'if __name__ == "__main__":\n    sys.exit({function}())\n'
        )
    record = "".join(f"{path},,\n" for path in [*files, info / "RECORD"])
    for path, text in {**files, info / "RECORD": record}.items():
        write_if_changed(path, text)
    for name in scripts:
        script = bin_folder / name
        script.chmod(script.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)


def main() -> int:
    """Install into the interpreter's own environment; return the exit status."""
    if sys.prefix == sys.base_prefix:
        print("develop: run this with the interpreter of .venv", file=sys.stderr)
        return 1
    paths = sysconfig.get_paths()
    install(Path(paths["platlib"]), Path(paths["scripts"]), sys.executable)
    return 0


if __name__ == "__main__":
    sys.exit(main())
