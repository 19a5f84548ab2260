"""corun.lm_eval: one score, to the bit, whatever the batch size, the order, the slots, the process.

Needs lm-eval (`make eval`), which is too large for the environment of `make test`. Run as a program
(`test_lm_eval.py JSON`) it evaluates once and prints what it got: the other process of the tests.
"""
import json
import pathlib
import random
import re
import shutil
import subprocess
import sys

import pytest

from conftest import CORUN, ROOT
from server import Server

pytest.importorskip("lm_eval", reason="lm-eval is not installed here (make eval)")
sys.path.insert(0, str(ROOT / "python"))
import lm_eval  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402

from corun import LLM, SamplingParams, _abi  # noqa: E402
from corun.lm_eval import CorunLM  # noqa: E402

LIB = CORUN.parent / "libcorun.so"
DEMO = ROOT / ".cache" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
DATA = ROOT / "tests" / "data" / "lm_eval"
TASKS = ["corun_choice", "corun_generate", "corun_rolling"]
MODELS = ["fake:phase", "demo"]


def model_path(name):
    path = DEMO if name == "demo" else name
    for needed in (LIB, path):
        if isinstance(needed, pathlib.Path) and not needed.exists():
            pytest.skip(f"{needed} is not there")
    return str(path)


def shape(value):
    """The value with floats as their bits."""
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, (list, tuple)):
        return [shape(v) for v in value]
    return value


def harness(model, args, folder=DATA, limit=None, tasks=TASKS, **more):
    """One run of the harness: of every document its answers, and the scores; floats as bits."""
    r = lm_eval.simple_evaluate(model=model, model_args=args, tasks=list(tasks), limit=limit,
                                task_manager=TaskManager(include_path=str(folder),
                                                         include_defaults=False),
                                bootstrap_iters=0, log_samples=True, **more)
    samples = {f"{task} {s['doc']['id']}": shape(s["resps"])
               for task in tasks for s in r["samples"][task]}
    scores = {task: {k: shape(v) for k, v in r["results"][task].items() if isinstance(v, float)}
              for task in tasks}
    return {"samples": dict(sorted(samples.items())), "scores": scores}


def corun(name, batch_size, limit=None, folder=DATA, gen_kwargs=None, tasks=TASKS, **args):
    given = {"model": model_path(name), "library": str(LIB), "max_length": 96, **args}
    return harness("corun", given, folder, limit, tasks, batch_size=batch_size,
                   gen_kwargs=gen_kwargs)


def shuffled(folder, seed):
    shutil.copytree(DATA, folder, ignore=shutil.ignore_patterns("__pycache__"))
    for path in folder.glob("*.jsonl"):
        lines = path.read_text().splitlines(keepends=True)
        random.Random(seed).shuffle(lines)
        path.write_text("".join(lines))
    return folder


def test_one_score(tmp_path, name="fake:phase"):
    """Batch sizes 1, 16, 64 and all, shuffled documents, other slots and policies, a small pool,
    and another process (recipe: one evaluation, one number)."""
    want = corun(name, 1)
    assert len(want["samples"]) == 24 + 16 + 7
    assert all(len(want["samples"][f"corun_choice c{i:02}"]) == 4 for i in range(24))
    for batch_size in (16, 64, "auto"):
        assert corun(name, batch_size) == want
    for seed in (1, 2):
        other = corun(name, 16, folder=shuffled(tmp_path / str(seed), seed))
        assert other["samples"] == want["samples"]
        assert other["scores"]["corun_choice"] == want["scores"]["corun_choice"]
        assert other["scores"]["corun_generate"] == want["scores"]["corun_generate"]
    for args in ({"slots": 3}, {"policy": "free", "kv_bytes": 1 << 20}, {"policy": "corun"}):
        assert corun(name, 64, **args)["samples"] == want["samples"], args
    assert other_process({"name": name, "batch_size": 16}) == want


def test_one_score_of_the_demo_model(tmp_path):
    want = corun("demo", 1, limit=6)
    for batch_size in (16, 64):
        assert corun("demo", batch_size, limit=6) == want
    assert corun("demo", 64, limit=6, slots=5)["samples"] == want["samples"]
    assert other_process({"name": "demo", "batch_size": 64, "limit": 6}) == want
    full = corun("demo", "auto", tasks=["corun_choice"], folder=shuffled(tmp_path / "s", 3))
    for key, value in want["samples"].items():
        assert full["samples"].get(key, value) == value


def test_a_schedule_without_the_promise_is_caught():
    """The comparison can fail: log-likelihoods of a kernel that looks at its neighbours."""
    one, sixteen = (corun("fake:run", b, policy="dynamic") for b in (1, 16))
    assert one["samples"] != sixteen["samples"]


def test_drawn_answers_do_not_depend_on_the_batch():
    kw = "do_sample=True,temperature=0.9,top_p=0.95"
    runs = [corun("fake:phase", b, gen_kwargs=kw, tasks=["corun_generate"]) for b in (1, 16, 64)]
    assert runs[0] == runs[1] == runs[2]
    assert runs[0] != corun("fake:phase", 16, tasks=["corun_generate"])


def other_process(args):
    r = subprocess.run([sys.executable, __file__, json.dumps(args)], capture_output=True, text=True)
    assert r.returncode == 0, r.stderr
    return json.loads(r.stdout.splitlines()[-1])


@pytest.mark.parametrize("name", MODELS)
def test_values_are_those_of_the_engine(name):
    """Log-likelihood, greedy flag, left truncation and rolling windows, from plain scores."""
    lm = CorunLM(model_path(name), library=str(LIB), max_length=32)
    engine, tok = lm.llm.engine, lm.tokenizer

    def plain(context, continuation):
        ids = (context + continuation)[-32:]
        s = engine.score([ids], top=2)[0]
        start = len(ids) - len(continuation)
        total, greedy = 0.0, True
        for i in range(start, len(ids)):
            total += float(s.logprobs[i])
            greedy &= int(s.top_ids[i][0]) == ids[i]
        return total, greedy

    class Request:
        def __init__(self, *args):
            self.args = args

    context = "The capital of France is"
    ids = tok.encode(context)
    best = lm.llm.generate([{"prompt_token_ids": ids}], SamplingParams(temperature=0, max_tokens=3),
                           use_tqdm=False)[0].outputs[0].token_ids
    pairs = [(ids, best), (ids, best[::-1] + best), (ids * 12, best), ([5], ids * 3)]
    pairs = [(c, x[:31]) for c, x in pairs]
    got = lm._loglikelihood_tokens([(None, c, x) for c, x in pairs], disable_tqdm=True)
    assert shape(got) == shape([plain(c, x) for c, x in pairs])
    assert got[0][1] is True and got[1][1] is False
    [(lp, greedy)] = lm.loglikelihood([Request(context, " Paris")], disable_tqdm=True)
    whole = tok.encode(context + " Paris")
    assert shape((lp, greedy)) == shape(plain(ids, whole[len(ids):]))
    [empty] = lm.loglikelihood([Request("", "Paris")], disable_tqdm=True)
    assert shape(empty) == shape(plain([lm.prefix_token_id], tok.encode("Paris", False)))
    text = "Snow fell on the roofs, and nobody went out before noon. " * 4
    [rolled] = lm.loglikelihood_rolling([Request(text)], disable_tqdm=True)
    tokens, total, at = tok.encode(text), 0.0, 0
    while at < len(tokens):
        end = min(at + 31, len(tokens))
        context = [lm.prefix_token_id] if at == 0 else tokens[max(0, end - 32):at]
        total += plain(context, tokens[at:end])[0]
        at = end
    assert len(tokens) > 32 and rolled.hex() == total.hex()
    assert lm.loglikelihood_rolling([Request("")], disable_tqdm=True) == [0.0]
    with pytest.raises(ValueError, match="no room"):
        lm._loglikelihood_tokens([(None, ids, [5] * 32)], disable_tqdm=True)
    with pytest.raises(ValueError, match="no room"):
        lm.generate_until([Request("x", {"max_gen_toks": 32})], disable_tqdm=True)
    with pytest.raises(TypeError, match="no_such"):
        lm.generate_until([Request("x", {"max_gen_toks": 3, "no_such": 1})], disable_tqdm=True)
    long = lm.generate_until([Request(text, {"max_gen_toks": 8, "until": ["e"]})],
                             disable_tqdm=True)[0]
    want = lm.llm.generate([{"prompt_token_ids": tokens[-24:]}], SamplingParams(
        temperature=0, max_tokens=8, stop=["e"], skip_special_tokens=False), use_tqdm=False)
    assert long == want[0].outputs[0].text and "e" not in long
    lm.llm.close()


@pytest.mark.parametrize("name", MODELS)
def test_recorded_tokens_score_as_they_were_drawn(name):
    """Prompt and answer scored as one text give the log-probabilities of drawing it."""
    with LLM(model_path(name), policy="free", library=str(LIB), max_model_len=256) as llm:
        params = [SamplingParams(max_tokens=24, logprobs=0, temperature=t, ignore_eos=True)
                  for t in (0, 0.7, 1.0, 1.5)]
        drawn = llm.generate(["Once upon a time"] * 4, params, use_tqdm=False)
        scored = llm.score([o.prompt_token_ids + o.outputs[0].token_ids for o in drawn])
    for o, s in zip(drawn, scored):
        n = len(o.outputs[0].token_ids)
        assert o.outputs[0].sample.logprobs.tobytes() == s.arrays.logprobs[-n:].tobytes()


def test_chat_templates_and_the_command(tmp_path):
    """python -m corun.lm_eval is the harness's command; --apply_chat_template uses the model's."""
    r = subprocess.run(
        [sys.executable, "-m", "corun.lm_eval", "--model", "corun", "--model_args",
         f"model=fake:phase,library={LIB},max_length=128", "--tasks", "corun_generate",
         "--include_path", str(DATA), "--apply_chat_template", "--output_path", str(tmp_path),
         "--log_samples"], cwd=tmp_path, capture_output=True, text=True,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT / "python"), "HOME": str(tmp_path)})
    assert r.returncode == 0 and "exact_match" in r.stdout, r.stdout + r.stderr
    [path] = tmp_path.rglob("samples_*.jsonl")
    sample = json.loads(path.read_text().splitlines()[0])
    assert sample["arguments"]["gen_args_0"]["arg_0"].endswith("<|assistant|>")


def test_the_example_of_the_docs(monkeypatch, capsys):
    model_path("demo")
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(_abi, "SONAME", str(LIB))
    [code] = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs" / "evaluation.md").read_text(),
                        re.M | re.S)
    exec(compile(code, "docs/evaluation.md", "exec"), {})
    assert 0 <= float(capsys.readouterr().out.splitlines()[-1]) <= 1


def test_arguments():
    with pytest.raises(ValueError, match="model"):
        CorunLM()
    with pytest.raises(ValueError, match="batch_size"):
        CorunLM("fake:phase", batch_size=0, library=str(LIB))
    with pytest.raises(TypeError, match="no_such"):
        CorunLM("fake:phase", no_such=1, library=str(LIB))


# ---- through the server --------------------------------------------------------------------------

@pytest.mark.parametrize("name", MODELS)
def test_local_completions(tmp_path, name):
    """The harness's own client against the server: the same at every batch size and number of
    connections, and the values of corun.lm_eval to nine digits."""
    path, limit = model_path(name), 4 if name == "demo" else None
    try:
        running = Server(tmp_path, "-q", "--no-state", "--ctx", "512", model=path)
    except RuntimeError as e:
        if "no transport" in str(e) or "no server" in str(e):
            pytest.skip(f"{CORUN} was built without the server")
        raise

    def through(batch_size, connections):
        return harness("local-completions", {
            "model": served, "base_url": running.url + "/v1/completions",
            "tokenizer_backend": "remote", "tokenized_requests": True, "max_length": 97,
            "num_concurrent": connections}, limit=limit, batch_size=batch_size)

    with running:
        served = running.json("/v1/models")["data"][0]["id"]
        want = through(1, 1)
        for batch_size, connections in ((16, 1), (1, 8), (16, 4)):
            assert through(batch_size, connections) == want
    own = corun(name, "auto", limit=limit)
    for key, value in own["samples"].items():
        if key.startswith("corun_choice"):
            for a, b in zip(value, want["samples"][key]):
                assert abs(float.fromhex(a[0][0]) - float.fromhex(b[0][0])) < 1e-5
                assert a[0][1] == b[0][1]
    assert own["samples"]["corun_generate g00"] == want["samples"]["corun_generate g00"]


if __name__ == "__main__":
    print(json.dumps(corun(**json.loads(sys.argv[1]))))
