/* test_chat.c - from chat requests to prompts: preparation of messages, choice of the template,
 * errors that name the place. Invariant: a row holds the whole prompt. */
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/chat.h"

#define SHOW                                                                                       \
    "{% for m in messages %}[{{ m.role }}:{{ m.content|tojson }}{% if m.tool_calls is defined %} " \
    "{{ m.tool_calls|tojson }}{% endif %}]{% endfor %}{% if add_generation_prompt %}>{% endif %}"
#define PARTS                                                                                      \
    "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"                 \
    "{% for p in m.content %}({{ p.type }}:{{ p.text }}){% endfor %}{% endif %}{% endfor %}"
#define USER "{\"role\":\"user\",\"content\":\"q\"}"

static corun_status run(const char *src, const char *json, buf *b)
{
    chat_templates *t = NULL;
    json_t *special = json_pack("{s:s}", "bos_token", "<s>");
    corun_status st = src ? chat_templates_text(&t, src, strlen(src), "chat template") : CORUN_OK;
    chat_source s = {.templates = t, .special = special, .year = 2024, .month = 7, .day = 26};
    if (st == CORUN_OK) st = chat_render(&s, json, strlen(json), b);
    chat_templates_free(t);
    json_decref(special);
    return st;
}

static void expect(const char *src, const char *json, const char *want)
{
    buf b;
    buf_init(&b, 1 << 20);
    if (run(src, json, &b) != CORUN_OK) fail_msg("%s\n  %s", json, err_text());
    assert_string_equal(b.data ? b.data : "", want);
    buf_free(&b);
}

static void refuse(const char *src, const char *json, corun_status want, const char *part)
{
    buf b;
    buf_init(&b, 1 << 20);
    corun_status st = run(src, json, &b);
    if (st != want || !strstr(err_text(), part))
        fail_msg("%s: %s: %s", json, corun_status_name(st), st ? err_text() : b.data);
    buf_free(&b);
}

static void simple(void **state)
{
    (void)state;
    expect(CHAT_FAKE_TEMPLATE, "{\"messages\":[" USER "]}", "<|user|>q<|assistant|>");
    expect(CHAT_FAKE_TEMPLATE, "{\"messages\":[" USER "],\"add_generation_prompt\":false}",
           "<|user|>q");
    expect("{{ bos_token }}{{ tools is none }}{{ documents is none }}{{ eos_token is defined }}"
           "{{ strftime_now('%d %b %Y') }}{{ thinking }}",
           "{\"messages\":[" USER "],\"chat_template_kwargs\":{\"thinking\":[1]}}",
           "<s>TrueTrueFalse26 Jul 2024[1]");
    expect("{{ tools|length }}{{ documents[0].t }}",
           "{\"messages\":[" USER
           "],\"tools\":[{\"type\":\"function\"}],\"documents\":[{\"t\":\"d\"}]}",
           "1d");
    expect("{{ bos_token }}",
           "{\"messages\":[" USER "],\"chat_template_kwargs\":{\"bos_token\":\"B\"}}", "B");
}

static void content(void **state)
{
    (void)state;
    expect(SHOW,
           "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"A\"},"
           "{\"type\":\"text\",\"text\":\"B\"}]}]}",
           "[user:\"A\\nB\"]>");
    expect(SHOW, "{\"messages\":[{\"role\":\"user\",\"content\":[]}]}", "[user:\"\"]>");
    expect(SHOW, "{\"messages\":[{\"role\":\"user\",\"content\":[\"A\",\"B\"]}]}",
           "[user:\"A\\nB\"]>");
    expect(
        PARTS,
        "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"A\"},\"B\"]},"
        "{\"role\":\"user\",\"content\":\"C\"}]}",
        "(text:A)(text:B)C");
    expect("{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}",
           "{\"messages\":[" USER "]}", "q");
    refuse(SHOW,
           "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{}"
           "}]}]}",
           CORUN_EUNSUPPORTED, "messages[0]: content parts of type 'image_url'");
    refuse(PARTS, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_audio\"}]}]}",
           CORUN_EUNSUPPORTED, "'input_audio'");
    refuse(SHOW, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]}",
           CORUN_EFORMAT, "messages[0]: a text part needs a string 'text'");
    refuse(SHOW, "{\"messages\":[{\"role\":\"user\",\"content\":[5]}]}", CORUN_EFORMAT, "'type'");
    refuse(SHOW, "{\"messages\":[{\"role\":\"user\",\"content\":5}]}", CORUN_EFORMAT,
           "messages[0]: content must be");
    refuse(SHOW, "{\"messages\":[" USER ",{\"role\":\"user\",\"content\":null}]}", CORUN_EFORMAT,
           "messages[1]: a message of role 'user' needs content");
    refuse(SHOW, "{\"messages\":[{\"role\":\"assistant\"}]}", CORUN_EFORMAT, "needs content");
    refuse(SHOW, "{\"messages\":[{\"role\":\"tool\",\"content\":null}]}", CORUN_EFORMAT,
           "needs content");
    expect(SHOW, "{\"messages\":[{\"role\":\"assistant\",\"reasoning_content\":\"hm\"}]}",
           "[assistant:\"\"]>");
}

#define CALL(args)                                                                                 \
    "{\"messages\":[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"type\":"           \
    "\"function\",\"function\":{\"name\":\"f\"" args "}}]}]}"
#define CALL_TEXT(args)                                                                            \
    "[assistant:\"\" [{\"type\": \"function\", \"function\": {\"name\": \"f\", "                   \
    "\"arguments\": " args "}}]]>"

static void tool_calls(void **state)
{
    (void)state;
    expect(SHOW, CALL(",\"arguments\":\"{\\\"a\\\":1,\\\"b\\\":1.0}\""),
           CALL_TEXT("{\"a\": 1, \"b\": 1.0}"));
    expect(SHOW, CALL(",\"arguments\":{\"a\":[]}"), CALL_TEXT("{\"a\": []}"));
    expect(SHOW, CALL(",\"arguments\":\"\""), CALL_TEXT("{}"));
    expect(SHOW, CALL(",\"arguments\":null"), CALL_TEXT("{}"));
    expect(SHOW, CALL(",\"arguments\":\"null\""), CALL_TEXT("{}"));
    expect(SHOW, CALL(""), CALL_TEXT("{}"));
    static const char *const at = "messages[0].tool_calls[0].function.arguments";
    refuse(SHOW, CALL(",\"arguments\":\"5\""), CORUN_EFORMAT, at);
    refuse(SHOW, CALL(",\"arguments\":5"), CORUN_EFORMAT, at);
    refuse(SHOW, CALL(",\"arguments\":\"[1]\""), CORUN_EFORMAT, "is not an object");
    refuse(SHOW, CALL(",\"arguments\":\"{bad\""), CORUN_EFORMAT, at);
    refuse(SHOW, CALL(",\"arguments\":\"{\\\"b\\\":12345678901234567890}\""), CORUN_EFORMAT, at);
    refuse(SHOW, CALL(",\"arguments\":\"{\\\"a\\\":1,\\\"a\\\":3}\""), CORUN_EFORMAT, at);
    expect(SHOW, "{\"messages\":[{\"role\":\"assistant\",\"content\":\"x\",\"tool_calls\":[]}]}",
           "[assistant:\"x\"]>");
    expect(SHOW, "{\"messages\":[{\"role\":\"assistant\",\"content\":\"x\",\"tool_calls\":null}]}",
           "[assistant:\"x\"]>");
    refuse(SHOW, "{\"messages\":[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[]}]}",
           CORUN_EFORMAT, "needs content");
    expect(SHOW,
           "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"name\":\"f\",\"arguments\":"
           "\"{}\"}]}]}",
           "[assistant:\"\" [{\"name\": \"f\", \"arguments\": {}}]]>");
    refuse(SHOW, "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{}}]}]}",
           CORUN_EFORMAT, "messages[0].tool_calls[0].function: a string 'name'");
    refuse(SHOW, "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[7]}]}", CORUN_EFORMAT,
           "messages[0].tool_calls[0]: a string 'name'");
    refuse(SHOW, "{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":{}}]}", CORUN_EFORMAT,
           "a list is required");
}

static void requests(void **state)
{
    (void)state;
    refuse(SHOW, "", CORUN_EFORMAT, "chat request: JSON");
    refuse(SHOW, "[]", CORUN_EFORMAT, "an object is required");
    refuse(SHOW, "{}", CORUN_EFORMAT, "messages: a list of at least one");
    refuse(SHOW, "{\"messages\":[]}", CORUN_EFORMAT, "at least one");
    refuse(SHOW, "{\"messages\":{}}", CORUN_EFORMAT, "messages: a list is required");
    refuse(SHOW, "{\"messages\":[5]}", CORUN_EFORMAT, "messages[0]: an object");
    refuse(SHOW, "{\"messages\":[{\"content\":\"x\"}]}", CORUN_EFORMAT,
           "messages[0]: a string 'role'");
    refuse(SHOW, "{\"messages\":[{\"role\":\"wizard\",\"content\":\"x\"}]}", CORUN_EFORMAT,
           "messages[0]: unknown role 'wizard'");
    refuse(SHOW, "{\"messages\":[" USER "],\"temperature\":1}", CORUN_EFORMAT,
           "unknown field 'temperature'");
    refuse(SHOW, "{\"messages\":[" USER "],\"tools\":[1]}", CORUN_EFORMAT, "tools[0]: an object");
    refuse(SHOW, "{\"messages\":[" USER "],\"tools\":{}}", CORUN_EFORMAT, "tools: a list");
    refuse(SHOW, "{\"messages\":[" USER "],\"add_generation_prompt\":1}", CORUN_EFORMAT,
           "add_generation_prompt: true or false");
    refuse(SHOW, "{\"messages\":[" USER "],\"chat_template_kwargs\":{\"messages\":[]}}",
           CORUN_EFORMAT, "chat_template_kwargs: 'messages'");
    refuse("{{ raise_exception('roles must alternate') }}", "{\"messages\":[" USER "]}",
           CORUN_EFORMAT, "roles must alternate");
    refuse(NULL, "{\"messages\":[" USER "]}", CORUN_EFORMAT, "no chat template");
    expect(NULL, "{\"messages\":[" USER "],\"chat_template\":\"{{ messages[0].content }}!\"}",
           "q!");
    refuse(NULL, "{\"messages\":[" USER "],\"chat_template\":\"{% foo %}\"}", CORUN_EFORMAT,
           "chat_template, line 1: the tag 'foo'");
}

static void continuing(void **state)
{
    (void)state;
#define TALK(last)                                                                                 \
    "{\"messages\":[" USER ",{\"role\":\"assistant\",\"content\":" last                            \
    "}],\"continue_final_message\":true}"
    static const char plain[] = "{% for m in messages %}<{{ m.content }}>{% endfor %}"
                                "{% if add_generation_prompt %}!{% endif %}";
    static const char trims[] = "{% for m in messages %}<{{ m.content|trim }}>{% endfor %}";
    expect(plain, TALK("\"so \""), "<q><so ");
    expect(plain, TALK("\"\""), "<q><");
    expect(trims, TALK("\"so \""), "<q><so");
    expect(trims, TALK("\" so\""), "<q><so");
    expect(PARTS, TALK("[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":\"b \"}]"),
           "q(text:a)(text:b ");
    refuse(PARTS, TALK("[]"), CORUN_EFORMAT, "has no text");
    refuse("{{ messages[0].content }}", TALK("\"x\""), CORUN_EFORMAT, "does not show");
    refuse(plain,
           "{\"messages\":[" USER
           "],\"continue_final_message\":true,\"add_generation_prompt\":true}",
           CORUN_EFORMAT, "exclude one another");
#undef TALK
}

static void named_templates(void **state)
{
    (void)state;
    chat_templates *t;
    json_t *v = json_loads("[{\"name\":\"tool_use\",\"template\":\"T{{ tools|length }}\"},"
                           "{\"name\":\"default\",\"template\":\"D\"},"
                           "{\"name\":\"rag\",\"template\":\"R\"}]",
                           0, NULL);
    assert_int_equal(chat_templates_read(&t, v, "chat template"), CORUN_OK);
    static const char *const rows[][2] = {
        {"{\"messages\":[" USER "]}", "D"},
        {"{\"messages\":[" USER "],\"tools\":[]}", "D"},
        {"{\"messages\":[" USER "],\"tools\":[{}]}", "T1"},
        {"{\"messages\":[" USER "],\"tools\":[{}],\"chat_template\":\"rag\"}", "R"},
        {"{\"messages\":[" USER "],\"tools\":[{}],\"chat_template\":\"own\"}", "own"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        buf b;
        buf_init(&b, 100);
        chat_source s = {.templates = t};
        assert_int_equal(chat_date("2024-07-26", &s), CORUN_OK);
        assert_int_equal(chat_render(&s, rows[i][0], strlen(rows[i][0]), &b), CORUN_OK);
        assert_string_equal(b.data, rows[i][1]);
        buf_free(&b);
    }
    chat_templates_free(t);
    json_decref(v);
    static const char *const bad[] = {"5",
                                      "[]",
                                      "[5]",
                                      "[{\"name\":\"a\"}]",
                                      "\"{{\"",
                                      "[{\"name\":\"a\",\"template\":\"{% x %}\"}]",
                                      "[{\"name\":\"a\",\"template\":\"\"},"
                                      "{\"name\":\"a\",\"template\":\"\"}]"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        v = json_loads(bad[i], JSON_DECODE_ANY, NULL);
        assert_int_equal(chat_templates_read(&t, v, "chat template"), CORUN_EFORMAT);
        assert_null(t);
        json_decref(v);
    }
}

static void dates(void **state)
{
    (void)state;
    chat_source s;
    assert_int_equal(chat_date("2024-02-29", &s), CORUN_OK);
    assert_int_equal(s.year * 10000 + s.month * 100 + s.day, 20240229);
    static const char *const bad[] = {"",           "2023-02-29", "2024-13-01", "2024-00-10",
                                      "2024-04-31", "2024-4-1",   "24-04-01",   "2024-04-01x",
                                      "2024-04-00", "-024-04-01", "2024-+4-01", "today",
                                      "0000-01-01", "2024/04/01"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_int_equal(chat_date(bad[i], &s), CORUN_EINVAL);
}

static void failing_allocations(void **state)
{
    (void)state;
    corun_status st = CORUN_ENOMEM;
    uint64_t n = 1;
    for (; st != CORUN_OK && n < 1000; n++) {
        buf b;
        buf_init(&b, 1 << 20);
        mem_fail_at(n);
        st = run(PARTS,
                 "{\"messages\":[{\"role\":\"user\",\"content\":[\"A\"]}," USER
                 "],\"continue_final_message\":true}",
                 &b);
        mem_fail_at(0);
        if (st != CORUN_OK) assert_int_equal(st, CORUN_ENOMEM);
        buf_free(&b);
    }
    assert_int_equal(st, CORUN_OK);
    assert_true(n > 8);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(simple),     cmocka_unit_test(content),
        cmocka_unit_test(tool_calls), cmocka_unit_test(requests),
        cmocka_unit_test(continuing), cmocka_unit_test(named_templates),
        cmocka_unit_test(dates),      cmocka_unit_test(failing_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
