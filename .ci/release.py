"""Build in `dist/` what a release consists of; nothing is uploaded.

These are the wheel, the sdist, the site as a zip, the notes of the version from the changelog, and their checksums.
The same commit gives the same bytes: each time stamp is that of the commit.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"


def main() -> None:
    """Build the release of the version in pyproject.toml, or exit with the reason."""
    if subprocess.check_output(["git", "status", "--porcelain"], cwd=ROOT):
        sys.exit("release: commit first; the time stamps and the contents are those of the commit")
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    notes = release_notes((ROOT / "CHANGELOG.md").read_text("utf-8"), version)
    commit_time = subprocess.check_output(
        ["git", "log", "-1", "--format=%ct"], cwd=ROOT, text=True
    ).strip()
    shutil.rmtree(DIST, ignore_errors=True)
    build = [sys.executable, "-m", "hatchling", "build", "-d", str(DIST)]
    subprocess.run(build, cwd=ROOT, check=True, env=os.environ | {"SOURCE_DATE_EPOCH": commit_time})
    zip_site(ROOT / "site", DIST / f"clearhead-{version}-site.zip", int(commit_time))
    (DIST / "NOTES.md").write_text(notes, "utf-8")
    files = sorted(DIST.iterdir())
    sums = "".join(
        f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files
    )
    (DIST / "SHA256SUMS").write_text(sums, "utf-8")
    print(sums, end="")


def release_notes(changelog: str, version: str) -> str:
    """Return the section of a version; exit if it has none, or no date."""
    section = re.search(
        rf"^## \[{re.escape(version)}\] - ([^\n]*)\n(.*?)(?=^## |\Z)", changelog, re.M | re.S
    )
    if section is None or not re.fullmatch(r"\d{4}-\d\d-\d\d", section[1]):
        sys.exit(f"release: CHANGELOG.md needs a section '## [{version}] - YYYY-MM-DD'")
    return f"# clearhead {version}, {section[1]}\n{section[2]}"


def zip_site(site: Path, target: Path, at: int) -> None:
    """Write the files of the site in the order of their names, each with the time `at` in seconds."""
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(path for path in site.rglob("*") if path.is_file()):
            entry = zipfile.ZipInfo(str(file.relative_to(site)), time.gmtime(at)[:6])
            entry.external_attr, entry.compress_type = 0o644 << 16, zipfile.ZIP_DEFLATED
            archive.writestr(entry, file.read_bytes())


if __name__ == "__main__":
    main()
