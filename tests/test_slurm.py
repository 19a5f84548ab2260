"""The scripts of examples/slurm, with an `srun` that only runs its command."""
import os
import signal
import subprocess
import time

import pytest

from conftest import CORUN, ROOT, completion

SCRIPTS = ROOT / "examples" / "slurm"


@pytest.fixture
def slurm(corun):
    """slurm(script, *arguments, task=): starts one task, as Slurm would."""
    programs = corun.folder / "bin"
    programs.mkdir()
    (programs / "srun").write_text('#!/bin/sh\nexec "$@"\n')
    (programs / "srun").chmod(0o755)
    (programs / "corun").symlink_to(CORUN)

    def start(script, *arguments, task=None, tasks=4, first=0):
        env = {k: v for k, v in os.environ.items() if not k.startswith("SLURM_")}
        env["PATH"] = f"{programs}:{env['PATH']}"
        env["SLURM_CPUS_PER_TASK"] = "1"
        if task is not None:
            env.update(SLURM_ARRAY_TASK_ID=str(first + task), SLURM_ARRAY_TASK_MIN=str(first),
                       SLURM_ARRAY_TASK_COUNT=str(tasks))
        return subprocess.Popen([str(SCRIPTS / script), *map(str, arguments)], cwd=corun.folder,
                                env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return start


def end(p, code=0):
    said = p.communicate(timeout=120)[0]
    assert p.returncode == code, said.decode()
    return said


@pytest.mark.parametrize("first", [0, 7])
def test_an_array_is_the_single_run(corun, slurm, first):
    lines = [completion(f"r{i % 33}", f"p{i}", max_tokens=i % 30) for i in range(41)]
    lines[9], lines[20] = b"{bad", b""
    want = b"".join(corun.batch(lines))
    arguments = ("fake:phase", "in.jsonl", "merged.jsonl", "-q")
    for p in [slurm("array.sbatch", *arguments, task=i, first=first) for i in range(4)]:
        end(p)
    end(slurm("merge.sbatch", 4, "in.jsonl", "merged.jsonl"))
    assert (corun.folder / "merged.jsonl").read_bytes() == want
    assert not list(corun.folder.glob("*.shard-*"))


def test_a_task_that_is_ended_goes_on(corun, slurm):
    lines = [completion(f"r{i}", f"p{i}", max_tokens=100, ignore_eos=True) for i in range(1200)]
    arguments = ("fake:phase", "in.jsonl", "merged.jsonl", "-q")
    corun.write("in.jsonl", lines)
    for i in (0, 2, 3):
        end(slurm("array.sbatch", *arguments, task=i))
    p = slurm("array.sbatch", *arguments, task=1)
    journal = corun.folder / "merged.jsonl.shard-1-of-4.corun-journal"
    while not (journal.exists() and journal.stat().st_size > 50000):
        assert p.poll() is None
        time.sleep(0.01)
    p.send_signal(signal.SIGTERM)
    assert b"the same command goes on" in end(p, 143)
    said = end(slurm("merge.sbatch", 4, "in.jsonl", "merged.jsonl"), 2)
    assert b"shard-1-of-4: No such file" in said
    assert b"is in place" in end(slurm("array.sbatch", *arguments, task=0))
    end(slurm("array.sbatch", *arguments, task=1))
    end(slurm("merge.sbatch", 4, "in.jsonl", "merged.jsonl"))
    want = corun.batch(None)
    assert (corun.folder / "merged.jsonl").read_bytes() == b"".join(want)
