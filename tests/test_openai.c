/* test_openai.c - batch lines and their fields without an engine: what is accepted, what is refused
 * and why, prompts, seeds. Each table row is a line that real clients or attackers send. */
#include "openai_fake.h"

/* ---- lines that are no requests ------------------------------------------------------------- */

static void test_bad_lines(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "",
        "x",
        "[]",
        "{}",
        "{\"custom_id\":\"a\"",
        "\xef\xbb\xbf{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/"
        "completions\",\"body\":{\"model\":\"m\",\"prompt\":\"x\"}}",
        "{\"custom_id\":\"a\",\"custom_id\":\"b\",\"method\":\"POST\",\"url\":\"/v1/"
        "completions\",\"body\":{\"model\":\"m\",\"prompt\":\"x\"}}",
        "{\"custom_id\":1,\"method\":\"POST\",\"url\":\"/v1/"
        "completions\",\"body\":{\"model\":\"m\",\"prompt\":\"x\"}}",
        "{\"custom_id\":\"a\",\"method\":\"GET\",\"url\":\"/v1/"
        "completions\",\"body\":{\"model\":\"m\",\"prompt\":\"x\"}}",
        "{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/"
        "embeddings\",\"body\":{\"model\":\"m\",\"prompt\":\"x\"}}",
        "{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/completions\",\"body\":[]}",
        "{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/"
        "completions\",\"body\":{\"model\":\"m\",\"prompt\":\"x\"},\"more\":1}",
        "{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/"
        "completions\",\"body\":{\"model\":\"m\",\"prompt\":\"x\",}}",
        "{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/"
        "completions\",\"body\":{\"model\":\"m\",\"prompt\":\"x\"}} {}",
        "{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/"
        "completions\",\"body\":{\"model\":\"m\",\"prompt\":\"\\ud83d\"}}",
        "{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/"
        "completions\",\"body\":{\"model\":\"m\",\"prompt\":\"\\ude00\"}}",
        "{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/"
        "completions\",\"body\":{\"model\":\"m\",\"prompt\":\"\xff\"}}",
        "{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/"
        "completions\",\"body\":{\"model\":\"m\",\"prompt\":\"\xc0\x80\"}}",
        "{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/"
        "completions\",\"body\":{\"model\":\"m\",\"prompt\":\"\xed\xa0\x80\"}}",
        "{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/"
        "completions\",\"body\":{\"model\":\"m\",\"prompt\":\"x\",\"a\\u0000b\":1}}",
        "{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/"
        "completions\",\"body\":{\"model\":\"m\",\"prompt\":\"x\",\"temperature\":NaN}}",
        "{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/"
        "completions\",\"body\":{\"prompt\":\"x\"}}",
    };
    const job_model m = model(BOS);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        job *j = open_line(bad[i], &m);
        if (j->http != 400) fail_msg("accepted: %s", bad[i]);
        assert_true(job_done(j));
        json_t *row = row_of(j, &m, NULL); /* reads back: valid UTF-8 */
        expect(row, "response/status_code", "400");
        expect(row, "response/body/error/type", "\"invalid_request_error\"");
        expect(row, "error", "null");
        assert_true(!at(row, "line") == json_is_string(at(row, "custom_id")));
        json_decref(row);
        job_free(j);
    }
}

static void test_deep(void **state)
{
    (void)state;
    static const char *const frame[] = {"\"user\":%s", "\"tools\":[{\"type\":\"function\","
                                                       "\"function\":{\"name\":\"f\","
                                                       "\"parameters\":%s}}]"};
    const job_model m = model(BOS);
    for (size_t k = 0; k < 2; k++)
        for (int depth = 2000; depth <= 10000; depth += 8000) {
            char *nest = malloc(2 * (size_t)depth + 1), *body, *line;
            memset(nest, '[', (size_t)depth);
            memset(nest + depth, ']', (size_t)depth);
            nest[2 * depth] = 0;
            assert_true(asprintf(&body, frame[k], nest) > 0);
            assert_true(asprintf(&line,
                                 "{\"custom_id\":\"a\",\"method\":\"POST\","
                                 "\"url\":\"/v1/chat/completions\",\"body\":{\"model\":\"m\","
                                 "\"messages\":[{\"role\":\"user\",\"content\":\"q\"}],%s}}",
                                 body) > 0);
            job *j = open_line(line, &m);
            assert_int_equal(j->http, depth == 2000 ? 200 : 400);
            job_free(j);
            free(nest);
            free(body);
            free(line);
        }
}

/* The pair of surrogates and NUL are text. */
static void test_text_kept(void **state)
{
    (void)state;
    const job_model m = model(BOS);
    job *j =
        open_body(false, "\"prompt\":\"\\ud83d\\ude00a\\u0000b\",\"add_special_tokens\":false", &m);
    static const int32_t want[] = {266, 0x98, 0x80, 'a', 0, 'b'};
    assert_int_equal(j->http, 200);
    assert_int_equal(j->prompt->n_token, 6);
    assert_memory_equal(j->prompt->token, want, sizeof want);
    job_free(j);
}

/* ---- fields --------------------------------------------------------------------------------- */

typedef struct body_case {
    int chat; /* 0 completions, 1 chat */
    const char *body;
    const char *error; /* part of the message; NULL: accepted */
} body_case;

static const body_case body_cases[] = {
    {0, "\"prompt\":\"x\"", NULL},
    {0, "", "prompt: missing"},
    {0, "\"prompt\":5", "prompt: must be"},
    {0, "\"prompt\":{}", "prompt: must be"},
    {0, "\"prompt\":[\"x\",5]", "another kind"},
    {0, "\"prompt\":[5,\"x\"]", "not an integer"},
    {0, "\"prompt\":[\"x\",\"y\"]", NULL},
    {0, "\"prompt\":[[1],[2,3]]", NULL},
    /* ids from outside (API-4) */
    {0, "\"prompt\":[-1]", "token id -1 is not in 0 ... 271"},
    {0, "\"prompt\":[272]", "token id 272"},
    {0, "\"prompt\":[4294967294]", "token id 4294967294"},
    {0, "\"prompt\":[1.5]", "not an integer"},
    {0, "\"prompt\":[16.0]", NULL},
    {0, "\"prompt\":[true]", "not an integer"},
    {0, "\"prompt\":[271]", NULL},
    {0, "\"prompt\":[]", NULL},
    {0, "\"prompt\":[[]]", NULL},
    {0, "\"prompt\":\"\"", NULL},
    {0, "\"prompt\":[\"\"]", NULL},
    {0, "\"prompt\":\"x\",\"stop_token_ids\":[272]", "stop_token_ids: token id 0: 272"},
    {0, "\"prompt\":\"x\",\"stop_token_ids\":[-1]", "stop_token_ids"},
    {0, "\"prompt\":\"x\",\"stop_token_ids\":[3,\"4\"]", "stop_token_ids: token id 1"},
    {0, "\"prompt\":\"x\",\"stop_token_ids\":[]", NULL},
    {0, "\"prompt\":\"x\",\"allowed_token_ids\":[272]", "allowed_token_ids"},
    {0, "\"prompt\":\"x\",\"allowed_token_ids\":[]", "the list is empty"},
    {0, "\"prompt\":\"x\",\"logit_bias\":{\"272\":1}", "logit_bias: token id 272"},
    {0, "\"prompt\":\"x\",\"logit_bias\":{\"-1\":1}", "is not a token id"},
    {0, "\"prompt\":\"x\",\"logit_bias\":{\"1.5\":1}", "is not a token id"},
    {0, "\"prompt\":\"x\",\"logit_bias\":{\"abc\":1}", "is not a token id"},
    {0, "\"prompt\":\"x\",\"logit_bias\":{\"\":1}", "is not a token id"},
    {0, "\"prompt\":\"x\",\"logit_bias\":{\"05\":1}", "is not a token id"},
    {0, "\"prompt\":\"x\",\"logit_bias\":{\"99999999999999999999\":1}", "is not a token id"},
    {0, "\"prompt\":\"x\",\"logit_bias\":{\"5\":\"x\"}", "not a number"},
    {0, "\"prompt\":\"x\",\"logit_bias\":{\"5\":101}", "101 for 5"},
    {0, "\"prompt\":\"x\",\"logit_bias\":{\"5\":-100,\"271\":100}", NULL},
    {0, "\"prompt\":\"x\",\"logit_bias\":{}", NULL},
    {0, "\"prompt\":\"x\",\"logit_bias\":null", NULL},
    {0, "\"prompt\":\"x\",\"logit_bias\":[1]", "logit_bias: must be an object"},
    /* logprobs 0 is not null (API-6) */
    {0, "\"prompt\":\"x\",\"logprobs\":null", NULL},
    {0, "\"prompt\":\"x\",\"logprobs\":0", NULL},
    {0, "\"prompt\":\"x\",\"logprobs\":1", NULL},
    {0, "\"prompt\":\"x\",\"logprobs\":-1", "logprobs: -1 is not in 0 ... 20"},
    {0, "\"prompt\":\"x\",\"logprobs\":21", "logprobs: 21"},
    {0, "\"prompt\":\"x\",\"logprobs\":true", "logprobs: must be an integer"},
    {0, "\"prompt\":\"x\",\"top_logprobs\":1", "top_logprobs: this field"},
    {1, "\"logprobs\":true", NULL},
    {1, "\"logprobs\":true,\"top_logprobs\":null", NULL},
    {1, "\"logprobs\":true,\"top_logprobs\":0", NULL},
    {1, "\"logprobs\":true,\"top_logprobs\":2", NULL},
    {1, "\"logprobs\":true,\"top_logprobs\":21", "top_logprobs: 21"},
    {1, "\"logprobs\":false,\"top_logprobs\":2", "needs logprobs true"},
    {1, "\"top_logprobs\":0", "needs logprobs true"},
    {1, "\"logprobs\":5", "logprobs: must be true or false"},
    /* numbers and types */
    {0, "\"prompt\":\"x\",\"temperature\":-0.1", "temperature: -0.1 is not in 0 ... 2"},
    {0, "\"prompt\":\"x\",\"temperature\":2.1", "temperature"},
    {0, "\"prompt\":\"x\",\"temperature\":\"1\"", "temperature: must be a number"},
    {0, "\"prompt\":\"x\",\"temperature\":true", "temperature: must be a number"},
    {0, "\"prompt\":\"x\",\"temperature\":1e-45", NULL},
    {0, "\"prompt\":\"x\",\"temperature\":1e999", "JSON"},
    {0, "\"prompt\":\"x\",\"top_p\":0", NULL},
    {0, "\"prompt\":\"x\",\"top_p\":1.0001", "top_p"},
    {0, "\"prompt\":\"x\",\"min_p\":-1", "min_p"},
    {0, "\"prompt\":\"x\",\"top_k\":-1", NULL},
    {0, "\"prompt\":\"x\",\"top_k\":-2", "top_k: -2"},
    {0, "\"prompt\":\"x\",\"top_k\":1000000000000", NULL},
    {0, "\"prompt\":\"x\",\"top_k\":1.5", "top_k: must be an integer"},
    {0, "\"prompt\":\"x\",\"repetition_penalty\":0", "repetition_penalty"},
    {0, "\"prompt\":\"x\",\"presence_penalty\":2.5", "presence_penalty"},
    {0, "\"prompt\":\"x\",\"frequency_penalty\":-2.5", "frequency_penalty"},
    {0, "\"prompt\":\"x\",\"n\":0", "n: 0 is not in 1 ... 128"},
    {0, "\"prompt\":\"x\",\"n\":129", "n: 129"},
    {0, "\"prompt\":\"x\",\"n\":1e300", "n: must be an integer"},
    {0, "\"prompt\":\"x\",\"n\":128", NULL},
    {0, "\"prompt\":\"x\",\"seed\":9223372036854775807", NULL},
    {0, "\"prompt\":\"x\",\"seed\":9223372036854775808", "JSON"},
    {0, "\"prompt\":\"x\",\"seed\":-1", NULL},
    {0, "\"prompt\":\"x\",\"seed\":-2", "seed: -2 is negative"},
    {0, "\"prompt\":\"x\",\"seed\":\"5\"", "seed: must be an integer"},
    {0, "\"prompt\":\"x\",\"max_tokens\":-1", "max_tokens: -1"},
    {0, "\"prompt\":\"x\",\"max_tokens\":0", NULL},
    {0, "\"prompt\":\"x\",\"max_tokens\":62", NULL},
    {0, "\"prompt\":\"x\",\"max_tokens\":63", "maximum context length is 64 tokens"},
    {0, "\"prompt\":\"x\",\"max_tokens\":99999999999",
     "you requested 100000000001 tokens (2 in the prompt, 99999999999 for the answer)"},
    {0, "\"prompt\":\"x\",\"max_tokens\":9223372036854775807",
     "you requested 9223372036854775809 tokens"},
    {1, "\"max_completion_tokens\":99999999999", "99999999999 for the answer"},
    {0, "\"prompt\":\"x\",\"max_completion_tokens\":5", "max_completion_tokens: this field"},
    {0, "\"prompt\":\"x\",\"min_tokens\":17", "min_tokens: 17 is more than the 16"},
    {0, "\"prompt\":\"x\",\"min_tokens\":17,\"max_tokens\":20", NULL},
    {1, "\"max_tokens\":5,\"max_completion_tokens\":6", NULL},
    {0, "\"prompt\":\"x\",\"best_of\":1", NULL},
    {0, "\"prompt\":\"x\",\"best_of\":2", "best_of"},
    {0, "\"prompt\":\"x\",\"n\":2,\"best_of\":2", NULL},
    {0, "\"prompt\":\"x\",\"suffix\":\"y\"", "suffix"},
    {0, "\"prompt\":\"x\",\"suffix\":null", NULL},
    {0, "\"prompt\":\"x\",\"stream\":false", NULL},
    {0, "\"prompt\":\"x\",\"stream\":true", "stream: a batch cannot"},
    {0, "\"prompt\":\"x\",\"stream_options\":{\"include_usage\":true}", "stream_options"},
    {0, "\"prompt\":\"x\",\"stop\":\"\"", "string 0 is empty"},
    {0, "\"prompt\":\"x\",\"stop\":[\"a\",\"\"]", "string 1 is empty"},
    {0, "\"prompt\":\"x\",\"stop\":[]", NULL},
    {0, "\"prompt\":\"x\",\"stop\":[\"a\",5]", "stop: must be"},
    {0, "\"prompt\":\"x\",\"stop\":5", "stop: must be"},
    {0, "\"prompt\":\"x\",\"bad_words\":[\"\"]", "bad_words: word 0"},
    {0, "\"prompt\":\"x\",\"bad_words\":\"w\"", "bad_words: must be a list"},
    {0, "\"prompt\":\"x\",\"truncate_prompt_tokens\":0", "truncate_prompt_tokens"},
    {0, "\"prompt\":\"x\",\"echo\":1", "echo: must be true or false"},
    {0, "\"prompt\":\"x\",\"unknown\":null", "unknown: this field is not supported"},
    {0, "\"prompt\":\"x\",\"user\":5,\"metadata\":{},\"priority\":3", NULL},
    {0, "\"prompt\":\"x\",\"response_format\":{\"type\":\"text\"}", NULL},
    {0, "\"prompt\":\"x\",\"response_format\":{\"type\":\"json_object\"}", "response_format"},
    {0, "\"prompt\":\"x\",\"guided_json\":{}", "guided_json"},
    {0, "\"prompt\":\"x\",\"structured_outputs\":{}", "structured_outputs"},
    /* chat */
    {1, "\"prompt\":\"x\"", "prompt: this field"},
    {1, "\"suffix\":null", "suffix: this field"},
    {1, "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]", NULL},
    {1, "\"tools\":[{\"type\":\"web\"}]", "tools: tool 0"},
    {1, "\"tool_choice\":\"auto\"", NULL},
    {1, "\"tool_choice\":\"required\"", "tool_choice"},
    {1, "\"tool_choice\":{\"type\":\"function\"}", "tool_choice"},
    {1, "\"parallel_tool_calls\":true", NULL},
    {1, "\"continue_final_message\":true", NULL},
    {1, "\"continue_final_message\":true,\"add_generation_prompt\":false", NULL},
    {1, "\"continue_final_message\":true,\"add_generation_prompt\":true", "exclude each other"},
    {1, "\"chat_template_kwargs\":[]", "chat_template_kwargs"},
    {1, "\"reasoning_effort\":\"low\"", NULL},
    {1, "\"functions\":[]", "functions"},
    {1, "\"modalities\":[\"text\"]", "modalities"},
};

/* A message that begins with a field's name, and the row's param, name the same one. */
static void check_param(const json_t *row)
{
    const json_t *body = json_object_get(json_object_get(row, "response"), "body");
    const json_t *error = json_object_get(body, "error");
    const char *message = json_string_value(json_object_get(error, "message"));
    const char *param = json_string_value(json_object_get(error, "param"));
    size_t n = strcspn(message, ": ");
    if (message[n] != ':' || strncmp(message, "request:", 8) == 0) return; /* no JSON */
    if (!param || strlen(param) != n || strncmp(message, param, n) != 0)
        fail_msg("%s: param is %s", message, param ? param : "null");
}

static void test_bodies(void **state)
{
    (void)state;
    const job_model m = model(BOS);
    for (size_t i = 0; i < sizeof body_cases / sizeof *body_cases; i++) {
        const body_case *c = &body_cases[i];
        char body[2048];
        snprintf(body, sizeof body, "%s%s", c->body,
                 c->chat ? ",\"messages\":[{\"role\":\"user\",\"content\":\"q\"}]" : "");
        job *j = open_body(c->chat, body, &m);
        if (c->error ? j->http != 400 || !strstr(j->message, c->error) : j->http != 200)
            fail_msg("%s: %d %s", c->body, j->http, j->message ? j->message : "");
        json_t *row = j->http == 200 ? NULL : row_of(j, &m, NULL);
        if (row) check_param(row);
        json_decref(row);
        job_free(j);
    }
}

static void test_many(void **state)
{
    (void)state;
    const job_model m = model(BOS);
    static const struct {
        const char *open, *item, *close;
        int n;
        int http;
    } c[] = {
        {"\"prompt\":\"x\",\"stop\":[", "\"s%d\"", "]", 64, 200},
        {"\"prompt\":\"x\",\"stop\":[", "\"s%d\"", "]", 5000, 400},
        {"\"prompt\":\"x\",\"logit_bias\":{", "\"%d\":1", "}", 100000, 400},
        {"\"prompt\":[", "\"p%d\"", "]", 4096, 200},
        {"\"prompt\":[", "\"p%d\"", "]", 4097, 400},
        {"\"n\":2,\"prompt\":[", "\"p%d\"", "]", 4096, 400},
        {"\"prompt\":\"x\",\"bad_words\":[", "\"w%d\"", "]", 257, 400},
    };
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        buf b;
        buf_init(&b, 1 << 24);
        buf_printf(&b,
                   "{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/completions\","
                   "\"body\":{\"model\":\"m\",%s",
                   c[i].open);
        for (int k = 0; k < c[i].n; k++) {
            char item[64];
            snprintf(item, sizeof item, "%s", k ? "," : "");
            buf_puts(&b, item);
            if (strstr(c[i].item, "\"s"))
                snprintf(item, sizeof item, "\"s%d\"", k);
            else if (strstr(c[i].item, "\"p"))
                snprintf(item, sizeof item, "\"p%d\"", k);
            else if (strstr(c[i].item, "\"w"))
                snprintf(item, sizeof item, "\"w%d\"", k);
            else
                snprintf(item, sizeof item, "\"%d\":1", k);
            buf_puts(&b, item);
        }
        buf_printf(&b, "%s}}", c[i].close);
        job *j = open_line(b.data, &m);
        if (j->http != c[i].http) fail_msg("case %zu: %s", i, j->message ? j->message : "");
        job_free(j);
        buf_free(&b);
    }
}

static void test_empty_prompt(void **state)
{
    (void)state;
    static const char *const empty[] = {"\"prompt\":\"\"", "\"prompt\":[\"\"]", "\"prompt\":[]",
                                        "\"prompt\":[[]]"};
    for (size_t i = 0; i < 4; i++) {
        job_model m = model(BOS);
        job *j = open_body(false, empty[i], &m);
        assert_int_equal(j->http, 200);
        assert_int_equal(j->prompt->n_token, 1);
        assert_int_equal(j->prompt->token[0], BOS);
        job_free(j);
        m = model(-1);
        j = open_body(false, empty[i], &m);
        assert_int_equal(j->http, 400);
        assert_non_null(strstr(j->message, "no bos token"));
        job_free(j);
    }
}

static void test_model_name(void **state)
{
    (void)state;
    job_model m = model(BOS);
    m.served_name = "m";
    job *j = open_body(false, "\"prompt\":\"x\"", &m);
    assert_int_equal(j->http, 200);
    job_free(j);
    m.served_name = "other";
    j = open_body(false, "\"prompt\":\"x\"", &m);
    assert_int_equal(j->http, 404);
    json_t *row = row_of(j, &m, NULL);
    expect(row, "response/body/error/code", "\"model_not_found\"");
    expect(row, "response/body/error/param", "\"model\"");
    json_decref(row);
    job_free(j);
}

static void test_context(void **state)
{
    (void)state;
    const job_model m = model(-1);
    char body[256], x[80];
    static const struct {
        int len;
        const char *more;
        int max; /* -1: error */
    } c[] = {{60, "", 4},
             {64, "", -1},
             {65, "", -1},
             {63, "", 1},
             {64, ",\"max_tokens\":0", 0},
             {65, ",\"max_tokens\":0", -1},
             {70, ",\"truncate_prompt_tokens\":10", 16},
             {48, "", 16}};
    for (size_t i = 0; i < sizeof c / sizeof *c; i++) {
        memset(x, 'x', sizeof x);
        snprintf(body, sizeof body, "\"prompt\":\"%.*s\"%s", c[i].len, x, c[i].more);
        job *j = open_body(false, body, &m);
        assert_int_equal(j->http, c[i].max < 0 ? 400 : 200);
        if (c[i].max >= 0) assert_int_equal(j->prompt->max_tokens, c[i].max);
        job_free(j);
    }
}

static void test_truncate(void **state)
{
    (void)state;
    const job_model m = model(BOS);
    job *j = open_body(false, "\"prompt\":\"abcd\",\"truncate_prompt_tokens\":2", &m);
    assert_int_equal(j->prompt->n_token, 2);
    assert_int_equal(j->prompt->token[0], 'c');
    assert_int_equal(j->prompt->token[1], 'd');
    job_free(j);
}

static void test_bad_words(void **state)
{
    (void)state;
    const job_model m = model(BOS);
    /* "ab": itself only (with a space it has three tokens). " France" is one token with its space
     * and six without; "y" and " y" differ in length too. */
    job *j = open_body(false, "\"prompt\":\"x\",\"bad_words\":[\"ab\",\" France\",\"The\"]", &m);
    assert_int_equal(j->http, 200);
    assert_int_equal(j->s.n_bad, 3);
    assert_int_equal(j->s.bad_len[0], 2);
    assert_int_equal(j->s.bad_len[1], 6);
    assert_int_equal(j->s.bad_len[2], 1);
    assert_int_equal(j->s.bad_id[8], THE);
    job_free(j);
}

/* ---- seeds and digests ---------------------------------------------------------------------- */

static void test_seed(void **state)
{
    (void)state;
    const job_model m = model(BOS);
    static const char *const same[] = {
        "\"prompt\":\"ab\",\"max_tokens\":4", "\"max_tokens\":4.0,\"prompt\":\"\\u0061b\"",
        "\"prompt\":\"ab\",\"user\":\"u\",\"max_tokens\":4,\"metadata\":{\"k\":[1]}"};
    for (size_t i = 0; i < 3; i++) {
        job *j = open_body(false, same[i], &m);
        char hex[33];
        digest_hex(j->id, hex);
        assert_string_equal(hex, "c7e85e0a550bded1ef72e69a42b76579");
        assert_int_equal(j->prompt->seed, 8424856773744364u);
        job_free(j);
    }
    job *j = open_body(false, "\"prompt\":\"ab\",\"max_tokens\":5", &m);
    assert_int_not_equal(j->prompt->seed, 8424856773744364u);
    job_free(j);
    j = open_body(false, "\"prompt\":[\"a\",\"a\"],\"seed\":5", &m);
    assert_int_equal(j->prompt[0].seed, 5);
    assert_int_equal(j->prompt[1].seed, 5);
    job_free(j);
    j = open_body(false, "\"prompt\":[\"a\",\"a\"]", &m);
    assert_int_equal(j->prompt[1].seed, corun_seed_sample(j->prompt[0].seed, 1));
    assert_int_not_equal(j->prompt[0].seed, j->prompt[1].seed);
    job_free(j);
    /* No two of all choices have one seed. */
    j = open_body(false, "\"prompt\":[\"a\",\"a\",\"a\"],\"n\":3", &m);
    uint64_t seen[9];
    for (int32_t i = 0; i < 9; i++) {
        seen[i] = corun_seed_sample(j->prompt[i / 3].seed, i % 3);
        for (int32_t k = 0; k < i; k++) assert_int_not_equal(seen[k], seen[i]);
    }
    job_free(j);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_lines),  cmocka_unit_test(test_deep),
        cmocka_unit_test(test_text_kept),  cmocka_unit_test(test_bodies),
        cmocka_unit_test(test_many),       cmocka_unit_test(test_empty_prompt),
        cmocka_unit_test(test_model_name), cmocka_unit_test(test_context),
        cmocka_unit_test(test_truncate),   cmocka_unit_test(test_bad_words),
        cmocka_unit_test(test_seed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
