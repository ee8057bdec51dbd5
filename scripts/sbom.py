"""Writes the software bill of materials of a release, as CycloneDX 1.6.

    python scripts/sbom.py [--native FILE] [--output FILE] [DISTRIBUTION...]

It lists what the wheel contains of others, with versions, licences and hashes of the sources: the
C++ libraries of requirements/native.toml and what the extension compiles in from Python packages
for building; then what pip installs with it, by name, since the user's versions are not known.
Wheel and source distribution are listed with their hashes if they are given.

Each library of the list is a table, whose `files` are what its sources are made of:

    [[library]]
    name = "fmt"
    version = "9.1.0"
    kind = "debian-source"                       # or "debian-package", or "sdist"
    package = "fmtlib=9.1.0+ds1-2"               # or "onnx==1.23.2"
    files = { "fmtlib_9.1.0.orig.tar.gz" = "<SHA-256>" }
    license = "MIT"                              # an SPDX expression
    license_file = "LICENSE.rst"                 # its path in the sources

The same inputs give the same bytes: the only time is SOURCE_DATE_EPOCH, or that of the commit.
"""

import argparse
import datetime
import hashlib
import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import quote

from develop import read_version
from sdist import source_date
from source_files import ROOT

NATIVE = "requirements/native.toml"
# Package types of purls, by the kind of a source.
KINDS = {"sdist": "pypi", "debian-source": "deb/debian", "debian-package": "deb/debian"}
# Packages for building that are compiled into the extension, with the licences of all their parts.
COMPILED_IN = {"nanobind": "BSD-3-Clause AND MIT"}
_HASH = re.compile(r"[0-9a-f]{64}")
_TEXTS = ("name", "version", "kind", "package", "license")

Json = dict[str, Any]


def check_library(entry: Json) -> list[str]:
    """Return what is wrong with one library of the list."""
    name = entry.get("name", "a library without name")
    problems = [
        f"{name}: `{key}` must be a text"
        for key in _TEXTS
        if not isinstance(entry.get(key), str) or not entry[key].strip()
    ]
    if isinstance(entry.get("kind"), str) and entry["kind"] not in KINDS:
        problems.append(f"{name}: kind '{entry['kind']}' is none of {', '.join(KINDS)}")
    files = entry.get("files")
    if not isinstance(files, dict) or not files:
        problems.append(f"{name}: `files` must have the SHA-256 of each file by its name")
    else:
        problems += [
            f"{name}: '{digest}' of {file} is no SHA-256"
            for file, digest in files.items()
            if not isinstance(digest, str) or not _HASH.fullmatch(digest)
        ]
    return problems


def read_native(path: Path) -> list[Json]:
    """Return the libraries of the list, sorted by name; stops with all that is wrong with it."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SystemExit(f"sbom: {path} is missing: the list of the C++ libraries") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SystemExit(f"sbom: {path}: {error}") from None
    entries = content.get("library")
    if not isinstance(entries, list) or not all(isinstance(one, dict) for one in entries):
        raise SystemExit(f"sbom: {path} has no [[library]] tables")
    problems = [problem for entry in entries for problem in check_library(entry)]
    names = [str(entry.get("name")) for entry in entries]
    problems += [
        f"{name}: listed twice" for name in sorted({n for n in names if names.count(n) > 1})
    ]
    if problems:
        raise SystemExit(f"sbom: {path}:\n  " + "\n  ".join(problems))
    return sorted(entries, key=lambda entry: str(entry["name"]))


def hashes(*digests: str) -> list[Json]:
    """Return SHA-256 digests as CycloneDX has them."""
    return [{"alg": "SHA-256", "content": digest} for digest in digests]


def purl(kind: str, name: str, version: str | None = None) -> str:
    """Return the package URL of a source, e.g. "pkg:pypi/onnx@1.23.2"."""
    where = f"pkg:{KINDS[kind]}/{quote(name.lower())}"
    if version is not None:
        where += f"@{quote(version)}"
    return where + ("?arch=source" if kind == "debian-source" else "")


def contained(name: str, version: str, address: str, terms: str, references: list[Json]) -> Json:
    """Return the component of a library that is in the wheel; `address` is its package URL."""
    return {
        "type": "library",
        "bom-ref": address,
        "name": name,
        "version": version,
        "scope": "required",
        "licenses": [{"expression": terms}],
        "purl": address,
        "externalReferences": references,
        "properties": [{"name": "onnxgrad:contained", "value": "true"}],
    }


def native_component(entry: Json) -> Json:
    """Return the component of one library of the list."""
    references = [
        {"type": "source-distribution", "url": quote(file), "hashes": hashes(digest)}
        for file, digest in sorted(entry["files"].items())
    ]
    package, _, version = entry["package"].replace("==", "=").partition("=")
    address = purl(entry["kind"], package, version)
    component = contained(entry["name"], entry["version"], address, entry["license"], references)
    if isinstance(entry.get("license_file"), str):
        file = {"name": "onnxgrad:license-file", "value": entry["license_file"]}
        component["properties"].append(file)
    return component


def locked(name: str, root: Path) -> tuple[str, list[str]]:
    """Return version and hashes of a package in requirements/locked/build.txt."""
    text = (root / "requirements/locked/build.txt").read_text(encoding="utf-8")
    entry = re.search(rf"^{re.escape(name)}==(\S+).*?(?=^\S|\Z)", text, re.M | re.S)
    if entry is None:
        raise SystemExit(f"sbom: requirements/locked/build.txt has no {name}")
    return entry[1], re.findall(r"--hash=sha256:([0-9a-f]{64})", entry[0])


def compiled_in(root: Path, listed: set[str]) -> list[Json]:
    """Return components of the packages for building whose code is in the extension."""
    found = []
    for name, terms in COMPILED_IN.items():
        if name not in listed:
            version, digests = locked(name, root)
            reference = {
                "type": "distribution",
                "url": "requirements/locked/build.txt",
                "comment": "hashes of all files of the release",
                "hashes": hashes(*digests),
            }
            found.append(contained(name, version, purl("sdist", name, version), terms, [reference]))
    return found


def installed_with(requirement: str) -> Json:
    """Return the component of a Python package that pip installs, e.g. for "numpy>=1.26"."""
    match = re.match(r"[\w.-]+", requirement)
    name = match[0] if match else requirement
    address = purl("sdist", name)
    return {
        "type": "library",
        "bom-ref": address,
        "name": name,
        "scope": "required",
        "purl": address,
        "properties": [
            {"name": "onnxgrad:contained", "value": "false"},
            {"name": "onnxgrad:requirement", "value": requirement},
        ],
    }


def distribution(path: Path) -> Json:
    """Return the reference to a wheel or a source distribution, with its hash."""
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return {"type": "distribution", "url": quote(path.name), "hashes": hashes(digest)}


def bill(native: list[Json], distributions: list[Path], root: Path = ROOT) -> Json:
    """Return the bill of materials."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    version = read_version(root)
    subject: Json = {
        "type": "library",
        "bom-ref": purl("sdist", project["name"], version),
        "name": project["name"],
        "version": version,
        "description": project["description"],
        "licenses": [{"expression": project["license"]}],
        "purl": purl("sdist", project["name"], version),
    }
    if distributions:
        subject["externalReferences"] = [distribution(path) for path in sorted(distributions)]
    components = [native_component(entry) for entry in native]
    components += compiled_in(root, {entry["name"] for entry in native})
    components += [installed_with(one) for one in project["dependencies"]]
    components.sort(key=lambda component: str(component["bom-ref"]))
    metadata: Json = {
        "tools": {"components": [{"type": "application", "name": "onnxgrad scripts/sbom.py"}]},
        "component": subject,
    }
    date = source_date(root)
    if date is not None:
        when = datetime.datetime.fromtimestamp(int(date), datetime.UTC)
        metadata["timestamp"] = when.isoformat().replace("+00:00", "Z")
    references = [component["bom-ref"] for component in components]
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": metadata,
        "components": components,
        "dependencies": [
            {"ref": subject["bom-ref"], "dependsOn": references},
            *({"ref": reference} for reference in references),
        ],
    }


def main(arguments: list[str]) -> int:
    """Write the bill; return the exit status."""
    parser = argparse.ArgumentParser(prog="sbom.py", description=__doc__.splitlines()[0])
    parser.add_argument("--native", type=Path, default=ROOT / NATIVE, help="the C++ libraries")
    parser.add_argument("--output", type=Path, help="default: dist/onnxgrad-<version>.cdx.json")
    parser.add_argument("distributions", type=Path, nargs="*", metavar="DISTRIBUTION")
    given = parser.parse_args(arguments)
    content = bill(read_native(given.native), given.distributions)
    output: Path = given.output or ROOT / f"dist/onnxgrad-{read_version()}.cdx.json"
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    print(f"sbom: {output}, {len(content['components'])} components")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
