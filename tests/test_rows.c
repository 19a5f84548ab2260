/* test_rows.c - rows of batches and scores without an engine: events made here, rows read back. */
#include "openai_fake.h"

/* ---- rows ------------------------------------------------------------------------------------ */

static void test_echo(void **state)
{
    (void)state;
    const job_model m = model(-1);
    job *j = open_body(false,
                       "\"prompt\":\"The capital of France is\",\"echo\":true,\"logprobs\":1,"
                       "\"max_tokens\":0",
                       &m);
    assert_int_equal(j->prompt->n_token, 5);
    assert_int_equal(j->s.prompt_logprobs, 1);
    feed_prompt(j, 0, 1);
    feed_done(j, 0, 0, CORUN_FINISH_LENGTH, 0, -1);
    assert_true(job_done(j));
    json_t *row = row_of(j, &m, NULL);
    expect(row, "response/body/choices/0/text", "\"The capital of France is\"");
    expect(row, "response/body/choices/0/logprobs/tokens",
           "[\"The\",\" capital\",\" of\",\" France\",\" is\"]");
    expect(row, "response/body/choices/0/logprobs/token_logprobs", "[null,-0.25,-0.5,-0.75,-1.0]");
    expect(row, "response/body/choices/0/logprobs/top_logprobs",
           "[null,{\" capital\":-0.25},{\" of\":-0.5},{\" France\":-0.75},{\" is\":-1.0}]");
    expect(row, "response/body/choices/0/logprobs/text_offset", "[0,3,11,14,21]");
    expect(row, "response/body/choices/0/finish_reason", "\"length\"");
    expect(row, "response/body/usage",
           "{\"prompt_tokens\":5,\"completion_tokens\":0,\"total_tokens\":5}");
    json_decref(row);
    job_free(j);

    j = open_body(false,
                  "\"prompt\":\"The capital of France is\",\"echo\":true,\"logprobs\":1,"
                  "\"max_tokens\":1,\"n\":2,\"seed\":9",
                  &m);
    feed_prompt(j, 0, 1);
    for (int s = 1; s >= 0; s--) {
        feed_token(j, 0, s, 0, PARIS, " Paris", 1);
        feed_done(j, 0, s, CORUN_FINISH_LENGTH, 1, -1);
    }
    row = row_of(j, &m, NULL);
    expect(row, "response/body/choices/1/index", "1");
    expect(row, "response/body/choices/1/text", "\"The capital of France is Paris\"");
    expect(row, "response/body/choices/1/logprobs/text_offset", "[0,3,11,14,21,24]");
    expect(row, "response/body/choices/1/logprobs/top_logprobs/5", "{\"x\":-0.5,\" Paris\":-1.5}");
    expect(row, "response/body/choices/0/seed", "9");
    expect(row, "response/body/usage/completion_tokens", "2");
    json_decref(row);
    job_free(j);
}

/* A bos that the tokenizer adds has an entry, but no place in the text. */
static void test_echo_bos(void **state)
{
    (void)state;
    const job_model m = model(BOS);
    static const struct {
        const char *prompt, *text, *offsets;
    } c[] = {{"\"The is\"", "\"The is\"", "[0,0,3,6]"},
             {"[260,264]", "\"The is\"", "[0,3,6]"},
             {"\"<|user|>x\"", "\"<|user|>x\"", "[0,0,8,9]"},
             {"[258,120]", "\"x\"", "[0,0,1]"}};
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        char body[256];
        snprintf(body, sizeof body, "\"prompt\":%s,\"echo\":true,\"logprobs\":0,\"max_tokens\":1",
                 c[i].prompt);
        job *j = open_body(false, body, &m);
        feed_prompt(j, 0, 0);
        feed_token(j, 0, 0, 0, EOS, "", 0);
        feed_done(j, 0, 0, CORUN_FINISH_STOP, 1, -1);
        json_t *row = row_of(j, &m, NULL);
        expect(row, "response/body/choices/0/text", c[i].text);
        expect(row, "response/body/choices/0/logprobs/text_offset", c[i].offsets);
        expect(row, "response/body/choices/0/logprobs/top_logprobs", "null");
        json_decref(row);
        job_free(j);
    }
}

static void test_logprob_forms(void **state)
{
    (void)state;
    const job_model m = model(BOS);
    static const struct {
        int chat;
        const char *more;
        const char *want;
    } c[] = {
        {0, "", "null"},
        {0, ",\"logprobs\":0",
         "{\"tokens\":[\"y\"],\"token_logprobs\":[-1.5],\"top_logprobs\":null,\"text_offset\":[0]"
         "}"},
        {0, ",\"logprobs\":2",
         "{\"tokens\":[\"y\"],\"token_logprobs\":[-1.5],\"top_logprobs\":[{\"x\":-0.5,\"y\":-1.5}],"
         "\"text_offset\":[0]}"},
        {1, "", "null"},
        {1, ",\"logprobs\":true",
         "{\"content\":[{\"token\":\"y\",\"logprob\":-1.5,\"bytes\":[121],\"top_logprobs\":[]}]}"},
        {1, ",\"logprobs\":true,\"top_logprobs\":2",
         "{\"content\":[{\"token\":\"y\",\"logprob\":-1.5,\"bytes\":[121],\"top_logprobs\":["
         "{\"token\":\"x\",\"logprob\":-0.5,\"bytes\":[120]},"
         "{\"token\":\"y\",\"logprob\":-1.5,\"bytes\":[121]}]}]}"},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        char body[256];
        snprintf(body, sizeof body, "%s%s",
                 c[i].chat ? "\"messages\":[{\"role\":\"user\",\"content\":\"q\"}]"
                           : "\"prompt\":\"x\"",
                 c[i].more);
        job *j = open_body(c[i].chat, body, &m);
        feed_token(j, 0, 0, 0, 'y', "y", j->s.logprobs > 0 ? j->s.logprobs : 0);
        feed_done(j, 0, 0, CORUN_FINISH_LENGTH, 1, -1);
        json_t *row = row_of(j, &m, NULL);
        expect(row, "response/body/choices/0/logprobs", c[i].want);
        json_decref(row);
        job_free(j);
    }
}

/* Half characters: the text, the offsets and the bytes agree. Text, ids and log-probabilities have
 * one length, whatever a stop string cuts. */
static void test_pieces(void **state)
{
    (void)state;
    const job_model m = model(BOS);
    job *j = open_body(false,
                       "\"prompt\":\"x\",\"logprobs\":0,\"return_token_ids\":true,"
                       "\"stop\":[\"q\",\"b!\"]",
                       &m);
    feed_token(j, 0, 0, 0, 266, "", 0);
    feed_token(j, 0, 0, 1, 267, "\xf0\x9f\xa6\xac", 0);
    feed_token(j, 0, 0, 2, 'a', "a", 0);
    feed_token(j, 0, 0, 3, 'b', "", 0);
    feed_token(j, 0, 0, 4, '!', "", 0);
    feed_done(j, 0, 0, CORUN_FINISH_STOP, 5, 1);
    json_t *row = row_of(j, &m, NULL);
    expect(row, "response/body/choices/0/text",
           "\"\xf0\x9f\xa6\xac"
           "a\"");
    expect(row, "response/body/choices/0/token_ids", "[266,267,97,98,33]");
    expect(row, "response/body/choices/0/prompt_token_ids", "[256,120]");
    expect(row, "response/body/choices/0/logprobs/text_offset", "[0,0,1,2,3]");
    expect(row, "response/body/choices/0/stop_reason", "\"b!\"");
    expect(row, "response/body/choices/0/finish_reason", "\"stop\"");
    assert_int_equal(json_array_size(at(row, "response/body/choices/0/logprobs/tokens")), 5);
    json_decref(row);
    job_free(j);
}

static void test_chars(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t n;
    } c[] = {{"\xe2\x80", 0},         {"\xe2\x80x", 2},         {"\xf0\x9f\x98\xf0\x9fx", 3},
             {"\xc0\xaf", 2},         {"\xe2\x28\xa1", 3},      {"\xed\xa0\x80", 3},
             {"\xf4\x90\x80\x80", 4}, {"a\xf0\x9f\x98\x80z", 3}};
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        job_chars whole = {0}, bytewise = {0};
        job_chars_add(&whole, c[i].bytes, strlen(c[i].bytes));
        for (const char *s = c[i].bytes; *s; s++) job_chars_add(&bytewise, s, 1);
        assert_int_equal(whole.n, c[i].n);
        assert_int_equal(bytewise.n, c[i].n);
    }
}

static void test_failures(void **state)
{
    (void)state;
    const job_model m = model(BOS);
    char *text[2];
    for (int order = 0; order < 2; order++) {
        job *j = open_body(false, "\"prompt\":\"x\",\"n\":2", &m);
        for (int k = 0; k < 2; k++) {
            int s = order ? 1 - k : k;
            const char *why = s ? "non-finite logits at position 5" : "non-finite logits at 9";
            assert_false(job_done(j));
            corun_event e = {.kind = CORUN_EVENT_FAILED,
                             .sample = s,
                             .text = why,
                             .text_len = strlen(why),
                             .status = CORUN_EFORMAT};
            assert_int_equal(job_event(j, 0, &e), CORUN_OK);
        }
        assert_int_equal(j->http, 500);
        json_t *row = row_of(j, &m, &text[order]);
        expect(row, "response/status_code", "500");
        expect(row, "response/body/error/message", "\"non-finite logits at 9\"");
        expect(row, "response/body/error/type", "\"server_error\"");
        json_decref(row);
        job_free(j);
    }
    assert_string_equal(text[0], text[1]);
    free(text[0]);
    free(text[1]);
}

/* The order in which events of choices and prompts come does not reach the row; nor does the line
 * number. Prompt-major indices, seeds of samples, no clock. */
static void test_order(void **state)
{
    (void)state;
    const job_model m = model(BOS);
    char *text[2];
    for (int order = 0; order < 2; order++) {
        job *j;
        const char *line = "{\"custom_id\":\"\\u0000z\",\"method\":\"POST\",\"url\":"
                           "\"/v1/completions\",\"body\":{\"model\":\"m\",\"prompt\":[\"a\","
                           "\"b\"],\"n\":2,\"logprobs\":1}}";
        assert_int_equal(openai_open(&j, line, strlen(line), order ? 99 : 1), CORUN_OK);
        assert_int_equal(openai_prepare(j, &m), CORUN_OK);
        for (int k = 0; k < 4; k++) {
            int c = order ? 3 - k : k;
            char piece[2] = {(char)('p' + c), 0};
            feed_token(j, (size_t)c / 2, c % 2, 0, 'p' + c, piece, 1);
            feed_done(j, (size_t)c / 2, c % 2, CORUN_FINISH_STOP, 1, -1);
        }
        json_t *row = row_of(j, &m, &text[order]);
        expect(row, "response/body/created", "0");
        expect(row, "response/body/system_fingerprint", "\"f00d\"");
        expect(row, "response/body/choices/2/text", "\"r\"");
        expect(row, "response/body/choices/2/index", "2");
        expect(row, "response/body/corun/sampling/max_tokens", "16");
        assert_null(at(row, "line"));
        uint64_t seed = (uint64_t)json_integer_value(at(row, "response/body/corun/seed"));
        assert_int_equal(json_integer_value(at(row, "response/body/choices/1/seed")),
                         corun_seed_sample(seed, 1));
        json_decref(row);
        job_free(j);
    }
    assert_string_equal(text[0], text[1]);
    free(text[0]);
    free(text[1]);
}

static void test_prompt_logprobs(void **state)
{
    (void)state;
    const job_model m = model(-1);
    job *j = open_body(false, "\"prompt\":\"ab\",\"prompt_logprobs\":2,\"max_tokens\":0", &m);
    feed_prompt(j, 0, 2);
    feed_done(j, 0, 0, CORUN_FINISH_LENGTH, 0, -1);
    json_t *row = row_of(j, &m, NULL);
    expect(row, "response/body/choices/0/prompt_logprobs/1/98",
           "{\"logprob\":-0.25,\"rank\":1,\"decoded_token\":\"b\"}");
    expect(row, "response/body/choices/0/prompt_logprobs/1/116",
           "{\"logprob\":-1.25,\"rank\":2,\"decoded_token\":\"t\"}");
    expect(row, "response/body/choices/0/prompt_logprobs/0", "null");
    json_decref(row);
    job_free(j);
}

/* Two ids of one text are one key, with the larger value; -inf is -9999. */
static void test_same_text(void **state)
{
    (void)state;
    const job_model m = model(BOS);
    job *j = open_body(false, "\"prompt\":\"x\",\"logprobs\":2", &m);
    corun_event e = {.kind = CORUN_EVENT_TOKEN,
                     .token = 271, /* no text */
                     .logprob = -3,
                     .n_top = 2,
                     .top_id = {270, 'a'},
                     .top_logprob = {-1, -INFINITY},
                     .text = ""};
    assert_int_equal(job_event(j, 0, &e), CORUN_OK);
    feed_done(j, 0, 0, CORUN_FINISH_LENGTH, 1, -1);
    json_t *row = row_of(j, &m, NULL);
    expect(row, "response/body/choices/0/logprobs/top_logprobs", "[{\"\":-1.0,\"a\":-9999.0}]");
    json_decref(row);
    job_free(j);
}

/* ---- chat ------------------------------------------------------------------------------------ */

static void test_messages(void **state)
{
    (void)state;
    const job_model m = model(BOS);
    static const struct {
        const char *body;
        const char *error; /* or NULL and ... */
        const char *seen;  /* ... a part of what the template gets */
    } c[] = {
        {"\"messages\":[]", "the list is empty", NULL},
        {"\"messages\":null", "messages: missing", NULL},
        {"\"messages\":{}", "must be a list", NULL},
        {"\"messages\":[5]", "is no object", NULL},
        {"\"messages\":[{\"content\":\"x\"}]", "has no role", NULL},
        {"\"messages\":[{\"role\":\"wizard\",\"content\":\"x\"}]", "unknown role \"wizard\"", NULL},
        {"\"messages\":[{\"role\":\"user\"}]", "has no content", NULL},
        {"\"messages\":[{\"role\":\"user\",\"content\":null}]", "has no content", NULL},
        {"\"messages\":[{\"role\":\"user\",\"content\":5}]", "is no text", NULL},
        {"\"messages\":[{\"role\":\"user\",\"content\":\"x\",\"audio\":{}}]", "audio", NULL},
        {"\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\","
         "\"image_url\":{}}]}]",
         "type \"image_url\"", NULL},
        {"\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"A\"},"
         "{\"type\":\"text\",\"text\":\"B\"}]}]",
         NULL, "[{\"type\":\"text\",\"text\":\"A\"},{\"type\":\"text\",\"text\":\"B\"}]"},
        {"\"messages\":[{\"role\":\"user\",\"content\":\"explode\"}]", "raised explode", NULL},
        {"\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\","
         "\"content\":null,\"tool_calls\":[{\"id\":\"1\",\"type\":\"function\",\"function\":"
         "{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":1}\"}}]}]",
         NULL, "\"content\":\"\""},
        {"\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\","
         "\"arguments\":\"{\\\"a\\\": 1}\"}}]}]",
         NULL, "\"arguments\":{\"a\":1}"},
        {"\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\","
         "\"arguments\":\"\"}}]}]",
         NULL, "\"arguments\":{}"},
        {"\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\","
         "\"arguments\":null}}]}]",
         NULL, "\"arguments\":{}"},
        {"\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\","
         "\"arguments\":\"5\"}}]}]",
         "are no object", NULL},
        {"\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\","
         "\"arguments\":\"{bad\"}}]}]",
         "arguments of a tool call", NULL},
        {"\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{\"function\":{\"name\":\"f\","
         "\"arguments\":\"{\\\"a\\\":1,\\\"a\\\":2}\"}}]}]",
         "arguments of a tool call", NULL},
        {"\"messages\":[{\"role\":\"assistant\",\"content\":\"x\",\"tool_calls\":[]}]", NULL,
         "[{\"role\":\"assistant\",\"content\":\"x\"}]"},
        {"\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"chat_template_kwargs\":"
         "{\"enable_thinking\":false},\"reasoning_effort\":\"low\"",
         NULL, "{\"enable_thinking\":false,\"reasoning_effort\":\"low\"}"},
        {"\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]", NULL,
         "\"add_generation_prompt\":true"},
        {"\"messages\":[{\"role\":\"assistant\",\"content\":\"x\"}],\"continue_final_message\":"
         "true",
         NULL, "\"add_generation_prompt\":false,\"continue_final_message\":true"},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        the_fake.seen[0] = 0;
        job *j = open_body(true, c[i].body, &m);
        if (c[i].error ? j->http != 400 || !strstr(j->message, c[i].error) : j->http != 200)
            fail_msg("%s: %d %s", c[i].body, j->http, j->message ? j->message : "");
        if (c[i].seen && !strstr(the_fake.seen, c[i].seen)) fail_msg("%s", the_fake.seen);
        job_free(j);
    }
}

static void test_chat_row(void **state)
{
    (void)state;
    const job_model m = model(BOS);
    job *j = open_body(true,
                       "\"messages\":[{\"role\":\"user\",\"content\":\"q\"},{\"role\":"
                       "\"assistant\",\"content\":\"Once\"}],\"continue_final_message\":true,"
                       "\"echo\":true",
                       &m);
    assert_int_equal(j->prompt->n_token, 4); /* no bos: the template's text is complete */
    assert_int_equal(j->prompt->max_tokens, 60);
    feed_token(j, 0, 0, 0, 'u', " upon", 0);
    feed_token(j, 0, 0, 1, EOS, "", 0);
    feed_done(j, 0, 0, CORUN_FINISH_STOP, 2, -1);
    json_t *row = row_of(j, &m, NULL);
    expect(row, "response/body/object", "\"chat.completion\"");
    expect(row, "response/body/choices/0/message",
           "{\"role\":\"assistant\",\"content\":\"Once upon\",\"refusal\":null}");
    expect(row, "response/body/choices/0/stop_reason", "null");
    json_decref(row);
    job_free(j);
}

/* ---- scoring --------------------------------------------------------------------------------- */

static void test_score(void **state)
{
    (void)state;
    const job_model m = model(-1);
    static const struct {
        const char *line;
        const char *error;
    } c[] = {{"{\"text\":\"ab\"}", NULL},
             {"{\"tokens\":[97,98],\"custom_id\":\"k\",\"top_logprobs\":1}", NULL},
             {"{\"tokens\":[97],\"text\":\"a\"}", "one of text and tokens"},
             {"{\"tokens\":[272]}", "id 272"},
             {"{\"tokens\":[]}", "no token"},
             {"{\"text\":\"\"}", "no token"},
             {"{\"text\":5}", "text: must be a string"},
             {"{\"other\":5}", "no such field"},
             {"nonsense", "JSON"}};
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        job *j;
        assert_int_equal(score_open(&j, c[i].line, strlen(c[i].line), 3), CORUN_OK);
        assert_int_equal(score_prepare(j, &m), CORUN_OK);
        buf b;
        buf_init(&b, 1 << 20);
        if (c[i].error) {
            if (j->http != 400 || !strstr(j->message, c[i].error)) fail_msg("%s", c[i].line);
        } else {
            assert_int_equal(j->http, 200);
            assert_int_equal(j->prompt->max_tokens, 0);
            feed_prompt(j, 0, j->s.prompt_logprobs);
            feed_done(j, 0, 0, CORUN_FINISH_LENGTH, 0, -1);
        }
        assert_int_equal(score_write(j, &m, &b), CORUN_OK);
        if (i == 1)
            assert_string_equal(b.data,
                                "{\"custom_id\":\"k\",\"tokens\":[97,98],\"token_logprobs\":[null,"
                                "-0.25],\"top_logprobs\":[null,[[98,-0.25]]],\"sum_logprob\":-0.25,"
                                "\"system_fingerprint\":\"f00d\",\"error\":null}\n");
        buf_free(&b);
        job_free(j);
    }
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Whichever allocation fails, nothing breaks: out of memory is reported or not needed. */
static void test_memory(void **state)
{
    (void)state;
    const job_model m = model(BOS);
    const char *line = "{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/completions\","
                       "\"body\":{\"model\":\"m\",\"prompt\":[\"The is\",\"b\"],\"echo\":true,"
                       "\"logprobs\":1,\"stop\":[\"q\"],\"bad_words\":[\"w\"],"
                       "\"logit_bias\":{\"5\":1},\"stop_token_ids\":[1]}}";
    int failed = 0;
    for (uint64_t n = 1; n < 60; n++) {
        job *j = NULL;
        buf b;
        buf_init(&b, 1 << 20);
        mem_fail_at(n);
        corun_status st = openai_open(&j, line, strlen(line), 1);
        if (st == CORUN_OK) st = openai_prepare(j, &m);
        if (st == CORUN_OK && j->http == 200) {
            for (size_t p = 0; p < 2 && st == CORUN_OK; p++) {
                corun_event e = {
                    .kind = CORUN_EVENT_TOKEN, .token = 'x', .text = "x", .text_len = 1};
                st = job_event(j, p, &e);
                e.kind = CORUN_EVENT_DONE;
                if (st == CORUN_OK) st = job_event(j, p, &e);
            }
            if (st == CORUN_OK) st = openai_write(j, &m, &b);
        }
        mem_fail_at(0);
        failed += st == CORUN_ENOMEM;
        if (st != CORUN_OK) assert_int_equal(st, CORUN_ENOMEM);
        job_free(j);
        buf_free(&b);
    }
    assert_true(failed > 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_echo),          cmocka_unit_test(test_echo_bos),
        cmocka_unit_test(test_logprob_forms), cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_chars),         cmocka_unit_test(test_failures),
        cmocka_unit_test(test_order),         cmocka_unit_test(test_prompt_logprobs),
        cmocka_unit_test(test_same_text),     cmocka_unit_test(test_messages),
        cmocka_unit_test(test_chat_row),      cmocka_unit_test(test_score),
        cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
