"""Models by name: a made-up Hugging Face cache folder of links to the golden models."""
import json
import os
import shutil
import struct
import subprocess
import sys

import pytest

from conftest import CORUN, ROOT, completion

GOLDEN = ROOT / "tests" / "data" / "golden"
MAIN, OTHER = "0123456789abcdef0123456789abcdef01234567", "f" * 40
VARIABLES = ("HF_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME", "HOME")


class Cache:
    """A cache folder: models--ORG--NAME with blobs/, refs/, snapshots/COMMIT/ of links."""

    def __init__(self, folder):
        self.folder = folder
        self.n = 0

    def add(self, name, files, commit=MAIN, ref="main"):
        """files: name in the snapshot to a path or bytes. Gives the snapshot."""
        repo = self.folder / ("models--" + name.replace("/", "--"))
        snapshot = repo / "snapshots" / commit
        (repo / "blobs").mkdir(parents=True, exist_ok=True)
        snapshot.mkdir(parents=True, exist_ok=True)
        if ref:
            at = repo / "refs" / ref
            at.parent.mkdir(parents=True, exist_ok=True)
            at.write_text(commit)
        for file, content in files.items():
            self.n += 1
            blob = repo / "blobs" / f"{self.n:040x}"
            if isinstance(content, bytes):
                blob.write_bytes(content)
            else:
                shutil.copy(content, blob)
            link = snapshot / file
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(os.path.relpath(blob, link.parent))
        return snapshot


def golden(name):
    return {p.name: p for p in (GOLDEN / name).iterdir() if not p.name.startswith("golden.")}


def sharded(name):
    """The files of a golden model, its weights in two shards with an index."""
    files = golden(name)
    raw = files.pop("model.safetensors").read_bytes()
    n = struct.unpack("<Q", raw[:8])[0]
    head = json.loads(raw[8:8 + n])
    head.pop("__metadata__", None)
    names, weight_map = sorted(head), {}
    for i, part in enumerate((names[::2], names[1::2])):
        shard, data, table = f"model-0000{i + 1}-of-00002.safetensors", b"", {}
        for t in part:
            a, b = head[t]["data_offsets"]
            table[t] = {**head[t], "data_offsets": [len(data), len(data) + b - a]}
            data += raw[8 + n + a:8 + n + b]
            weight_map[t] = shard
        text = json.dumps(table).encode()
        files[shard] = struct.pack("<Q", len(text)) + text + data
    files["model.safetensors.index.json"] = json.dumps({"weight_map": weight_map}).encode()
    return files


@pytest.fixture
def cache(tmp_path):
    return Cache(tmp_path / "hub")


@pytest.fixture
def info(corun, cache):
    """`corun info NAME` with the made-up cache: its output, or its error text."""
    def run(name, code=0, command=("info",), **variables):
        env = {k: v for k, v in os.environ.items() if k not in VARIABLES[:3]}
        env.update({"HF_HUB_CACHE": str(cache.folder)} if not variables else variables)
        r = corun(*command, name, env=env)
        assert r.returncode == code, r.stderr.decode() + r.stdout.decode()
        return (r.stderr if code else r.stdout).decode()
    return run


def refused(info, name, *texts, **more):
    text = info(name, code=2, **more)
    for t in texts:
        assert t in text, text


def same_model(info, name, path):
    """All but the line that shows what was asked for."""
    a, b = info(name), info(path)
    assert a.replace(str(name), "") == b.replace(str(path), "")
    assert "\nweights " in a


def test_by_name(info, cache):
    cache.add("some-org/Tiny_2.5", golden("qwen2_tied"))
    same_model(info, "some-org/Tiny_2.5", GOLDEN / "qwen2_tied")


def test_a_batch_by_name_is_the_batch_by_path(corun, cache):
    """Identity and rows hold nothing of the way to the files."""
    cache.add("org/tiny", sharded("llama_plain"))
    lines = [completion("a", [5, 6, 7], max_tokens=8), completion("b", [9], max_tokens=8, n=2)]
    env = {**os.environ, "HF_HUB_CACHE": str(cache.folder)}
    by_path = corun.batch(lines, model=GOLDEN / "llama_plain")
    corun.write("in.jsonl", lines)
    r = corun("batch", "-m", "org/tiny", "-i", "in.jsonl", "-o", "named.jsonl", "-q", env=env)
    assert r.returncode == 0, r.stderr.decode()
    assert (corun.folder / "named.jsonl").read_bytes() == b"".join(by_path)


def test_revisions(info, cache):
    cache.add("org/tiny", golden("qwen2_tied"))
    cache.add("org/tiny", golden("llama_plain"), commit=OTHER, ref="refs/pr/1")
    same_model(info, "org/tiny@main", GOLDEN / "qwen2_tied")
    same_model(info, f"org/tiny@{MAIN}", GOLDEN / "qwen2_tied")
    same_model(info, "org/tiny@refs/pr/1", GOLDEN / "llama_plain")
    same_model(info, f"org/tiny@{OTHER}", GOLDEN / "llama_plain")
    refused(info, "org/tiny@v2", "no revision v2", "refs/v2", MAIN, OTHER)
    refused(info, "org/tiny@" + "a" * 40, "no revision", MAIN)
    (cache.folder / "models--org--tiny" / "refs" / "main").write_text("../../elsewhere")
    refused(info, "org/tiny", "refs/main", "holds no commit")
    (cache.folder / "models--org--tiny" / "refs" / "main").unlink()
    refused(info, "org/tiny", "no revision main", MAIN)


def test_the_folder_that_is_looked_in(info, cache, tmp_path):
    cache.add("org/tiny", golden("qwen2_tied"))
    home = tmp_path / "home" / ".cache" / "huggingface"
    home.mkdir(parents=True)
    shutil.move(cache.folder, home / "hub")
    for name, value in (("HF_HUB_CACHE", home / "hub"), ("HF_HOME", home),
                        ("XDG_CACHE_HOME", home.parent), ("HOME", tmp_path / "home")):
        assert "qwen2" in info("org/tiny", **{name: str(value)})
    assert "qwen2" in info("org/tiny", HF_HOME="~/.cache/huggingface", HOME=str(tmp_path / "home"))
    assert "qwen2" in info("org/tiny", HF_HUB_CACHE="", HOME=str(tmp_path / "home"))
    # the first that is set is the folder: the others are not tried
    refused(info, "org/tiny", "/nowhere/models--org--tiny", "downloads nothing",
            HF_HUB_CACHE="/nowhere", HF_HOME=str(home))


def test_what_exists_on_disk_wins(info, cache, corun):
    cache.add("org/tiny", golden("qwen2_tied"))
    shutil.copytree(GOLDEN / "llama_plain", corun.folder / "org" / "tiny")
    assert "llama" in info("org/tiny")
    shutil.rmtree(corun.folder / "org" / "tiny")
    (corun.folder / "org" / "tiny").mkdir()
    refused(info, "org/tiny", "neither model.safetensors")
    shutil.rmtree(corun.folder / "org")
    (corun.folder / "org").write_text("a file")
    assert "qwen2" in info("org/tiny")


@pytest.mark.parametrize("name", [
    "../hub/models--org--tiny", "org/..", "../tiny", "org/../tiny", "/org/tiny", "org/tiny/",
    "org/tiny/x", "org//tiny", "org", "org/", "/tiny", "org/.tiny", "org/-tiny", "org/tiny.",
    "org/ti--ny", "org/ti..ny", "org/ti ny", "org/tiny@", "org/tiny@../main", "org/tiny@a/../main",
    "org/tiny@/main", "org/tiny@ma in", "org/tiny:", "org/tiny:x", "org/tiny:../x.gguf",
    "org/tiny:/x.gguf", "org/tiny:a/../x.gguf", "org/tiny:.gguf", "o" * 96 + "/t",
])
def test_what_is_no_name(info, cache, name):
    cache.add("org/tiny", golden("qwen2_tied"))
    refused(info, name, "nor is this a name like ORG/NAME")


def test_what_is_missing_is_named(info, cache):
    refused(info, "org/none", str(cache.folder / "models--org--none"), "downloads nothing")
    for i, file in enumerate(("config.json", "tokenizer.json", "model.safetensors")):
        name = f"org/m{i}"
        snapshot = cache.add(name, golden("qwen2_tied"))
        blob = (snapshot / file).resolve()
        blob.unlink()
        refused(info, name, f"{name}: {file} is not in the cache", "a link that leads nowhere")
        (snapshot / file).unlink()
        refused(info, name, f"{name}: {file} is not in the cache", "No such file")
    snapshot = cache.add("org/parts", sharded("qwen2_tied"))
    same_model(info, "org/parts", GOLDEN / "qwen2_tied")
    (snapshot / "model-00002-of-00002.safetensors").unlink()
    refused(info, "org/parts", "model-00002-of-00002.safetensors is not in the cache")
    empty = cache.add("org/empty", {})
    refused(info, "org/empty", f"{empty}/config.json")


def test_one_gguf(info, cache):
    tiny = ROOT / "tests" / "data" / "files"
    said = info(tiny / "tiny.gguf", code=2)  # well read, but with a tokenizer that we do not run
    snapshot = cache.add("org/q", {"tiny.gguf": tiny / "tiny.gguf", "README.md": b"text",
                                   "config.json": b"{}"})
    assert info("org/q", code=2) == said.replace(str(tiny), str(snapshot))
    cache.add("org/q", {"sub/deep.gguf": tiny / "tiny.gguf"})
    assert info("org/q", code=2) == said.replace(str(tiny), str(snapshot))
    assert info("org/q:sub/deep.gguf", code=2) == said.replace(
        str(tiny / "tiny.gguf"), str(snapshot / "sub" / "deep.gguf"))
    refused(info, "org/q:other.gguf", "other.gguf is not in the cache")
    cache.add("org/q", {"two.gguf": tiny / "tiny.gguf"})
    refused(info, "org/q", "2 GGUF files, tiny.gguf, two.gguf", "org/q:FILE.gguf")
    assert info("org/q:tiny.gguf", code=2) == said.replace(str(tiny), str(snapshot))


def test_a_split_set_is_one_gguf(info, cache):
    tiny = ROOT / "tests" / "data" / "files"
    parts = [f"tiny-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
    said = info(tiny / parts[0], code=2)
    snapshot = cache.add("org/s", {p: tiny / p for p in parts})
    assert info("org/s", code=2) == said.replace(str(tiny), str(snapshot))
    for part in reversed(parts):
        (snapshot / part).unlink()
        if part != parts[0]:
            refused(info, "org/s", f"{part} is not in the cache")


def test_made_up_weights_need_the_config_alone(corun, cache):
    cache.add("org/shape", {"config.json": GOLDEN / "qwen2_tied" / "config.json"})
    env = {**os.environ, "HF_HUB_CACHE": str(cache.folder)}
    for options, code in (((), 2), (("--dummy-weights",), 0)):
        corun.write("in.jsonl", [completion("a", [5, 6, 7], max_tokens=8)])
        r = corun("batch", "-m", "org/shape", "-i", "in.jsonl", "-o", "out.jsonl", "-q", *options,
                  env=env)
        assert r.returncode == code, r.stderr.decode()
        if code:
            assert b"tokenizer.json is not in the cache" in r.stderr


def test_from_python(corun, cache):
    library = CORUN.parent / "libcorun.so"
    if not library.exists():
        pytest.skip(f"{library} is not built")
    pytest.importorskip("numpy")
    cache.add("org/tiny", golden("qwen2_tied"))
    code = ("import sys, corun\n"
            "for path in sys.argv[2:]:\n"
            "    with corun.Model(path, library=sys.argv[1]) as m, corun.Engine(m) as e:\n"
            "        print(e.fingerprint)\n")
    env = {**os.environ, "HF_HUB_CACHE": str(cache.folder), "PYTHONPATH": str(ROOT / "python")}
    r = subprocess.run([sys.executable, "-c", code, library, "org/tiny", GOLDEN / "qwen2_tied"],
                       env=env, cwd=corun.folder, capture_output=True, text=True)
    assert r.returncode == 0, r.stderr
    named, by_path = r.stdout.split()
    assert named == by_path
    r = subprocess.run([sys.executable, "-c", code, library, "org/none"], env=env,
                       cwd=corun.folder, capture_output=True, text=True)
    assert r.returncode == 1 and "models--org--none" in r.stderr and "CorunError" in r.stderr
