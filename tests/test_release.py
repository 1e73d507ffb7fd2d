"""The checks of dev/release.py refuse other versions, uncommitted files, missing files and paths of this machine."""

import os
import tarfile
from pathlib import Path

import pytest
import yaml

from scripts import load_script

release = load_script("dev/release.py")


def test_workflows_are_valid_yaml():
    workflows = sorted(Path(__file__).parents[1].glob(".github/workflows/*.yml"))
    if not workflows:
        pytest.skip("a source distribution has no workflows")
    assert all(yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"] for path in workflows)


def test_release_needs_one_version_and_a_clean_tree(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("GIT_")]:
        monkeypatch.delenv(name)  # in a hook of git, the repository of the hook
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)  # that of the user may sign commits
    (tmp_path / "src/lambdanets").mkdir(parents=True)
    (tmp_path / "src/lambdanets/__init__.py").write_text('__version__ = "1.2.0"\n')
    (tmp_path / "CITATION.cff").write_text("version: 1.2.0\n")
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 1.2.0 (unreleased)\n\n## 1.1.0\n")
    with pytest.raises(release.ReleaseError, match=r"CHANGELOG\.md must be 1\.2\.0, .* got 1\.2\.0 \(unreleased\)"):
        release.check_version(tmp_path)
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 1.2.0\n")
    commit = "git init && git add . && git -c user.name=a -c user.email=a@b.c commit --message all && git tag v1.2.0"
    release.run(["sh", "-c", commit], cwd=tmp_path)
    assert release.check_version(tmp_path) == "1.2.0"
    (tmp_path / "new.py").touch()
    with pytest.raises(release.ReleaseError, match=r"all files must be committed, got 1 .* new\.py"):
        release.check_version(tmp_path)


def test_release_refuses_missing_files_and_paths_of_this_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", "/home/me")
    (tmp_path / "a.py").write_text("DATA = '/home/me/data'\n")
    with tarfile.open(tmp_path / "a-1.tar.gz", "w:gz") as sdist:
        for name in ("a.py", "PKG-INFO"):
            sdist.add(tmp_path / "a.py", f"a-1/{name}")
    release.check_sdist(tmp_path / "a-1.tar.gz", ["a.py", ".ci/run"])
    with pytest.raises(release.ReleaseError, match=r"missing or added: \['tests/b\.py'\]"):
        release.check_sdist(tmp_path / "a-1.tar.gz", ["a.py", "tests/b.py"])
    with pytest.raises(release.ReleaseError, match=r"a\.py in a-1\.tar\.gz must have no path of this machine"):
        release.check_paths(tmp_path / "a-1.tar.gz")
