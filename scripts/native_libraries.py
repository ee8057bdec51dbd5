"""Builds the C++ libraries of requirements/native.toml as static libraries, once per machine.

    native_libraries.py            build and install what is missing; print the prefix
    native_libraries.py --prefix   only print the prefix
    native_libraries.py --is-built exit status 0 if nothing is missing
    native_libraries.py --fetch D  only put the archives into the folder D

The prefix is ${ONNXGRAD_DEPS:-~/.cache/onnxgrad}/native-<key>, with include/, lib/ and licenses/;
the key covers the sources, RECIPE and FLAGS below and the compiler ($CXX). Archives come from
third_party/ where that is (in a source distribution), else from the package managers; each is
compared with its hash before it is unpacked.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "requirements/native.toml"
FLAGS = (
    "-O2 -DNDEBUG -ffunction-sections -fdata-sections -fvisibility=hidden -fstack-protector-strong"
    " -fcf-protection -D_FORTIFY_SOURCE=3 -D_GLIBCXX_ASSERTIONS"
)
RECIPE = "1"  # another one when this script builds or installs in another way
# How apt-get downloads each kind.
APT_COMMANDS = {"debian-source": ["source", "--download-only"], "debian-package": ["download"]}


class BuildError(Exception):
    """Something that the user is told in one line."""


def read_libraries(path: Path = LIST) -> list[dict[str, Any]]:
    """Return the table of libraries, in the order in which they are built."""
    libraries: list[dict[str, Any]] = tomllib.loads(path.read_text(encoding="utf-8"))["library"]
    return libraries


def prefix_of() -> Path:
    """Return the folder of the built libraries."""
    command = [os.environ.get("CXX", "c++"), "-dumpfullversion", "-dumpmachine"]
    compiler = subprocess.run(command, check=True, capture_output=True).stdout
    key = hashlib.sha256()
    for part in (json.dumps(read_libraries()).encode(), RECIPE.encode(), FLAGS.encode(), compiler):
        key.update(part)
    cache = Path(os.environ.get("ONNXGRAD_DEPS") or Path.home() / ".cache/onnxgrad")
    return cache / f"native-{key.hexdigest()[:16]}"


def run(command: list[str], log: Path, cwd: Path | None = None) -> None:
    """Run a command; its output goes to `log`, and its last lines to the user if it fails."""
    with log.open("a", encoding="utf-8") as file:
        file.write(f"$ {' '.join(command)}\n")
        file.flush()
        status = subprocess.run(
            command, cwd=cwd, stdout=file, stderr=subprocess.STDOUT, check=False
        )
    if status.returncode != 0:
        tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-30:]
        raise BuildError("\n".join([*tail, f"'{command[0]}' failed; the whole log is in {log}"]))


# --- Archives


def checked(path: Path, digest: str) -> bool:
    """Whether the file is there and has this SHA-256."""
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == digest


def debian_options(work: Path) -> list[str]:
    """Return options with which apt-get knows source packages; the system stays as it is."""
    parts, lists = work / "parts", work / "lists"
    (lists / "partial").mkdir(parents=True, exist_ok=True)
    parts.mkdir(exist_ok=True)
    folder = Path("/etc/apt")
    for source in [folder / "sources.list", *sorted((folder / "sources.list.d").glob("*"))]:
        if source.suffix == ".sources" and source.is_file():
            lines = source.read_text(encoding="utf-8").splitlines()
            text = "\n".join("Types: deb deb-src" if x.startswith("Types:") else x for x in lines)
            (parts / source.name).write_text(text + "\n", encoding="utf-8")
        elif source.suffix == ".list" and source.is_file():
            lines = source.read_text(encoding="utf-8").splitlines()
            text = "\n".join(f"{x}\ndeb-src {x[4:]}" for x in lines if x.startswith("deb "))
            (parts / source.name).write_text(text + "\n", encoding="utf-8")
    return [
        "-qq",
        *("-o", "Dir::Etc::sourcelist=/dev/null", "-o", f"Dir::Etc::sourceparts={parts}"),
        *("-o", f"Dir::State::lists={lists}", "-o", "APT::Sandbox::User=root"),
    ]


def download(libraries: list[dict[str, Any]], folder: Path, log: Path) -> None:
    """Put the archives of the libraries into `folder`, through apt-get and pip."""
    packages = {
        kind: [x["package"] for x in libraries if x["kind"] == kind] for kind in APT_COMMANDS
    }
    with tempfile.TemporaryDirectory() as work:
        if any(packages.values()):
            if shutil.which("apt-get") is None:
                raise BuildError(
                    f"no apt-get here: put the archives of {LIST.name} into third_party/"
                )
            options = debian_options(Path(work))
            run(["apt-get", *options, "update"], log)
            for kind, command in APT_COMMANDS.items():
                if packages[kind]:
                    run(["apt-get", *options, *command, *packages[kind]], log, folder)
        for library in libraries:
            if library["kind"] == "sdist":
                pip = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check"]
                lines = "".join(f" --hash=sha256:{x}" for x in library["files"].values())
                wanted = Path(work) / "sdist.txt"
                wanted.write_text(library["package"] + lines + "\n", encoding="utf-8")
                source = ["--no-deps", "--no-binary", ":all:", "--no-build-isolation"]
                run([*pip, *source, "--require-hashes", "-r", str(wanted), "-d", str(folder)], log)


def fetch(folder: Path, log: Path) -> None:
    """Put all archives into `folder` and compare them with their hashes."""
    folder.mkdir(parents=True, exist_ok=True)
    third_party = ROOT / "third_party"
    missing = []
    for library in read_libraries():
        for name, digest in library["files"].items():
            if not checked(folder / name, digest) and checked(third_party / name, digest):
                shutil.copyfile(third_party / name, folder / name)
        if not all(checked(folder / name, digest) for name, digest in library["files"].items()):
            missing.append(library)
    if missing:
        print(f"native: downloading {', '.join(x['name'] for x in missing)}", file=sys.stderr)
        download(missing, folder, log)
    for library in missing:
        for name, digest in library["files"].items():
            if not checked(folder / name, digest):
                raise BuildError(f"{name} is not the file that {LIST.name} has the hash of")


def unpack(library: dict[str, Any], archives: Path, target: Path, log: Path) -> None:
    """Unpack the sources into `target`, Debian's patches applied."""
    if library["kind"] == "debian-package":
        for name in library["files"]:
            run(["dpkg-deb", "-x", str(archives / name), str(target)], log)
        return
    upstream = [name for name in library["files"] if ".debian.tar" not in name]
    unpacked = target.with_name(target.name + ".archive")
    for name in upstream:
        with tarfile.open(archives / name) as archive:
            archive.extractall(unpacked, filter="data")
    (top,) = unpacked.iterdir()
    top.rename(target)
    for name in library["files"].keys() - set(upstream):
        with tarfile.open(archives / name) as archive:
            archive.extractall(target, filter="data")
    series = target / "debian/patches/series"
    if series.is_file():
        for patch in series.read_text(encoding="utf-8").splitlines():
            if patch.strip() and not patch.startswith("#"):
                run(["patch", "-p1", "-s", "-i", f"debian/patches/{patch.split()[0]}"], log, target)


# --- Build


def prepare_tables(source: Path) -> None:
    """Let the generators of re2's tables read the Unicode files of the library unicode-data.

    They take urllib from the package six, for Python 2; the standard library has it.
    """
    unicode = source / "re2/unicode.py"
    text = unicode.read_text(encoding="utf-8")
    text = text.replace("from six.moves import urllib", "import urllib.request")
    text = text.replace("/usr/share/unicode", str(source.parent / "unicode-data/usr/share/unicode"))
    unicode.write_text(text, encoding="utf-8")


def build(
    library: dict[str, Any], source: Path, prefix: Path, options: list[str], log: Path
) -> None:
    """Build and install one library into `prefix`."""
    print(f"native: {library['name']} {library['version']}", file=sys.stderr)
    for header in library.get("headers", ()):
        (prefix / "include" / header).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / header, prefix / "include" / header)
    if "make" in library:
        prepare_tables(source)
        run(["make", "-B", *library["make"]], log, source)
    if "cmake" in library:
        tree = source.with_name(source.name + ".build")
        run(
            [
                "cmake",
                "-G",
                "Ninja",
                "-S",
                str(source),
                "-B",
                str(tree),
                *options,
                *library["cmake"],
            ],
            log,
        )
        run(
            [
                "cmake",
                "--build",
                str(tree),
                "-j",
                os.environ.get("ONNXGRAD_JOBS", str(os.cpu_count())),
            ],
            log,
        )
        run(["cmake", "--install", str(tree)], log)
        shutil.rmtree(tree)
    if "configure" in library:
        configure = ["./configure", f"--prefix={prefix}", *library["configure"]]
        run(["env", f"CFLAGS=-fPIC {FLAGS}", *configure], log, source)
        run(["make", "-s", "install"], log, source)
    shutil.copyfile(
        source / library["license_file"], prefix / "licenses" / f"{library['name']}.txt"
    )


def protoc_of(version: str) -> str | None:
    """Return the system's compiler of messages if it has this version."""
    found = shutil.which("protoc")
    if found is None:
        return None
    printed = subprocess.run(
        [found, "--version"], capture_output=True, text=True, check=False
    ).stdout
    return found if printed.split()[-1:] == [version] else None


def build_all(prefix: Path, work: Path, log: Path) -> None:
    """Build all libraries in `work`, which becomes `prefix`."""
    archives = prefix.parent / "archives"
    fetch(archives, log)
    (prefix / "licenses").mkdir(parents=True)
    options = [
        "-DCMAKE_BUILD_TYPE=Release",
        "-DCMAKE_POSITION_INDEPENDENT_CODE=ON",
        "-DBUILD_SHARED_LIBS=OFF",
        "-DCMAKE_INSTALL_LIBDIR=lib",
        f"-DCMAKE_INSTALL_PREFIX={prefix}",
        f"-DCMAKE_PREFIX_PATH={prefix}",
        f"-DCMAKE_C_FLAGS_RELEASE={FLAGS}",
        f"-DCMAKE_CXX_FLAGS_RELEASE={FLAGS} -fvisibility-inlines-hidden",
        f"-DPython3_EXECUTABLE={sys.executable}",
        "-DCMAKE_POLICY_VERSION_MINIMUM=3.5",
    ]
    if shutil.which("ccache"):
        os.environ.update(CCACHE_BASEDIR=str(work), CCACHE_NOHASHDIR="1")
        options += ["-DCMAKE_C_COMPILER_LAUNCHER=ccache", "-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"]
    for library in read_libraries():
        source = work / library["name"]
        if library["name"] == "protobuf":
            # ONNX's messages need a protoc of the library's version: the system's, or one of here.
            protoc = protoc_of(library["version"])
            if protoc is None:
                library["cmake"] = [x for x in library["cmake"] if "PROTOC" not in x]
            options.append(f"-DProtobuf_PROTOC_EXECUTABLE={protoc or prefix / 'bin/protoc'}")
        unpack(library, archives, source, log)
        build(library, source, prefix, options, log)
    for shared in prefix.glob("lib/*.so*"):
        shared.unlink()


def main(arguments: list[str]) -> int:
    """Do what the arguments say; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--prefix", action="store_true", help="only print the prefix")
    parser.add_argument("--is-built", action="store_true", help="only tell by the exit status")
    parser.add_argument("--fetch", type=Path, metavar="FOLDER", help="only download the archives")
    given = parser.parse_args(arguments)
    # The environment's own cmake and pip, whether it is activated or not.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    try:
        if given.fetch:
            given.fetch.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory() as folder:
                fetch(given.fetch, Path(folder) / "log")
            return 0
        prefix = prefix_of()
        if given.is_built:
            return 0 if (prefix / "finished").is_file() else 1
        if not given.prefix and not (prefix / "finished").is_file():
            prefix.parent.mkdir(parents=True, exist_ok=True)
            with prefix.with_suffix(".lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # another build on this machine may be at it
                if not (prefix / "finished").is_file():
                    shutil.rmtree(prefix, ignore_errors=True)
                    log = prefix.with_suffix(".log")
                    log.unlink(missing_ok=True)
                    with tempfile.TemporaryDirectory(dir=prefix.parent) as work:
                        build_all(prefix, Path(work), log)
                    (prefix / "finished").touch()
        print(prefix)
    except BuildError as failure:
        print(f"native: {failure}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
