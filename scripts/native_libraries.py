"""Builds the C++ libraries of requirements/native.toml as static libraries, once per machine.

    native_libraries.py            build and install what is missing; print the prefix
    native_libraries.py --prefix   only print the prefix
    native_libraries.py --is-built exit status 0 if nothing is missing
    native_libraries.py --fetch D  only put the archives of the list into the folder D
    native_libraries.py --renew    list the revisions that have replaced others in Debian

The prefix is ${ONNXGRAD_DEPS:-~/.cache/onnxgrad}/native-<key>, with include/, lib/ and licenses/;
the key covers the list, RECIPE and FLAGS below and the compiler ($CXX). Archives come from
third_party/ where that is (in a source distribution), else from the package managers; each is
compared with its hash before it is unpacked.

Debian drops a revision when a fixed one replaces it. Where apt-get does not find the listed one, a
build takes the newest of the same upstream version, whose hashes apt-get compares with Debian's
signed lists, and says so. The key stays that of the list; sources.json in the prefix tells what was
used. --fetch, for source distributions, whose bill of materials is made of the list, stops instead.
"""

from __future__ import annotations

import argparse
import fcntl
import functools
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import quote

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "requirements/native.toml"
FLAGS = (
    "-DNDEBUG -ffunction-sections -fdata-sections -fvisibility=hidden -fstack-protector-strong"
    " -fcf-protection -D_FORTIFY_SOURCE=3 -D_GLIBCXX_ASSERTIONS"
)
RECIPE = "1"  # another one when this script builds or installs in another way
# How apt-get downloads each kind; the lists in which apt-cache finds its versions; how apt-get says
# that it does not find one.
APT_COMMANDS = {"debian-source": ["source", "--download-only"], "debian-package": ["download"]}
APT_LISTS = {"debian-source": "Sources", "debian-package": "Packages"}
APT_MISSES = {
    "debian-source": "Can not find version '{1}' of package '{0}'",
    "debian-package": "Version '{1}' for '{0}' was not found",
}

Library = dict[str, Any]


class BuildError(Exception):
    """Something that the user is told in one line."""


def read_libraries(path: Path = LIST) -> list[Library]:
    """Return the table of libraries, in the order in which they are built."""
    libraries: list[Library] = tomllib.loads(path.read_text(encoding="utf-8"))["library"]
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


def run(
    command: list[str], log: Path, cwd: Path | None = None, env: dict[str, str] | None = None
) -> None:
    """Run a command; its output goes to `log`, and its last lines to the user if it fails."""
    with log.open("a", encoding="utf-8") as file:
        file.write(f"$ {' '.join(command)}\n")
        file.flush()
        status = subprocess.run(
            command, cwd=cwd, env=env, stdout=file, stderr=subprocess.STDOUT, check=False
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


def newest_revision(library: Library, options: list[str]) -> str | None:
    """Return the newest revision that apt offers of the listed upstream version.

    None if there is none that is newer than the listed one.
    """
    package, _, listed = library["package"].partition("=")

    def compare(left: str, right: str) -> int:
        command = ["dpkg", "--compare-versions", left, "gt", right]
        return 1 if subprocess.run(command, check=False).returncode == 0 else -1

    command = ["apt-cache", *options, "madison", package]
    printed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    rows = [[part.strip() for part in line.split("|")] for line in printed.splitlines()]
    versions = {
        row[1]
        for row in rows
        if len(row) == 3 and row[0] == package and row[2].endswith(APT_LISTS[library["kind"]])
    }
    upstream = listed.rpartition("-")[0]
    newer = [x for x in versions if x.rpartition("-")[0] == upstream and compare(x, listed) > 0]
    return max(newer, key=functools.cmp_to_key(compare), default=None)


def downloaded_files(library: Library, folder: Path) -> dict[str, str]:
    """Return the files of a package that apt-get has put into `folder`, with their SHA-256."""
    package, _, version = library["package"].partition("=")
    if library["kind"] == "debian-package":
        (path,) = folder.glob(f"{package}_{quote(version, safe='+~').lower()}_*.deb")
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest()}
    description = folder / f"{package}_{version.rpartition(':')[2]}.dsc"
    rows = re.findall(r"^ ([0-9a-f]{64}) \d+ (\S+)$", description.read_text(encoding="utf-8"), re.M)
    files = {name: digest for digest, name in rows if not name.endswith(".asc")}
    for name, digest in library["files"].items():
        if ".debian.tar" not in name and files.get(name) != digest:
            raise BuildError(f"{library['package']}: {name} is not the one that {LIST.name} lists")
    return files


def apt_get(
    libraries: list[Library], kind: str, options: list[str], folder: Path, log: Path
) -> list[Library]:
    """Download the archives of libraries of one kind; return these, in the revisions taken."""
    taken = list(libraries)
    english = {**os.environ, "LC_ALL": "C"}
    while taken:
        start = log.stat().st_size
        packages = [library["package"] for library in taken]
        try:
            run(["apt-get", *options, *APT_COMMANDS[kind], *packages], log, folder, english)
            break
        except BuildError:
            printed = log.read_bytes()[start:].decode(errors="replace")
            misses = [
                APT_MISSES[kind].format(*package.split("=")) in printed for package in packages
            ]
            if True not in misses:
                raise
            place = misses.index(True)
            revision = newest_revision(taken[place], options)
            if revision is None:
                raise
            package = f"{packages[place].partition('=')[0]}={revision}"
            taken[place] = {**taken[place], "package": package}
    return [
        new if new is old else {**new, "files": downloaded_files(new, folder)}
        for old, new in zip(libraries, taken, strict=True)
    ]


def download_debian(libraries: list[Library], work: Path, folder: Path, log: Path) -> list[Library]:
    """Put archives of Debian into `folder`; return the libraries, in the revisions taken."""
    if shutil.which("apt-get") is None:
        raise BuildError(f"no apt-get here: put the archives of {LIST.name} into third_party/")
    options = debian_options(work)
    run(["apt-get", *options, "update"], log)
    taken = []
    for kind in APT_COMMANDS:
        taken += apt_get([x for x in libraries if x["kind"] == kind], kind, options, folder, log)
    return taken


def download_sdist(library: Library, work: Path, folder: Path, log: Path) -> None:
    """Put the source distribution of a Python package into `folder`."""
    pip = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check"]
    lines = "".join(f" --hash=sha256:{x}" for x in library["files"].values())
    wanted = work / "sdist.txt"
    wanted.write_text(library["package"] + lines + "\n", encoding="utf-8")
    source = ["--no-deps", "--no-binary", ":all:", "--no-build-isolation"]
    run([*pip, *source, "--require-hashes", "-r", str(wanted), "-d", str(folder)], log)


def missing_files(library: Library, folder: Path) -> list[str]:
    """Return the archives that are neither in `folder` nor in third_party/, where it takes them."""
    missing = []
    for name, digest in library["files"].items():
        stored = ROOT / "third_party" / name
        if checked(folder / name, digest):
            continue
        if checked(stored, digest):
            shutil.copyfile(stored, folder / name)
        else:
            missing.append(name)
    return missing


def fetch(folder: Path, log: Path) -> list[Library]:
    """Put all archives into `folder`, compared with their hashes; return the libraries.

    Those are the ones of the list, in other revisions where Debian has replaced the listed ones.
    """
    folder.mkdir(parents=True, exist_ok=True)
    libraries = read_libraries()
    missing = {x["name"]: files for x in libraries if (files := missing_files(x, folder))}
    if not missing:
        return libraries
    print(f"native: downloading {', '.join(missing)}", file=sys.stderr)
    debian = [x for x in libraries if x["name"] in missing and x["kind"] in APT_COMMANDS]
    taken = {library["name"]: library for library in libraries}
    with tempfile.TemporaryDirectory() as work:
        if debian:
            found = download_debian(debian, Path(work), folder, log)
            taken.update((library["name"], library) for library in found)
        for library in libraries:
            if library["name"] in missing and library["kind"] == "sdist":
                download_sdist(library, Path(work), folder, log)
    for library in taken.values():
        for name, digest in library["files"].items():
            # Files that were there before have been compared already.
            is_new = name in missing.get(library["name"], ()) or library not in libraries
            if is_new and not checked(folder / name, digest):
                raise BuildError(f"{name} is not the file that {LIST.name} has the hash of")
    return list(taken.values())


def renewed(taken: list[Library]) -> list[tuple[Library, Library]]:
    """Return the libraries of the list that were taken in other revisions, with these."""
    return [
        (old, new)
        for old, new in zip(read_libraries(), taken, strict=True)
        if old["package"] != new["package"]
    ]


def renewals(taken: list[Library]) -> str:
    """Return the replaced revisions and those taken, and how to renew the list; empty if none."""
    changes = [
        f"{old['package']} (now {new['package'].partition('=')[2]})" for old, new in renewed(taken)
    ]
    if not changes:
        return ""
    return (
        f"Debian no longer has {', '.join(changes)}:"
        f" renew {LIST.name} by scripts/{Path(__file__).name} --renew"
    )


def renew(path: Path, taken: list[Library]) -> None:
    """Write the revisions that were taken into the list."""
    text = path.read_text(encoding="utf-8")
    for old, new in renewed(taken):
        text = text.replace(f'"{old["package"]}"', f'"{new["package"]}"')
        lines = [f'"{x}" = "{new["files"][x]}"' for x in new["files"] if x not in old["files"]]
        for name in old["files"].keys() - new["files"].keys():
            text = text.replace(f'"{name}" = "{old["files"][name]}"', "\n".join(lines))
    path.write_text(text, encoding="utf-8")


def unpack(library: Library, archives: Path, target: Path, log: Path) -> None:
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


def build(library: Library, source: Path, prefix: Path, options: list[str], log: Path) -> None:
    """Build and install one library into `prefix`."""
    print(f"native: {library['name']} {library['version']}", file=sys.stderr)
    flags = f"{library.get('optimize', '-O2')} {FLAGS}"
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
                f"-DCMAKE_C_FLAGS_RELEASE={flags}",
                f"-DCMAKE_CXX_FLAGS_RELEASE={flags} -fvisibility-inlines-hidden",
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
        run(["env", f"CFLAGS=-fPIC {flags}", *configure], log, source)
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
    libraries = fetch(archives, log)
    if warning := renewals(libraries):
        print(f"native: {warning}", file=sys.stderr)
    (prefix / "licenses").mkdir(parents=True)
    options = [
        "-DCMAKE_BUILD_TYPE=Release",
        "-DCMAKE_POSITION_INDEPENDENT_CODE=ON",
        "-DBUILD_SHARED_LIBS=OFF",
        "-DCMAKE_INSTALL_LIBDIR=lib",
        f"-DCMAKE_INSTALL_PREFIX={prefix}",
        f"-DCMAKE_PREFIX_PATH={prefix}",
        f"-DPython3_EXECUTABLE={sys.executable}",
        "-DCMAKE_POLICY_VERSION_MINIMUM=3.5",
    ]
    if shutil.which("ccache"):
        os.environ.update(CCACHE_BASEDIR=str(work.parent), CCACHE_NOHASHDIR="1")
        options += ["-DCMAKE_C_COMPILER_LAUNCHER=ccache", "-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"]
    for library in libraries:
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
    used = {x["name"]: {"package": x["package"], "files": x["files"]} for x in libraries}
    (prefix / "sources.json").write_text(json.dumps(used, indent=2) + "\n", encoding="utf-8")


def fetch_only(folder: Path | None, is_renewal: bool) -> None:
    """Put the archives into `folder`, by default that of all builds; renew the list, or be exact.

    The log, fetch.log, stays there if that fails.
    """
    folder = folder or prefix_of().parent / "archives"
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "fetch.log"
    log.unlink(missing_ok=True)
    libraries = fetch(folder, log)
    log.unlink(missing_ok=True)
    if is_renewal:
        renew(LIST, libraries)
    elif problem := renewals(libraries):
        raise BuildError(problem)


def main(arguments: list[str]) -> int:
    """Do what the arguments say; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--prefix", action="store_true", help="only print the prefix")
    parser.add_argument("--is-built", action="store_true", help="only tell by the exit status")
    parser.add_argument("--fetch", type=Path, metavar="FOLDER", help="only download the archives")
    parser.add_argument("--renew", action="store_true", help="list Debian's new revisions")
    given = parser.parse_args(arguments)
    # The environment's own cmake and pip, whether it is activated or not.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    try:
        if given.fetch or given.renew:
            fetch_only(given.fetch, is_renewal=given.renew)
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
