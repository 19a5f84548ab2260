"""corun.LLM: vLLM's interface over the engine, its answers against those of `corun batch`."""
import ctypes
import json
import os
import pickle
import re
import signal
import sys
import threading

import pytest

from conftest import CORUN, ROOT, chat, completion

np = pytest.importorskip("numpy")
pytest.importorskip("tqdm")
sys.path.insert(0, str(ROOT / "python"))
import corun as cr  # noqa: E402
from corun import LLM, SamplingParams, _abi  # noqa: E402
from test_python import GOLDEN, perturbed, read_tensors, to_f32  # noqa: E402

LIB = CORUN.parent / "libcorun.so"
DEMO = ROOT / ".cache" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture
def llm(library):
    with LLM("fake:phase", slots=4) as x:
        yield x


@pytest.fixture
def library(monkeypatch):
    """Without the argument `library` the built one is found, as if it were installed."""
    if not LIB.exists():
        if os.environ.get("CI"):
            pytest.fail(f"{LIB} is not built")
        pytest.skip(f"{LIB} is not built")
    monkeypatch.setattr(_abi, "SONAME", str(LIB))


def generate(llm, prompts, params=None, **more):
    return llm.generate(prompts, params, use_tqdm=False, **more)


def bits(outputs):
    """Every value of the outputs as bytes."""
    out = []
    for o in outputs:
        out.append(o.result.prompt_tokens.tobytes())
        if o.result.prompt_logprobs is not None:
            out.append(o.result.prompt_logprobs.tobytes())
        for c in o.outputs:
            s = c.sample
            out += [s.tokens.tobytes(), s.text.encode(), str(s.seed).encode(), s.finish.encode()]
            if s.logprobs is not None:
                out.append(s.logprobs.tobytes())
    return b"|".join(out)


# ---- parameters ----------------------------------------------------------------------------------

@pytest.mark.parametrize("bad", [
    {"n": 0}, {"n": 129}, {"n": 2.5}, {"temperature": -1}, {"temperature": "hot"}, {"top_p": 0},
    {"top_p": 1.1}, {"top_k": -2}, {"min_p": -0.1}, {"presence_penalty": 3},
    {"frequency_penalty": -3}, {"repetition_penalty": 0}, {"max_tokens": -1}, {"min_tokens": 17},
    {"logprobs": 21}, {"prompt_logprobs": -1}, {"best_of": 4}, {"stop": [""]}, {"stop": 5},
    {"stop": ["x"], "detokenize": False}, {"seed": -2}, {"n": 2, "temperature": 0},
    {"allowed_token_ids": []}, {"stop_token_ids": ["a"]}, {"truncate_prompt_tokens": 0},
    {"logits_processors": [len]}, {"structured_outputs": {}}, {"guided_decoding": {}},
    {"bad_words": ["a", ""]}, {"temperature": float("nan")}])
def test_bad_parameters(bad):
    with pytest.raises(ValueError, match=next(iter(bad)) if "detokenize" not in bad else "stop"):
        SamplingParams(**bad)


def test_parameters():
    p = SamplingParams(stop="x", top_k=-1, logit_bias={"5": 1}, seed=-1, best_of=1)
    assert p.stop == ["x"] and p.seed is None and p.logit_bias == {5: 1.0}
    q = p.clone()
    q.stop.append("y")
    assert p.stop == ["x"] and p == SamplingParams(stop="x", top_k=-1, logit_bias={5: 1}, best_of=1)
    assert SamplingParams(temperature=0, top_p=0.5, top_k=3).top_p == 1.0
    assert SamplingParams.from_optional(n=None, max_tokens=None).max_tokens is None
    with pytest.raises(TypeError):
        SamplingParams(no_such=1)


@pytest.mark.parametrize("argument", [
    {"tensor_parallel_size": 2}, {"quantization": "awq"}, {"dtype": "float16"},
    {"tokenizer": "other"}, {"enable_lora": True}, {"speculative_config": {"x": 1}},
    {"max_num_seqs": 4, "slots": 8}, {"max_model_len": 1 << 30}, {"seed": -1},
    {"revision": "main"}])
def test_what_cannot_be_honoured_is_refused(library, argument):
    with pytest.raises(ValueError, match=next(iter(argument))):
        LLM("fake:phase", **argument)
    with pytest.raises(TypeError, match="no_such"):
        LLM("fake:phase", no_such=1)


def test_what_means_nothing_here_is_listed(library):
    """Each argument without effect stands in the docs, and none changes the identity."""
    from corun._frontend import NO_EFFECT, ONLY
    text = (ROOT / "docs" / "python.md").read_text()
    assert not [a for a in NO_EFFECT if f"`{a}`" not in text]
    with LLM("fake:phase") as plain, \
            LLM(model="fake:phase", **{a: 1 for a in NO_EFFECT},
                **{k: v[0] for k, v in ONLY.items()}, tokenizer="fake:phase") as other:
        assert plain.fingerprint == other.fingerprint


# ---- answers -------------------------------------------------------------------------------------

def test_answers_are_those_of_the_program(llm, corun):
    """The same requests through `corun batch`: every value of the outputs."""
    lines, prompts, params = [], [], []
    for i in range(14):
        text = "abc " * (i + 1)
        more = [{"temperature": 0.0}, {"n": 3}, {"top_k": 9, "top_p": 0.8}, {"stop": ["q", "e"]},
                {"logit_bias": {70: 4.0}}, {"min_tokens": 5}, {"bad_words": ["a", "the"]}][i % 7]
        body = {"max_tokens": 20, "seed": i, "logprobs": 3, "prompt_logprobs": 2,
                "return_token_ids": True, **more}
        lines.append(completion(f"r{i}", text, **body))
        prompts.append([text, {"prompt": text}][i % 2])
        params.append(SamplingParams(max_tokens=20, seed=i, logprobs=3, prompt_logprobs=2, **more))
    want = corun.bodies(lines, "--slots", "4")
    got = generate(llm, prompts, params)
    assert want[0]["system_fingerprint"] == llm.fingerprint
    for w, g in zip(want, got):
        assert g.finished and len(g.outputs) == len(w["choices"])
        plp = w["choices"][0]["prompt_logprobs"]
        assert g.prompt_logprobs[0] is None and len(plp) == len(g.prompt_logprobs)
        for a, b in zip(plp[1:], g.prompt_logprobs[1:]):
            assert {int(k): np.float32(v["logprob"]) for k, v in a.items()} == \
                {k: np.float32(v.logprob) for k, v in b.items()}
            assert {int(k): (v["rank"], v["decoded_token"]) for k, v in a.items()} == \
                {k: (v.rank, v.decoded_token) for k, v in b.items()}
        for c, o in zip(w["choices"], g.outputs):
            assert (c["token_ids"], c["text"], c["finish_reason"], c["stop_reason"], c["seed"]) == \
                (o.token_ids, o.text, o.finish_reason, o.stop_reason, o.seed)
            own = [d[t].logprob for d, t in zip(o.logprobs, o.token_ids)]
            assert np.array(c["logprobs"]["token_logprobs"], np.float32).tobytes() == \
                np.array(own, np.float32).tobytes() == o.sample.logprobs.tobytes()
            assert o.cumulative_logprob == sum(own)
            assert all(next(iter(d)) == t and 3 <= len(d) <= 4
                       for d, t in zip(o.logprobs, o.token_ids))
        assert repr(pickle.loads(pickle.dumps(g))) == repr(g)


def test_chat(llm, corun):
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes and"}]
    want = corun.bodies([chat("a", "x", max_tokens=9, seed=1, return_token_ids=True),
                         {**chat("b", ""), "body": {
                             "model": "m", "messages": messages, "continue_final_message": True,
                             "max_tokens": 9, "seed": 1, "return_token_ids": True}}],
                        "--slots", "4")
    p = SamplingParams(max_tokens=9, seed=1)
    a = llm.chat([{"role": "user", "content": "x"}], p, use_tqdm=False, tools=tools)
    b = llm.chat([messages], [p], False, add_generation_prompt=False, continue_final_message=True)
    for w, g in zip(want, a + b):
        assert w["choices"][0]["token_ids"] == g.outputs[0].token_ids
        assert w["choices"][0]["message"]["content"] == g.outputs[0].text
    assert b[0].prompt.endswith("yes and")
    own = llm.chat([{"role": "user", "content": "x"}], p, use_tqdm=False,
                   chat_template="T{{ messages[0].content }}{{ flag }}",
                   chat_template_kwargs={"flag": "!"})[0]
    assert own.prompt == "Tx!"
    with pytest.raises(ValueError, match="exclude"):
        llm.chat(messages, p, use_tqdm=False, continue_final_message=True)
    with pytest.raises(TypeError, match="messages"):
        llm.chat("x", p)


def test_seeds(llm):
    """Without a seed: reruns and orders are equal, equal prompts differ, and n prompts are one
    prompt with n samples."""
    p = SamplingParams(max_tokens=12, logprobs=0)
    prompts = [f"prompt {i}" for i in range(9)]
    a = generate(llm, prompts, p)
    assert bits(a) == bits(generate(llm, prompts, p))
    assert bits(a) == bits(generate(llm, prompts[::-1], p)[::-1])
    assert len({o.outputs[0].seed for o in a}) == 9
    four = generate(llm, ["x"] * 4, p)
    n = generate(llm, "x", SamplingParams(max_tokens=12, logprobs=0, n=4))[0]
    assert [o.outputs[0].token_ids for o in four] == [c.token_ids for c in n.outputs]
    assert len({tuple(c.token_ids) for c in n.outputs}) == 4
    hundred = generate(llm, ["y"] * 100, p)
    assert len({o.outputs[0].seed for o in hundred}) == 100
    with LLM("fake:phase", slots=4, seed=1) as other:
        assert bits(generate(other, prompts, p)) != bits(a)
    ids = {"prompt_token_ids": llm.encode("x")[0].prompt_token_ids}
    assert bits(generate(llm, ids, p)) == bits(four[:1])


def test_prompts(llm):
    p = SamplingParams(max_tokens=4, seed=3)
    forms = ["ab", ["ab"], {"prompt": "ab"}, cr.TextPrompt(prompt="ab"),
             cr.TokensPrompt(prompt_token_ids=llm.encode("ab")[0].prompt_token_ids), {"prompt_token_ids": llm.encode("ab")[0]
                                              .prompt_token_ids},
             llm.encode("ab")[0].prompt_token_ids, np.array(llm.encode("ab")[0].prompt_token_ids)]
    assert len({bits(generate(llm, f, p)) for f in forms}) == 1
    two = generate(llm, ["ab", "cd"], [p, SamplingParams(max_tokens=2, seed=3)])
    assert [len(o.outputs[0].token_ids) for o in two] == [4, 2]
    cut = generate(llm, "abcdef", SamplingParams(max_tokens=4, seed=3, truncate_prompt_tokens=2))[0]
    assert len(cut.prompt_token_ids) == 2
    assert generate(llm, "ab", SamplingParams(max_tokens=4, detokenize=False))[0].outputs[0].text == ""
    room = generate(llm, "ab", SamplingParams(max_tokens=10 ** 6, seed=1, ignore_eos=True,
                                              stop_token_ids=[70]))[0].outputs[0]
    assert room.finish_reason in ("stop", "length")
    for bad, kind in ((5, TypeError), ([{"x": 1}], ValueError), ([1.5], TypeError),
                      ([{"prompt": None}], TypeError), (None, ValueError),
                      ([{"prompt": "a", "multi_modal_data": {}}], ValueError)):
        with pytest.raises(kind):
            generate(llm, bad, p)
    with pytest.raises(ValueError, match="lengths"):
        generate(llm, ["a", "b"], [p])
    with pytest.raises(cr.CorunError, match="prompt 1"):
        generate(llm, ["a", [999999]], p)
    with pytest.raises(ValueError, match="lora"):
        generate(llm, "a", p, lora_request=1)
    with pytest.raises(NotImplementedError, match="embed"):
        llm.embed("a")
    assert llm.engine.stats["requests_running"] + llm.engine.stats["requests_waiting"] == 0


def test_score_and_encode(llm, corun):
    corun.write("s.jsonl", [{"text": "abcdef"}, {"tokens": [70, 71, 72]}])
    assert corun("score", "-m", "fake:phase", "-i", "s.jsonl", "-o", "o", "--slots", "4",
                 "--top", "2").returncode == 0
    want = [json.loads(x) for x in (corun.folder / "o").read_bytes().splitlines()]
    got = llm.score(["abcdef", [70, 71, 72]], top_logprobs=2)
    for w, g in zip(want, got):
        assert w["tokens"] == g.prompt_token_ids and g.token_logprobs[0] is None
        assert np.array(w["token_logprobs"][1:], np.float32).tobytes() == \
            np.array(g.token_logprobs[1:], np.float32).tobytes()
        assert g.sum_logprob == sum(g.token_logprobs[1:]) and g.arrays.top_ids.shape[1] == 2
    with pytest.raises(TypeError, match="cross-encoder"):
        llm.score("a", "b")


def test_tokenizer(llm):
    t = llm.get_tokenizer()
    assert t.decode(t.encode("h\u00e9llo")) == "h\u00e9llo" and len(t) == t.vocab_size
    assert t("ab")["input_ids"] == t.encode("ab") and t(["ab"])["input_ids"] == [t.encode("ab")]
    m = [{"role": "user", "content": "hi"}]
    text = t.apply_chat_template(m, tokenize=False, add_generation_prompt=True)
    assert t.apply_chat_template(m, add_generation_prompt=True) == t.encode(text, False)
    assert text.endswith("<|assistant|>")
    assert t.convert_ids_to_tokens(t.encode("ab")) == [t.decode(i) for i in t.encode("ab")]


def test_bar(llm, capsys):
    llm.generate(["a", "b"], SamplingParams(max_tokens=3))
    assert "Processed prompts: 100%" in capsys.readouterr().err
    seen = []

    class Own:
        def __init__(self, **more):
            seen.append(more["total"])

        def update(self, n):
            seen.append(n)

        def close(self):
            seen.append("closed")
    llm.generate(["a", "b"], SamplingParams(max_tokens=3), use_tqdm=Own)
    assert seen == [2, 1, 1, "closed"]


def test_interrupt(llm):
    """Ctrl-C ends generate at the next step and leaves nothing running, wherever it falls."""
    p = SamplingParams(max_tokens=None, seed=1, ignore_eos=True)
    want = generate(llm, ["a"] * 3, SamplingParams(max_tokens=5))
    for i in range(20):
        timer = threading.Timer(0.002 * i, signal.pthread_kill,
                                (threading.main_thread().ident, signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            timer.start()
            while True:
                generate(llm, [f"{i} {k}" for k in range(400)], p)
        timer.join()
        s = llm.engine.stats
        assert s["requests_running"] + s["requests_waiting"] == 0 and not llm.engine._alive
    assert bits(want) == bits(generate(llm, ["a"] * 3, SamplingParams(max_tokens=5)))


# ---- weights -------------------------------------------------------------------------------------

class Shape(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2), ("ndim", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("offset", ctypes.c_uint64),
                ("manager", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class Tensor:
    """A tensor as another library has it: nothing but __dlpack__."""

    def __init__(self, a, code, device=1, strides=True, null=False):
        self.a, self.code, self.device, self.strides, self.null = a, code, device, strides, null

    def __dlpack_device__(self):
        return self.device, 0

    def __dlpack__(self, stream=None):
        a = self.a
        self.shape = (ctypes.c_int64 * a.ndim)(*a.shape)
        self.stride = (ctypes.c_int64 * a.ndim)(*(s // a.itemsize for s in a.strides))
        self.t = Shape(None if self.null else a.ctypes.data, (self.device, 0), a.ndim, self.code,
                       8 * a.itemsize, 1, self.shape, self.stride if self.strides else None, 0, None, None)
        new = ctypes.pythonapi.PyCapsule_New
        new.restype = ctypes.py_object
        new.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self.t), b"dltensor", None)


@pytest.mark.parametrize("kind,code", [("BF16", 4), ("F16", 2), ("F32", 2)])
def test_load_weights_from_dlpack(library, kind, code):
    source = GOLDEN / "llama_plain"
    new = perturbed(read_tensors(source), kind, 7)
    strided = {k: np.asfortranarray(v) for k, v in new.items()}
    p = SamplingParams(max_tokens=9, logprobs=0)
    with LLM(str(source), max_model_len=128) as llm:
        old = bits(generate(llm, [[1, 2, 3]], p))
        llm.load_weights(new)
        digest, want = llm.engine.model.info["weights_digest"], bits(generate(llm, [[1, 2, 3]], p))
        assert want != old
        for tensors in ({k: Tensor(v, code) for k, v in new.items()},
                        {k: Tensor(v, code, strides=False) for k, v in new.items()},
                        {k: Tensor(v, code) for k, v in strided.items()}):
            llm.load_weights(read_tensors(source))
            assert bits(generate(llm, [[1, 2, 3]], p)) == old
            llm.load_weights((k, v) for k, v in tensors.items())
            assert llm.engine.model.info["weights_digest"] == digest
            assert bits(generate(llm, [[1, 2, 3]], p)) == want
        if kind == "F32":
            class Numpy:  # numpy's own capsule, which has a destructor
                def __init__(self, a):
                    self.__dlpack__, self.a = a.__dlpack__, a

                def __dlpack_device__(self):
                    return self.a.__dlpack_device__()
            llm.load_weights((k, Numpy(v)) for k, v in new.items())
            assert bits(generate(llm, [[1, 2, 3]], p)) == want
        if kind == "BF16":
            ml = pytest.importorskip("ml_dtypes")
            llm.load_weights((k, to_f32(v).astype(ml.bfloat16)) for k, v in new.items())
            assert llm.engine.model.info["weights_digest"] == digest
        name = next(iter(new))
        for bad, word in ((Tensor(new[name], code, device=2), "device type 2"),
                          (Tensor(new[name].astype(np.float64), 2), "64 bits"),
                          (Tensor(new[name], code, null=True), "no data")):
            with pytest.raises(TypeError, match=f"{re.escape(name)}.*{word}"):
                llm.load_weights({**new, name: bad})
        with pytest.raises(cr.CorunError):
            llm.load_weights([(k, v) for k, v in new.items()] + [(name, new[name])])
        assert llm.engine.model.info["weights_digest"] == digest


# ---- the docs ------------------------------------------------------------------------------------

def blocks():
    text = (ROOT / "docs" / "python.md").read_text()
    return re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)


@pytest.mark.parametrize("i", range(len(blocks())))
def test_docs(library, monkeypatch, capsys, i):
    """Each example of docs/python.md runs as it stands."""
    code = blocks()[i]
    if ".cache/models" in code and not DEMO.exists():
        pytest.skip(f"{DEMO} is not there (tools/fetch demo)")
    monkeypatch.chdir(ROOT)
    exec(compile(code, f"docs/python.md, example {i}", "exec"), {"__name__": "example"})
    assert capsys.readouterr().out
