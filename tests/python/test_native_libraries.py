"""How scripts/native_libraries.py gets archives, from made-up apt-get, apt-cache and lists."""

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts/native_libraries.py"

# Offers the JSON file beside it: {"zlib": {"1:1.2-1": {"zlib_1.2.orig.tar.gz": "text"}}}.
APT = """#!{python}
import hashlib, json, sys
from pathlib import Path

here = Path(__file__).parent
offers = json.loads((here / "offers.json").read_text())
words = sys.argv[1:]
with (here / "calls").open("a") as calls:
    calls.write(" ".join([Path(__file__).name, *words]) + "\\n")
if (here / "failure").exists():
    sys.exit((here / "failure").read_text())
if "madison" in words:
    for version, files in offers[words[-1]].items():
        kind = "amd64 Packages" if str(files).count(".deb'") else "Sources"
        print(f" {{words[-1]}} |   {{version}} | http://x/debian bookworm/main {{kind}}")
for word in words:
    if "=" not in word or ":" in word.partition("=")[0]:
        continue
    name, version = word.split("=")
    if version not in offers[name]:
        if "download" in words:
            sys.exit(f"E: Version '{{version}}' for '{{name}}' was not found")
        print(f"E: Can not find version '{{version}}' of package '{{name}}'", file=sys.stderr)
        sys.exit(f"E: Unable to find a source package for {{name}}")
    rows = []
    for file, text in offers[name][version].items():
        Path(file).write_text(text)
        rows.append(f" {{hashlib.sha256(text.encode()).hexdigest()}} {{len(text)}} {{file}}")
    if "source" in words:
        dsc = Path(f"{{name}}_{{version.rpartition(':')[2]}}.dsc")
        dsc.write_text("\\n".join(["Format: 3.0 (quilt)", "Checksums-Sha256:", *rows, "Files:"]))
"""

LIST = """
[[library]]
name = "zlib"
version = "1.2"
kind = "debian-source"
package = "zlib=1:1.2-1"
license_file = "LICENSE"
headers = []
[library.files]
"zlib_1.2.orig.tar.gz" = "{upstream}"
"zlib_1.2-1.debian.tar.xz" = "{first}"

[[library]]
name = "unicode"
version = "15"
kind = "debian-package"
package = "unicode-data=15-1"
license_file = "copyright"
headers = []
[library.files]
"unicode-data_15-1_all.deb" = "{data}"
"""
OFFERS = {
    "zlib": {
        "1:1.2-1": {"zlib_1.2.orig.tar.gz": "upstream", "zlib_1.2-1.debian.tar.xz": "first"},
    },
    "unicode-data": {"15-1": {"unicode-data_15-1_all.deb": "data"}},
}
FIXED = {
    "zlib_1.2.orig.tar.gz": "upstream",
    "zlib_1.2.orig.tar.gz.asc": "signature",
    "zlib_1.2-1+deb12u10.debian.tar.xz": "fixed",
}


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


class Machine:
    """A checkout with the script and a list, and a Debian that offers `offers`."""

    def __init__(self, folder: Path):
        self.root = folder / "checkout"
        self.bin = folder / "bin"
        self.archives = folder / "archives"
        for part in ("scripts", "requirements"):
            (self.root / part).mkdir(parents=True)
        (self.root / "scripts/native_libraries.py").write_bytes(SCRIPT.read_bytes())
        self.list = self.root / "requirements/native.toml"
        digests = {name: sha256(name) for name in ("upstream", "first", "data")}
        self.list.write_text(LIST.format(**digests))
        self.bin.mkdir()
        for name in ("apt-get", "apt-cache"):
            (self.bin / name).write_text(APT.format(python=sys.executable))
            (self.bin / name).chmod(0o755)
        self.offer(OFFERS)

    def offer(self, offers) -> None:
        (self.bin / "offers.json").write_text(json.dumps(offers))

    def calls(self, word: str) -> list[str]:
        path = self.bin / "calls"
        return [x for x in path.read_text().splitlines() if word in x] if path.exists() else []

    def run(self, *arguments: str):
        place = {**os.environ, "PATH": f"{self.bin}:{os.environ['PATH']}"}
        place["ONNXGRAD_DEPS"] = str(self.archives.parent)
        # The script puts its interpreter's folder first on PATH; no apt-get is in there.
        command = [sys.executable, str(self.root / "scripts/native_libraries.py"), *arguments]
        return subprocess.run(command, env=place, capture_output=True, text=True, check=False)

    def fetch(self):
        return self.run("--fetch", str(self.archives))


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def test_the_listed_revisions_are_taken_while_they_are_there(machine):
    newer = {**OFFERS["zlib"], "1:1.2-1+deb12u10": FIXED}
    machine.offer({**OFFERS, "zlib": newer})
    done = machine.fetch()
    assert (done.returncode, done.stderr) == (0, "native: downloading zlib, unicode\n")
    assert (machine.archives / "zlib_1.2-1.debian.tar.xz").read_text() == "first"
    assert not (machine.archives / "fetch.log").exists()
    assert machine.calls("madison") == []
    assert machine.fetch().stderr == ""


def test_archives_of_third_party_need_no_apt(machine):
    (machine.root / "third_party").mkdir()
    for files in (*OFFERS["zlib"].values(), *OFFERS["unicode-data"].values()):
        for name, text in files.items():
            (machine.root / "third_party" / name).write_text(text)
    assert machine.fetch().stderr == ""
    assert machine.calls("") == []


def test_the_log_of_a_failure_is_there_to_be_read(machine):
    (machine.bin / "failure").write_text("E: Could not resolve 'x'")
    done = machine.fetch()
    assert done.returncode == 1
    log = machine.archives / "fetch.log"
    assert f"the whole log is in {log}" in done.stderr
    assert "Could not resolve" in log.read_text()
    (machine.bin / "failure").unlink()
    assert machine.fetch().returncode == 0
    assert not log.exists()


GONE = {
    # Other upstream versions, and revisions that are older, are no replacement.
    "1:1.2-1+deb12u9": FIXED,
    "1:1.2-1+deb12u10": FIXED,
    "1:1.2-0": FIXED,
    "1:1.3-1": FIXED,
}


def test_a_source_distribution_needs_the_listed_revisions(machine):
    machine.offer({**OFFERS, "zlib": GONE})
    done = machine.fetch()
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        "native: Debian no longer has zlib=1:1.2-1 (now 1:1.2-1+deb12u10):"
        " renew native.toml by scripts/native_libraries.py --renew"
    )


def test_the_list_is_renewed(machine):
    data = {"unicode-data_15-1+deb12u1_all.deb": "more data"}
    machine.offer({"zlib": GONE, "unicode-data": {"15-1+deb12u1": data}})
    before = machine.list.read_text()
    assert machine.run("--renew").returncode == 0
    changed = {
        "zlib=1:1.2-1": "zlib=1:1.2-1+deb12u10",
        "zlib_1.2-1.debian.tar.xz": "zlib_1.2-1+deb12u10.debian.tar.xz",
        sha256("first"): sha256("fixed"),
        "unicode-data=15-1": "unicode-data=15-1+deb12u1",
        "unicode-data_15-1_all.deb": "unicode-data_15-1+deb12u1_all.deb",
        sha256("data"): sha256("more data"),
    }
    for old, new in changed.items():
        before = before.replace(f'"{old}"', f'"{new}"')
    assert machine.list.read_text() == before
    done = machine.fetch()
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("offers", "words"),
    [
        ({"1:1.2-0": FIXED, "1:1.3-1": FIXED}, "Can not find version '1:1.2-1' of package 'zlib'"),
        (
            {"1:1.2-1+deb12u10": {**FIXED, "zlib_1.2.orig.tar.gz": "other"}},
            "zlib_1.2.orig.tar.gz is not the one that native.toml lists",
        ),
    ],
)
def test_what_is_no_replacement(machine, offers, words):
    machine.offer({**OFFERS, "zlib": offers})
    for arguments in (("--renew",), ()):
        done = machine.run(*arguments)
        assert done.returncode == 1
        assert words in done.stderr


def test_other_failures_are_not_worked_around(machine):
    (machine.bin / "failure").write_text("E: Unable to fetch some archives")
    assert machine.run().returncode == 1
    assert machine.calls("madison") == []


def test_a_build_takes_the_new_revision_and_says_so(machine):
    def archive(name: str) -> bytes:
        content = io.BytesIO()
        with tarfile.open(fileobj=content, mode="w") as file:
            text = f"licence of {name}".encode()
            member = tarfile.TarInfo("zlib/LICENSE" if name == "upstream" else "debian/rules")
            member.size = len(text)
            file.addfile(member, io.BytesIO(text))
        return content.getvalue()

    upstream, fixed = archive("upstream").decode(), archive("fixed").decode()
    machine.list.write_text(
        machine.list.read_text()
        .partition('\n[[library]]\nname = "unicode"')[0]
        .replace(sha256("upstream"), sha256(upstream))
    )
    files = {"zlib_1.2.orig.tar.gz": upstream, "zlib_1.2-1+deb12u10.debian.tar.xz": fixed}
    machine.offer({"zlib": {"1:1.2-1+deb12u10": files}})
    done = machine.run()
    assert done.returncode == 0, done.stderr
    assert done.stderr.splitlines() == [
        "native: downloading zlib",
        "native: Debian no longer has zlib=1:1.2-1 (now 1:1.2-1+deb12u10):"
        " renew native.toml by scripts/native_libraries.py --renew",
        "native: zlib 1.2",
    ]
    prefix = Path(done.stdout.strip())
    assert (prefix / "licenses/zlib.txt").read_text() == "licence of upstream"
    assert json.loads((prefix / "sources.json").read_text()) == {
        "zlib": {
            "package": "zlib=1:1.2-1+deb12u10",
            "files": {name: sha256(text) for name, text in files.items()},
        }
    }
    assert machine.run("--is-built").returncode == 0
