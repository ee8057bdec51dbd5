"""One version, metadata, source distribution, bill of materials and workflows of a release."""

import hashlib
import importlib.util
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import release  # noqa: E402
import sbom  # noqa: E402
import sdist  # noqa: E402
from develop import read_version  # noqa: E402

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LEFT_OUT = (
    *("docs/pictures/", "examples/language/", "examples/seeds/"),
    *("tests/data/language/", "tests/data/models/", "tests/data/pytorch/", "tests/data/zoo/"),
)
HOME = "https://github.com/onnxgrad/onnxgrad"


def load(path):
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


# ----------------------------------------------------------------------------- version and metadata


def test_version_of_the_citation_and_the_change_log():
    problems = release.problems_of_files(None)
    assert all("unreleased" in problem for problem in problems), problems
    assert load("CITATION.cff")["version"] == read_version()


def test_citation_has_what_its_format_requires():
    citation = load("CITATION.cff")
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert citation["authors"] == PROJECT["authors"]
    assert citation["license"] == PROJECT["license"]
    assert citation["repository-code"] == HOME


def test_one_address_of_the_project():
    assert PROJECT["urls"]["Source"] == HOME
    files = [ROOT / name for name in ("pyproject.toml", "CITATION.cff", "SECURITY.md")]
    files += [path for path in (ROOT / ".github").rglob("*") if path.is_file()]
    for file in files:
        for owner in re.findall(r"github\.com/([\w-]+/[\w-]+)", file.read_text(encoding="utf-8")):
            assert owner == "onnxgrad/onnxgrad", file


def test_pythons_of_the_classifiers_are_those_that_the_wheel_is_used_with():
    found = [re.fullmatch(r".*:: (3\.\d+)", line) for line in PROJECT["classifiers"]]
    versions = [match[1] for match in found if match]
    jobs = load(".github/workflows/wheel.yml")["jobs"]
    used = [one for name in ("use", "newest") for one in jobs[name]["strategy"]["matrix"]["python"]]
    assert versions == used
    assert PROJECT["requires-python"] == f">={versions[0]}"


# ------------------------------------------------------------------------------------ before a tag


@pytest.fixture
def project(tmp_path):
    """A repository with the files that a release is checked by."""
    (tmp_path / "include/onnxgrad").mkdir(parents=True)
    (tmp_path / "include/onnxgrad/version.h").write_text('const char* kVersion = "1.2.3";\n')
    (tmp_path / "CITATION.cff").write_text("title: x\nversion: 1.2.3\n")
    (tmp_path / "CHANGELOG.md").write_text(
        "# Changelog\n\n## 1.2.3: gates (2027-01-02)\n\nGates.\n\n## 1.2.2: doors\n\nDoors.\n"
    )
    name = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    for command in (["init", "-q"], ["add", "."], [*name, "commit", "-q", "-m", "a"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    return tmp_path


@pytest.mark.parametrize("wanted", [None, "1.2.3", "v1.2.3"])
def test_a_release_that_can_be_made(project, wanted):
    assert release.problems_of_files(wanted, project) == []
    assert release.problems_of_history(project) == []
    assert release.changes("1.2.3", project) == ("1.2.3: gates (2027-01-02)", "Gates.")


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("CITATION.cff", "version: 1.2.2\n", "CITATION.cff has version 1.2.2, not 1.2.3"),
        ("CITATION.cff", "title: x\n", "CITATION.cff has version None"),
        ("CHANGELOG.md", "## 1.2.2: doors\n\nDoors.\n", "no heading '## 1.2.3'"),
        ("CHANGELOG.md", "## 1.2.30\n\nDoors.\n", "no heading '## 1.2.3'"),
        ("CHANGELOG.md", "## 1.2.3 (unreleased)\n\nGates.\n", "'## 1.2.3 (unreleased)' needs"),
        ("CHANGELOG.md", "## 1.2.3\n\n## 1.2.2\n\nDoors.\n", "says nothing below '## 1.2.3'"),
    ],
)
def test_files_that_stand_against_a_release(project, file, text, words):
    (project / file).write_text(text)
    (problem,) = release.problems_of_files("v1.2.3", project)
    assert words in problem
    assert "not committed" in release.problems_of_history(project)[0]


def test_a_tag_that_is_not_the_version(project):
    (problem,) = release.problems_of_files("v1.2.4", project)
    assert problem.startswith("'v1.2.4' is not 1.2.3")


def test_a_tag_of_another_commit(project):
    subprocess.run(["git", "tag", "v1.2.3"], cwd=project, check=True)
    assert release.problems_of_history(project) == []
    name = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    more = ["git", *name, "commit", "-q", "--allow-empty", "-m", "b"]
    subprocess.run(more, cwd=project, check=True)
    assert "v1.2.3 is the tag of another commit" in release.problems_of_history(project)[0]


# ------------------------------------------------------------------------------ source distribution


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    if importlib.util.find_spec("scikit_build_core") is None:
        pytest.skip("scikit-build-core is not installed")
    folder = tmp_path_factory.mktemp("sdist")
    for part in ("a", "b"):
        command = [sys.executable, ROOT / "scripts/sdist.py", "--bare", folder / part]
        subprocess.run(command, check=True, env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000"})
    first, second = sorted(folder.glob("*/*.tar.gz"))
    assert first.read_bytes() == second.read_bytes()
    return first


def test_content_of_the_source_distribution(archive):
    assert archive.name == f"onnxgrad-{read_version()}.tar.gz"
    assert archive.stat().st_size < 5_500_000
    with tarfile.open(archive) as content:
        members = content.getmembers()
    names = {member.name.partition("/")[2] for member in members}
    tracked = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True
    ).stdout.splitlines()
    expected = {name for name in tracked if not name.startswith(LEFT_OUT)}
    assert expected - names == set()
    assert {name.split("/")[0] for name in names - expected} <= {
        "PKG-INFO",
        *(path.name for path in ROOT.iterdir()),
    }
    for name in names:
        assert not name.startswith(("build/", "dist/", ".venv", ".git/", *LEFT_OUT)), name
        assert not name.endswith((".so", ".pyc", ".o", ".whl")), name
    assert {member.mtime for member in members} == {1_700_000_000}
    assert {"LICENSE", "PKG-INFO", "scripts/setup.sh", "tests/python/smoke.py"} <= names


def test_metadata_of_the_source_distribution(archive):
    with tarfile.open(archive) as content:
        member = content.extractfile(f"onnxgrad-{read_version()}/PKG-INFO")
        assert member is not None
        head = member.read().decode().split("\n\n")[0].splitlines()
    assert f"Version: {read_version()}" in head
    assert "License-Expression: MIT" in head
    assert f"Project-URL: Source, {HOME}" in head


# -------------------------------------------------------------------------------- bill of materials

ZEROS, ONES, TWOS = (digit * 64 for digit in "012")
NATIVE = f"""
[[library]]
name = "onnx"
version = "1.23.2"
kind = "sdist"
package = "onnx==1.23.2"
files = {{ "onnx-1.23.2.tar.gz" = "{ZEROS}" }}
license = "Apache-2.0"
license_file = "LICENSE"

[[library]]
name = "fmt"
version = "9.1.0"
kind = "debian-source"
package = "fmtlib=9.1.0+ds1-2"
license = "MIT"
[library.files]
"fmtlib_9.1.0+ds1.orig.tar.xz" = "{ONES}"
"fmtlib_9.1.0+ds1-2.debian.tar.xz" = "{TWOS}"
"""


@pytest.fixture
def native(tmp_path):
    path = tmp_path / "native.toml"
    path.write_text(NATIVE)
    return path


def test_bill_of_materials(native, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    wheel = tmp_path / "onnxgrad-1.whl"
    wheel.write_bytes(b"wheel")
    outputs = [tmp_path / "a.json", tmp_path / "b.json"]
    for output in outputs:
        sbom.main(["--native", str(native), "--output", str(output), str(wheel)])
    assert outputs[0].read_bytes() == outputs[1].read_bytes()
    content = json.loads(outputs[0].read_text())
    assert (content["bomFormat"], content["specVersion"]) == ("CycloneDX", "1.6")
    assert content["metadata"]["timestamp"] == "2023-11-14T22:13:20Z"
    subject = content["metadata"]["component"]
    assert (subject["name"], subject["version"]) == ("onnxgrad", read_version())
    digest = hashlib.sha256(b"wheel").hexdigest()
    assert subject["externalReferences"][0]["hashes"] == [{"alg": "SHA-256", "content": digest}]
    components = {one["name"]: one for one in content["components"]}
    assert {"onnx", "fmt", "nanobind", "numpy", "typer"} <= set(components)
    fmt = components["fmt"]
    assert fmt["purl"] == "pkg:deb/debian/fmtlib@9.1.0%2Bds1-2?arch=source"
    assert fmt["licenses"] == [{"expression": "MIT"}]
    assert [one["hashes"][0]["content"] for one in fmt["externalReferences"]] == [
        "2" * 64,
        "1" * 64,
    ]
    pins = (ROOT / "requirements/build.txt").read_text()
    assert f"nanobind=={components['nanobind']['version']}\n" in pins
    assert components["nanobind"]["externalReferences"][0]["hashes"]
    assert "version" not in components["numpy"]
    references = [one["bom-ref"] for one in content["components"]]
    assert len(set(references)) == len(references)
    assert content["dependencies"][0]["dependsOn"] == references


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (ZEROS, "0" * 63, "is no SHA-256"),
        ('version = "1.23.2"\n', "", "onnx: `version` must be a text"),
        ('license = "MIT"', 'license = " "', "fmt: `license` must be a text"),
        ('"sdist"', '"wheel"', "kind 'wheel' is none of sdist, debian-source, debian-package"),
        ('name = "fmt"', 'name = "onnx"', "onnx: listed twice"),
        ("[[library]]", "[[libraries]]", "no [[library]] tables"),
        ("files = { ", "file = { ", "`files` must have"),
        ('name = "onnx"', "name = ", "native.toml: "),
    ],
)
def test_lists_of_libraries_that_are_refused(native, old, new, words):
    native.write_text(NATIVE.replace(old, new))
    with pytest.raises(SystemExit, match=re.escape(words)):
        sbom.read_native(native)


def test_a_missing_list_of_libraries(tmp_path):
    with pytest.raises(SystemExit, match="is missing"):
        sbom.read_native(tmp_path / "native.toml")


def test_the_list_of_libraries_of_this_tree():
    path = ROOT / sbom.NATIVE
    if not path.exists():
        pytest.skip("there is no list yet")
    names = {entry["name"] for entry in sbom.read_native(path)}
    assert "onnx" in names
    json.dumps(sbom.bill(sbom.read_native(path), []))


def test_times_of_files_are_those_of_the_commit(project, monkeypatch, tmp_path):
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    shown = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=project, capture_output=True)
    assert sdist.source_date(project) == shown.stdout.decode().strip()
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "5")
    assert sdist.source_date(project) == "5"


# ---------------------------------------------------------------------------------------- workflows


def steps_of(workflow):
    return [step for job in workflow["jobs"].values() for step in job.get("steps", ())]


def test_workflows_are_found():
    assert {path.stem for path in WORKFLOWS} == {"docs", "release", "tests", "wheel"}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflow(path):
    """Rights are given by job, actions are pinned, jobs end, and what they run is there."""
    text = path.read_text(encoding="utf-8")
    workflow = yaml.safe_load(text)
    assert workflow["permissions"] == {}
    assert "concurrency" in workflow
    for job in workflow["jobs"].values():
        assert "permissions" in job
        assert "uses" in job or job["timeout-minutes"] <= 180
    for action in re.findall(r"uses: (.*)", text):
        is_ours = action.startswith("./.github/") and (ROOT / action.split()[0]).exists()
        assert is_ours or re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v[\d.]+", action), action
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.M))
    for step in steps_of(workflow):
        command = step.get("run", "")
        assert "${{" not in command, "a name of a branch or tag could run as code"
        for words in re.findall(r"\bmake ([a-z -]+)", command):
            assert set(words.split()) - {"jobs"} <= targets | {"make"}, command
        for file in re.findall(r"\b(?:scripts|tests|requirements)/[\w./-]+", command):
            assert (ROOT / file).exists(), file


def test_one_commit_for_each_action():
    text = "".join(path.read_text(encoding="utf-8") for path in WORKFLOWS)
    pins = set(re.findall(r"uses: ([\w-]+/[\w-]+)[\w/-]*(@.*)", text))
    assert len(pins) == len({action for action, _ in pins})


def test_only_the_release_may_write():
    rights = {
        (path.stem, job): given
        for path in WORKFLOWS
        for job, rules in load(path)["jobs"].items()
        if (given := {name for name, right in rules["permissions"].items() if right == "write"})
    }
    assert rights == {
        ("release", "publish"): {"id-token"},
        ("release", "page"): {"attestations", "contents", "id-token"},
    }
    for job in ("publish", "page"):
        steps = load(".github/workflows/release.yml")["jobs"][job]["steps"]
        assert not any("checkout" in step.get("uses", "") for step in steps)


def test_a_release_waits_for_tests_and_wheels():
    jobs = load(".github/workflows/release.yml")["jobs"]
    assert jobs["publish"]["needs"] == ["tests", "wheel"]
    assert {jobs["tests"]["needs"], jobs["wheel"]["needs"]} == {"check"}


def test_issue_forms():
    for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml"):
        form = load(path)
        if path.name == "config.yml":
            assert form["contact_links"][0]["url"] == f"{HOME}/security/advisories/new"
            continue
        assert {"name", "description", "body"} <= set(form)
        ids = [field["id"] for field in form["body"]]
        assert len(set(ids)) == len(ids)
