"""Shared by the end-to-end tests: the built program and small helpers around it."""
import json
import os
import pathlib
import signal
import subprocess

import pytest

# A background shell or nohup starts us with these ignored, and what is ignored our children inherit.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
for _number in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
    if signal.getsignal(_number) == signal.SIG_IGN:
        signal.signal(_number, signal.SIG_DFL)

ROOT = pathlib.Path(__file__).resolve().parent.parent
CORUN = pathlib.Path(os.environ.get("CORUN_BIN", ROOT / "build" / "corun")).resolve()


# Kept audits and the server's files go to the build folder, not to the user's own.
os.environ["XDG_CACHE_HOME"] = str(CORUN.parent / "test-cache")
os.environ["XDG_STATE_HOME"] = str(CORUN.parent / "test-state")


class Corun:
    """Runs build/corun (or CORUN_BIN) with the fake model, in a folder of its own."""

    def __init__(self, folder):
        self.folder = folder

    def __call__(self, *args, stdin=b"", timeout=120, **more):
        return subprocess.run([str(CORUN), *map(str, args)], cwd=self.folder, input=stdin,
                              capture_output=True, timeout=timeout, **more)

    def start(self, *args, **more):
        return subprocess.Popen([str(CORUN), *map(str, args)], cwd=self.folder, **more)

    def write(self, name, lines):
        """lines: dicts (written as JSON) or bytes (written as they are)."""
        raw = [x if isinstance(x, bytes) else json.dumps(x).encode() for x in lines]
        (self.folder / name).write_bytes(b"".join(x + b"\n" for x in raw))

    def batch(self, lines, *options, model="fake:phase", code=0):
        """Runs a batch; gives its rows as bytes, in order."""
        if lines is not None:
            self.write("in.jsonl", lines)
        r = self("batch", "-m", model, "-i", "in.jsonl", "-o", "out.jsonl", "-q", *options)
        assert r.returncode == code, r.stderr.decode()
        return (self.folder / "out.jsonl").read_bytes().splitlines(keepends=True)

    def bodies(self, lines, *options, **more):
        return [json.loads(row)["response"]["body"] for row in self.batch(lines, *options, **more)]


@pytest.fixture
def corun(tmp_path):
    if not CORUN.exists():
        if os.environ.get("CI"):
            pytest.fail(f"{CORUN} is not built")
        pytest.skip(f"{CORUN} is not built")
    return Corun(tmp_path)


def completion(custom_id, prompt, **body):
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/completions",
            "body": {"model": "m", "prompt": prompt, **body}}


def chat(custom_id, text, **body):
    return {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions",
            "body": {"model": "m", "messages": [{"role": "user", "content": text}], **body}}
