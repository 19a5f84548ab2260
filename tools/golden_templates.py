#!/usr/bin/env python3
"""Makes tests/data/templates/*.json: what real chat templates render to in the reference
environment (jinja2 3.1.6, set up as transformers sets it up, the date pinned to 2024-07-26).

cases.json holds the variables of each case. golden.json holds, for each template of .cache/templates
(tools/fetch tests) and for the demo model's own (from its GGUF), the digest of the file and one string
for each case: 12 hexadecimal digits of the XXH3-128 of the text, or "!" where the reference raises an
error. snippets.json holds small templates of tools/template_snippets.py with their whole text (null: error).

Run: pip install jinja2==3.1.6 xxhash; tools/fetch tests; tools/golden_templates.py
--show TEMPLATE CASE prints one text (for reading).
"""

import datetime
import functools
import json
import struct
import sys
from pathlib import Path

import jinja2.ext
import xxhash
from jinja2 import nodes
from jinja2.exceptions import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from template_snippets import SNIPPETS, VARIABLES

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache"
OUT = ROOT / "tests" / "data" / "templates"
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}


class Generation(jinja2.ext.Extension):
    """{% generation %}: its body, in a call block as transformers makes it."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_emit"), [], [], body).set_lineno(line)

    @staticmethod
    def _emit(caller):
        return caller()


def raise_exception(message):
    raise TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                      sort_keys=sort_keys)


def strftime_now(fmt):
    return datetime.datetime(2024, 7, 26).strftime(fmt)


def environment():
    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True,
                                        extensions=[Generation, jinja2.ext.loopcontrols])
    env.filters["tojson"] = tojson
    # Not in transformers, but three templates need it: the engine has it, so it is compared too.
    env.filters["from_json"] = json.loads
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = strftime_now
    return env


@functools.lru_cache(maxsize=4)
def compiled(env, source):
    return env.from_string(source)


def render(env, source, variables):
    """The text, or None and the error."""
    try:
        return compiled(env, source).render(**variables), None
    except Exception as e:  # every error of a template is an error row
        return None, "%s: %s" % (type(e).__name__, e)


def digest(text):
    return "%016x" % (xxhash.xxh3_128_intdigest(text.encode()) >> 64)


# ---- conversations ---------------------------------------------------------------------------------


def msg(role, content, **more):
    return {"role": role, "content": content, **more}


def call(name, arguments, id_="call_0001"):
    return {"id": id_, "type": "function", "function": {"name": name, "arguments": arguments}}


def fn(name, description, parameters=None, **more):
    f = {"name": name, "description": description}
    if parameters is not None:
        f["parameters"] = parameters
    return {"type": "function", "function": {**f, **more}}


WEATHER = fn("get_weather", "Current weather of a city.", {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "City name, e.g. \"Köln\""},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
        "days": {"type": ["integer", "null"], "minimum": 1, "maximum": 14}},
    "required": ["city"]})
SEARCH = fn("search", "Search <documents> & more.\nSecond line.", {
    "type": "object",
    "properties": {
        "query": {"type": "string"},
        "filters": {"type": "object", "description": "Filters", "properties": {
            "tags": {"type": "array", "items": {"type": "string"}, "description": "Tags"},
            "range": {"type": "object", "properties": {"from": {"type": "number"},
                                                       "to": {"type": "number"}}}},
            "required": ["tags"], "additionalProperties": False},
        "mode": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
        "rows": {"type": "array", "items": {"type": "object", "properties": {
            "id": {"type": "integer"}}}},
        "exact": {"type": "boolean", "default": False}},
    "required": ["query", "filters"]}, strict=True)
PING = fn("ping", "No arguments.", {"type": "object", "properties": {}})
BARE = fn("bare", "Without parameters.")
TOOLS = [WEATHER, SEARCH, PING]

SYSTEM = msg("system", "You are terse.")
U1, U2 = msg("user", "What is 2 + 2?"), msg("user", "And 3 + 3?\n")
A1 = msg("assistant", "4")
ODD = msg("user", "  <b>\"Grüße\"</b> & 'x'\t\u2028😀\n\n  end  ")
THINK = msg("assistant", "<think>\nTwo and two.\n</think>\n\n4, of course.")
REASON = msg("assistant", "4, of course.", reasoning_content="Two and two.\n")
CALL = msg("assistant", "", tool_calls=[call("get_weather", {"city": "Köln", "days": 2})])
CALLS = msg("assistant", "Let me look.", tool_calls=[
    call("get_weather", {"city": "Paris", "unit": "celsius"}, "call_0001"),
    call("search", {"query": "a \"b\" <c>", "filters": {"tags": ["x", "y"], "range": {"from": 0.5,
                                                                               "to": 1e16}},
                    "exact": True, "mode": None}, "call_0002")])
RESULT = msg("tool", "{\"temperature\": 21.5}", tool_call_id="call_0001", name="get_weather")
RESULT2 = msg("tool", "nothing\nfound", tool_call_id="call_0002", name="search")
PARTS = msg("user", [{"type": "text", "text": "First."}, {"type": "text", "text": "Second. "}])
DOCS = [{"title": "One", "text": "First text.", "doc_id": 1},
        {"title": "Two", "text": "Second\ntext.", "url": "http://e.org/?a=b&c"}]

CONVERSATIONS = {
    "user": {"messages": [U1]},
    "system": {"messages": [SYSTEM, U1]},
    "turns": {"messages": [U1, A1, U2]},
    "system_turns": {"messages": [SYSTEM, U1, A1, U2, msg("assistant", "6"), ODD]},
    "odd": {"messages": [msg("system", "\n System \n"), ODD, msg("assistant", "\n ok \n\n"), U2]},
    "assistant_last": {"messages": [SYSTEM, U1, A1]},
    "empty_content": {"messages": [msg("system", ""), msg("user", "")]},
    "developer": {"messages": [msg("developer", "Be kind."), U1]},
    "two_users": {"messages": [U1, U2]},
    "late_system": {"messages": [U1, A1, SYSTEM, U2]},
    "two_systems": {"messages": [SYSTEM, msg("system", "Second."), U1]},
    "assistant_first": {"messages": [A1, U1]},
    "crlf": {"messages": [msg("system", "a\r\nb"), msg("user", "c\rd\r\n")]},
    "think": {"messages": [U1, THINK, U2]},
    "think_last": {"messages": [U1, THINK]},
    "think_system": {"messages": [SYSTEM, U1, THINK, U2, THINK, U1]},
    "think_open": {"messages": [U1, msg("assistant", "<think>never closed"), U2]},
    "reason": {"messages": [U1, REASON, U2]},
    "reason_last": {"messages": [SYSTEM, U1, REASON]},
    "reason_alias": {"messages": [U1, {**A1, "reasoning": "Hm.", "thinking": "Hm!"}, U2]},
    "tools": {"messages": [U1], "tools": TOOLS},
    "tools_system": {"messages": [SYSTEM, U1], "tools": [WEATHER, BARE]},
    "tools_none": {"messages": [SYSTEM, U1], "tools": []},
    "call": {"messages": [U1, CALL, RESULT], "tools": TOOLS},
    "call_last": {"messages": [SYSTEM, U1, CALL], "tools": TOOLS},
    "call_no_tools": {"messages": [U1, CALL, RESULT, A1, U2]},
    "calls": {"messages": [SYSTEM, U1, CALLS, RESULT, RESULT2, A1, U2], "tools": TOOLS},
    "calls_reason": {"messages": [U1, {**CALLS, "reasoning_content": "Two calls."}, RESULT,
                                  RESULT2, REASON, U2, CALL, RESULT], "tools": TOOLS},
    "calls_think": {"messages": [U1, {**CALL, "content": "<think>\nA call.\n</think>\n\n"},
                                 RESULT], "tools": [WEATHER]},
    "call_null": {"messages": [U1, {**CALL, "content": None}, RESULT], "tools": [WEATHER]},
    "call_missing": {"messages": [U1, {"role": "assistant", "tool_calls": CALL["tool_calls"]},
                                  RESULT], "tools": [WEATHER]},
    "call_string": {"messages": [U1, msg("assistant", "", tool_calls=[
        call("get_weather", "{\"city\": \"Rom\"}")]), RESULT], "tools": [WEATHER]},
    "call_empty": {"messages": [U1, msg("assistant", "", tool_calls=[call("ping", {})]),
                                msg("tool", "pong", tool_call_id="call_0001", name="ping")],
                   "tools": [PING]},
    "calls_none": {"messages": [U1, {**A1, "tool_calls": []}, U2]},
    "calls_flat": {"messages": [U1, msg("assistant", "", tool_calls=[
        {"name": "ping", "arguments": {"n": [1, {"a": "é"}], "s": "x\ny"}}]), RESULT]},
    "result_parts": {"messages": [U1, CALL, msg("tool", [{"type": "text", "text": "warm"}],
                                                tool_call_id="call_0001", name="get_weather")],
                     "tools": [WEATHER]},
    "parts": {"messages": [SYSTEM, PARTS]},
    "parts_turns": {"messages": [msg("system", [{"type": "text", "text": "S"}]), PARTS,
                                 msg("assistant", [{"type": "text", "text": "A"}]), U2]},
    "image": {"messages": [msg("user", [{"type": "image"}, {"type": "text", "text": "What?"}])]},
    "image_url": {"messages": [msg("user", [
        {"type": "text", "text": "Look:"},
        {"type": "image_url", "image_url": {"url": "http://e.org/x.png"}},
        {"type": "video"}, {"type": "audio"}])]},
    "documents": {"messages": [SYSTEM, U1], "documents": DOCS},
    "unknown_role": {"messages": [U1, msg("critic", "No."), U2]},
    "no_messages": {"messages": []},
}
# options, and the conversations that they are tried with
OPTIONS = [
    ({"enable_thinking": True}, ["user", "system_turns", "think", "reason", "calls_reason"]),
    ({"enable_thinking": False}, ["user", "system_turns", "think", "reason", "calls_reason"]),
    ({"thinking": True}, ["user", "think", "calls", "documents"]),
    ({"thinking": False}, ["user", "think"]),
    ({"reasoning_effort": "high"}, ["user", "reason", "calls"]),
    ({"reasoning_effort": "low"}, ["system", "calls"]),
    ({"reasoning_effort": "no_think"}, ["user", "calls"]),
    ({"date_string": "01 Jan 2030"}, ["user", "tools_system"]),
    ({"tools_in_user_message": False}, ["tools", "tools_system"]),
    ({"builtin_tools": ["brave_search", "code_interpreter"]}, ["user", "tools", "calls"]),
    ({"builtin_tools": ["browser", "python"], "model_identity": "You are X."}, ["user", "tools"]),
    ({"xml_tools": TOOLS, "python_tools": ["f"], "custom_instructions": "Yes."}, ["user"]),
    ({"add_vision_id": True}, ["image", "image_url"]),
    ({"clear_thinking": False, "preserve_thinking": True, "keep_past_thinking": True,
      "keep_all_reasoning": True, "truncate_history_thinking": False}, ["reason", "calls_reason"]),
    ({"custom_system_prompt": "Mine.", "system_message": "Theirs.", "language": "de",
      "user_identity": "me", "response_format": "json"}, ["user", "system"]),
]


def cases():
    """(name, variables)."""
    out = []
    base = {"tools": None, "documents": None, **SPECIAL}
    for name, c in CONVERSATIONS.items():
        for add in (True, False):
            out.append(("%s/%d" % (name, add), {**base, **c, "add_generation_prompt": add}))
    for options, names in OPTIONS:
        for name in names:
            label = "%s/1/%s" % (name, ",".join("%s=%s" % (k, v) for k, v in options.items()))
            out.append((label[:80], {**base, **CONVERSATIONS[name], "add_generation_prompt": True,
                                     **options}))
    return out


def demo_template():
    head = (CACHE / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf").read_bytes()[:8 << 20]
    at = head.index(b"tokenizer.chat_template") + len(b"tokenizer.chat_template")
    _, n = struct.unpack_from("<IQ", head, at)
    return head[at + 12:at + 12 + n].decode()


def sources():
    out = {"demo/SmolLM2-135M-Instruct": demo_template()}
    for folder in ("axolotl", "llama.cpp", "trl"):
        paths = sorted((CACHE / "templates" / folder).glob("*.jinja"))
        if not paths:
            sys.exit("golden_templates: .cache/templates/%s is empty: run tools/fetch" % folder)
        for path in paths:
            out["%s/%s" % (folder, path.name)] = path.read_bytes().decode()
    return out


def write(name, text):
    (OUT / name).write_text(text + "\n", encoding="utf-8")


def main():
    env = environment()
    all_cases, all_sources = cases(), sources()
    if len(sys.argv) == 4 and sys.argv[1] == "--show":
        print(*render(env, all_sources[sys.argv[2]], dict(all_cases)[sys.argv[3]]), sep="\n")
        return
    rows = []
    for name, source in all_sources.items():
        out = []
        for _, variables in all_cases:
            text, _ = render(env, source, variables)
            out.append("!" if text is None else digest(text)[:12])
        row = {"name": name, "digest": digest(source), "out": out}
        if name.startswith("demo/"):
            row["source"] = source
        rows.append(json.dumps(row, ensure_ascii=False))
    write("golden.json", "[" + ",\n".join(rows) + "]")
    write("cases.json", "[" + ",\n".join(
        json.dumps({"name": n, "vars": v}, ensure_ascii=False) for n, v in all_cases) + "]")
    texts = [(t, render(env, t, VARIABLES)[0]) for t in SNIPPETS]
    write("snippets.json", '{"vars": %s,\n"rows": [%s]}' % (
        json.dumps(VARIABLES, ensure_ascii=False),
        ",\n".join(json.dumps(row, ensure_ascii=False) for row in texts)))
    print("%d templates, %d cases, %d snippets" % (len(rows), len(all_cases), len(SNIPPETS)))


if __name__ == "__main__":
    main()
