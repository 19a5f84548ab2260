/* Streamed answers over a model of plain functions: their chunks, put together, are the whole
 * answer, field by field; and the job of an HTTP request is the one of the batch line. */
#include "openai_fake.h"
#include "openai_join.h"

static job *open_http(bool chat, const char *body, const job_model *m)
{
    char text[8192];
    job *j;
    snprintf(text, sizeof text, "{\"model\":\"m\",\"stream\":true%s%s}", *body ? "," : "", body);
    assert_int_equal(openai_http_open(&j, chat ? JOB_CHAT : JOB_COMPLETION, text, strlen(text)),
                     CORUN_OK);
    assert_int_equal(openai_prepare(j, m), CORUN_OK);
    return j;
}

typedef struct stream {
    openai_stream *s;
    job *j;
    buf out;
    int left_out; /* events that are not given: 1 all, 2 every other one */
    unsigned n;
} stream;

static void give(stream *t, size_t prompt, const corun_event *e)
{
    assert_int_equal(job_event(t->j, prompt, e), CORUN_OK);
    if (t->left_out == 1 || (t->left_out == 2 && t->n++ % 2)) return;
    assert_int_equal(openai_stream_event(t->s, prompt, e, &t->out), CORUN_OK);
}

static void give_prompt(stream *t, size_t prompt)
{
    const job_prompt *p = &t->j->prompt[prompt];
    for (size_t i = 1; i < p->n_token && t->j->s.prompt_logprobs >= 0; i++) {
        corun_event e = {.kind = CORUN_EVENT_PROMPT,
                         .index = (int32_t)i,
                         .token = p->token[i],
                         .logprob = -0.25f * (float)i,
                         .n_top = 2,
                         .top_id = {p->token[i], 's'},
                         .top_logprob = {-0.25f * (float)i, -7}};
        give(t, prompt, &e);
    }
}

/* The tokens of a sample: text that is held back for a while, half a character, a special token.
 * text NULL: the last one, whose text comes with the end. */
static const struct {
    int32_t id;
    const char *text;
} says[] = {{PARIS, ""}, {'a', " Pari"}, {266, "sa"}, {267, "\xf0\x9f\xa6\xac"}, {EOS, NULL}};
enum { N_SAYS = sizeof says / sizeof *says };

static void give_sample(stream *t, size_t prompt, int32_t sample, int step)
{
    const int32_t max = t->j->prompt[prompt].max_tokens, last = max < N_SAYS ? max : N_SAYS;
    if (step < last) {
        bool end = step == last - 1;
        corun_event e = {.kind = CORUN_EVENT_TOKEN,
                         .sample = sample,
                         .index = step,
                         .token = says[step].id,
                         .logprob = -1.5f - (float)step,
                         .n_top = 3,
                         .top_id = {'x', says[step].id, 'z'},
                         .top_logprob = {-0.5f, -1.5f - (float)step, -9},
                         .text = end ? "" : says[step].text};
        e.text_len = strlen(e.text);
        give(t, prompt, &e);
    }
    if (step == last - 1 || (step == 0 && last == 0 && sample == 0)) {
        bool whole = last == N_SAYS;
        corun_event e = {.kind = CORUN_EVENT_DONE,
                         .sample = sample,
                         .finish = whole ? CORUN_FINISH_STOP : CORUN_FINISH_LENGTH,
                         .stop_index = whole && t->j->s.n_stop ? 0 : -1,
                         .stop_token = -1,
                         .n_new = last,
                         .text = last ? "." : "",
                         .text_len = last ? 1 : 0};
        give(t, prompt, &e);
    }
}

static const struct {
    bool chat;
    const char *body;
} asks[] = {
    {false, "\"prompt\":\"The capital\""},
    {false, "\"prompt\":\"The capital\",\"max_tokens\":2"},
    {false, "\"prompt\":\"The capital\",\"max_tokens\":1,\"logprobs\":2"},
    {false, "\"prompt\":\"The capital\",\"logprobs\":0"},
    {false, "\"prompt\":\"The capital\",\"logprobs\":2,\"skip_special_tokens\":false"},
    {false, "\"prompt\":\"The capital of France is\",\"echo\":true,\"logprobs\":1"},
    {false,
     "\"prompt\":\"The capital of France is\",\"echo\":true,\"logprobs\":1,\"max_tokens\":0"},
    {false, "\"prompt\":\"The capital\",\"echo\":true,\"max_tokens\":0,\"n\":3"},
    {false, "\"prompt\":\"T\",\"echo\":true,\"logprobs\":0,\"add_special_tokens\":false"},
    {false, "\"prompt\":[260,261,262],\"echo\":true,\"logprobs\":3,\"n\":2"},
    {false, "\"prompt\":[[260,261],[266]],\"echo\":true,\"n\":2,\"return_token_ids\":true"},
    {false, "\"prompt\":[\"The\",\" is\",\"x\"],\"n\":3,\"prompt_logprobs\":1,\"logprobs\":1"},
    {false, "\"prompt\":\"a\\u0000b\",\"echo\":true,\"stop\":[\"!\"],\"return_token_ids\":true"},
    {false, "\"prompt\":\"x\",\"return_tokens_as_token_ids\":true,\"logprobs\":2,\"echo\":true"},
    {false, "\"prompt\":\"x\",\"stream_options\":{\"include_usage\":true}"},
    {false, "\"prompt\":[\"x\",\"y\"],\"n\":2,\"stream_options\":{\"include_usage\":true,"
            "\"continuous_usage_stats\":true}"},
    {true, "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"},
    {true, "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"n\":3,\"logprobs\":true,"
           "\"top_logprobs\":2,\"stream_options\":{\"include_usage\":true}"},
    {true, "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"logprobs\":true,"
           "\"max_tokens\":3,\"stop\":\"!\""},
    {true, "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"},{\"role\":\"assistant\","
           "\"content\":\"so\"}],\"echo\":true,\"continue_final_message\":true,\"n\":2"},
    {true, "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"prompt_logprobs\":1,"
           "\"return_token_ids\":true,\"n\":2,\"max_tokens\":0,"
           "\"stream_options\":{\"continuous_usage_stats\":true}"},
};
enum { N_ASK = sizeof asks / sizeof *asks };

static void run_stream(stream *t, bool chat, const char *body, const job_model *m, int order)
{
    t->j = open_http(chat, body, m);
    if (t->j->http != 200) fail_msg("%s: %s", body, t->j->message);
    buf_init(&t->out, JOB_MAX_ROW);
    assert_int_equal(openai_stream_open(&t->s, t->j, m, 77), CORUN_OK);
    for (size_t p = 0; p < t->j->n_prompt; p++) give_prompt(t, p);
    for (int k = 0; k < N_SAYS * (int)t->j->n_choice; k++) {
        /* choice after choice, or all of them in turn */
        int step = order ? k / (int)t->j->n_choice : k % N_SAYS;
        size_t i = (size_t)(order ? k % (int)t->j->n_choice : k / N_SAYS);
        give_sample(t, i / (size_t)t->j->s.n, (int32_t)(i % (size_t)t->j->s.n), step);
    }
    assert_true(job_done(t->j));
    assert_int_equal(openai_stream_end(t->s, &t->out), CORUN_OK);
}

static void end_stream(stream *t)
{
    openai_stream_close(t->s);
    job_free(t->j);
    buf_free(&t->out);
}

static void test_joined_is_whole(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_ASK; i++)
        for (int k = 0; k < 6; k++) {
            const int order = k % 2;
            job_model m = model(BOS);
            stream t = {.left_out = k / 2};
            buf body;
            run_stream(&t, asks[i].chat, asks[i].body, &m, order);
            buf_init(&body, JOB_MAX_ROW);
            assert_int_equal(openai_write_body(t.j, &m, 77, &body), CORUN_OK);
            if (!join_equals(t.out.data, t.out.len, t.j, body.data, body.len))
                fail_msg("%s\n%s", asks[i].body, t.out.data);
            buf_free(&body);
            end_stream(&t);
        }
}

/* The body of a reply is the one of the row of the batch line, but for `created`. */
static void test_body_is_row(void **state)
{
    (void)state;
    for (size_t i = 0; i < N_ASK; i++) {
        job_model m = model(BOS);
        char line[4096], sent[4096];
        const char *options = strstr(asks[i].body, ",\"stream_options\"");
        int n = options ? (int)(options - asks[i].body) : (int)strlen(asks[i].body);
        snprintf(line, sizeof line,
                 "{\"custom_id\":\"r\",\"method\":\"POST\",\"url\":\"/v1/%scompletions\",\"body\":"
                 "{\"model\":\"m\",%.*s}}",
                 asks[i].chat ? "chat/" : "", n, asks[i].body);
        snprintf(sent, sizeof sent, "%s,\"request_id\":\"r\"", asks[i].body);
        stream t = {0};
        buf body, row;
        run_stream(&t, asks[i].chat, sent, &m, 1);
        job *j = open_line(line, &m), *was = t.j;
        assert_memory_equal(&j->id, &was->id, sizeof j->id);
        /* the events again, into the line's job */
        openai_stream *s = t.s;
        t.j = j;
        assert_int_equal(openai_stream_open(&t.s, j, &m, 0), CORUN_OK);
        for (size_t p = 0; p < j->n_prompt; p++) give_prompt(&t, p);
        for (int step = 0; step < N_SAYS; step++)
            for (size_t c = 0; c < j->n_choice; c++)
                give_sample(&t, c / (size_t)j->s.n, (int32_t)(c % (size_t)j->s.n), step);
        buf_init(&body, JOB_MAX_ROW);
        buf_init(&row, JOB_MAX_ROW);
        assert_int_equal(openai_write_body(was, &m, 0, &body), CORUN_OK);
        assert_int_equal(openai_write(j, &m, &row), CORUN_OK);
        const char *at = strstr(row.data, "\"body\":") + strlen("\"body\":");
        assert_memory_equal(at, body.data, body.len);
        assert_string_equal(at + body.len, "},\"error\":null}\n");
        buf_free(&body);
        buf_free(&row);
        openai_stream_close(s);
        job_free(was);
        end_stream(&t);
    }
}

/* That the prompt's part of all choices does not fit is seen at the first one. */
static void test_too_large(void **state)
{
    (void)state;
    job_model m = model(BOS);
    stream t = {0};
    buf b;
    run_stream(&t, false, "\"prompt\":\"The capital of France\",\"n\":9,\"prompt_logprobs\":1", &m,
               0);
    buf_init(&b, JOB_MAX_ROW);
    assert_int_equal(openai_write_body(t.j, &m, 0, &b), CORUN_OK);
    const size_t whole = b.len;
    buf_free(&b);
    buf_init(&b, whole);
    assert_int_equal(openai_write_body(t.j, &m, 0, &b), CORUN_OK);
    buf_free(&b);
    buf_init(&b, whole / 2);
    assert_int_equal(openai_write_body(t.j, &m, 0, &b), CORUN_ECAPACITY);
    buf_putc(&b, 0);
    assert_non_null(strstr(b.data, "\"index\":0"));
    assert_null(strstr(b.data, "\"index\":1"));
    buf_free(&b);
    end_stream(&t);
}

/* More of it than a row holds is refused before it is made: by what it takes at the least. */
static void test_refused_for_size(void **state)
{
    (void)state;
    job_model m = model(BOS);
    m.n_ctx = 1 << 20;
    for (int k = 0; k < 4; k++) {
        char text[256];
        static char body[4096];
        static const char begin[] = "{\"model\":\"m\",\"prompt\":\"";
        static const char *const more[] = {"20,\"n\":128", "2,\"n\":128", "20,\"n\":1",
                                           "20,\"n\":128,\"stream\":true"};
        job *j;
        memset(body, 'x', sizeof body);
        snprintf(text, sizeof text, "\",\"prompt_logprobs\":%s}", more[k]);
        memcpy(body, begin, sizeof begin - 1);
        strcpy(body + 2700, text);
        assert_int_equal(openai_http_open(&j, JOB_COMPLETION, body, strlen(body)), CORUN_OK);
        assert_int_equal(openai_prepare(j, &m), CORUN_OK);
        assert_int_equal(j->http, k % 3 ? 200 : 400);
        if (k % 3 == 0) {
            assert_string_equal(j->param, "prompt_logprobs");
            assert_non_null(strstr(j->message, "prompt_logprobs: those of the prompts take"));
        }
        job_free(j);
    }
}

/* ---- errors ---------------------------------------------------------------------------------- */

static void test_error_in_stream(void **state)
{
    (void)state;
    job_model m = model(BOS);
    stream t = {.j = open_http(false, "\"prompt\":\"x\",\"n\":2", &m)};
    buf_init(&t.out, JOB_MAX_ROW);
    assert_int_equal(openai_stream_open(&t.s, t.j, &m, 1), CORUN_OK);
    give_sample(&t, 0, 0, 0);
    give_sample(&t, 0, 0, 1);
    corun_event e = {.kind = CORUN_EVENT_FAILED, .sample = 1, .text = "bad", .text_len = 3};
    give(&t, 0, &e);
    for (int step = 2; step < N_SAYS; step++) give_sample(&t, 0, 0, step);
    assert_true(job_done(t.j) && t.j->http == 500);
    assert_int_equal(openai_stream_end(t.s, &t.out), CORUN_OK);
    const char *err = strstr(t.out.data, "data: {\"error\":{\"message\":\"bad\"");
    assert_non_null(err);
    assert_string_equal(strstr(err, "\n\n"), "\n\n"); /* no end mark: it is no answer */
    end_stream(&t);
}

static const struct {
    const char *body, *message, *param;
} refused[] = {
    {"", "body: ", NULL},
    {"[]", "body: must be a JSON object", NULL},
    {"\xef\xbb\xbf{}", "body: ", NULL},
    {"{\"model\":\"m\",\"prompt\":\"x\"} {}", "body: ", NULL},
    {"{\"model\":\"m\",\"prompt\":\"\\ud83d\"}", "body: ", NULL},
    {"{\"model\":\"m\",\"prompt\":\"x\",\"request_id\":7}", "request_id: must be a string",
     "request_id"},
    {"{\"model\":\"m\",\"prompt\":\"x\",\"stream\":1}", "stream: must be true or false", "stream"},
    {"{\"model\":\"m\",\"prompt\":\"x\",\"stream_options\":{}}",
     "stream_options: needs stream true", "stream_options"},
    {"{\"model\":\"m\",\"prompt\":\"x\",\"stream\":false,\"stream_options\":"
     "{\"include_usage\":true}}",
     "stream_options: needs stream true", "stream_options"},
    {"{\"model\":\"m\",\"prompt\":\"x\",\"stream\":true,\"stream_options\":[]}",
     "stream_options: must be an object", "stream_options"},
    {"{\"model\":\"m\",\"prompt\":\"x\",\"stream\":true,\"stream_options\":{\"x\":1}}",
     "stream_options: x: there is no such option", "stream_options"},
    {"{\"model\":\"m\",\"prompt\":\"x\",\"stream\":true,\"stream_options\":"
     "{\"include_usage\":1}}",
     "stream_options: include_usage: must be", "stream_options"},
    {"{\"model\":\"m\",\"prompt\":\"x\",\"stream\":true,\"stream_options\":"
     "{\"include_obfuscation\":true}}",
     "stream_options: include_obfuscation: only false", "stream_options"},
};

static void test_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        job_model m = model(BOS);
        job *j;
        const char *b = refused[i].body;
        assert_int_equal(openai_http_open(&j, JOB_COMPLETION, b, strlen(b)), CORUN_OK);
        assert_int_equal(openai_prepare(j, &m), CORUN_OK);
        assert_int_equal(j->http, 400);
        if (strncmp(j->message, refused[i].message, strlen(refused[i].message)) != 0)
            fail_msg("%s: %s", b, j->message);
        if (refused[i].param) assert_string_equal(j->param, refused[i].param);
        job_free(j);
    }
}

/* ---- texts ----------------------------------------------------------------------------------- */

static const struct {
    bool back;
    const char *body, *want; /* the answer, or what the error begins with */
    int http;
} texts[] = {
    {false, "{\"prompt\":\"The a\"}",
     "{\"count\":4,\"max_model_len\":64,\"tokens\":[256,260,32,97],\"token_strs\":null}", 200},
    {false, "{\"prompt\":\"The a\",\"add_special_tokens\":false,\"return_token_strs\":true}",
     "{\"count\":3,\"max_model_len\":64,\"tokens\":[260,32,97],\"token_strs\":[\"The\",\" \","
     "\"a\"]}",
     200},
    {false, "{\"prompt\":\"\",\"add_special_tokens\":false}",
     "{\"count\":0,\"max_model_len\":64,\"tokens\":[],\"token_strs\":null}", 200},
    {false, "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"return_token_strs\":true}",
     "{\"count\":4,\"max_model_len\":64,\"tokens\":[258,104,105,259],\"token_strs\":"
     "[\"<|user|>\",\"h\",\"i\",\"<|assistant|>\"]}",
     200},
    {false, "{\"prompt\":7}", "prompt: must be a string", 400},
    {false, "{}", "prompt: missing", 400},
    {false, "{\"prompt\":\"x\",\"colour\":1}", "colour: this field", 400},
    {false, "{\"prompt\":\"x\",\"return_token_strs\":1}", "return_token_strs: must be", 400},
    {false, "{\"messages\":[]}", "messages: the list is empty", 400},
    {false, "{\"model\":\"other\",\"prompt\":\"x\"}", "The model `other` does not exist.", 404},
    {true, "{\"tokens\":[260,261,266,267]}", "{\"prompt\":\"The capital\xf0\x9f\xa6\xac\"}", 200},
    {true, "{\"tokens\":[]}", "{\"prompt\":\"\"}", 200},
    {true, "{\"tokens\":[266]}", "{\"prompt\":\"\xef\xbf\xbd\"}", 200},
    {true, "{\"tokens\":[272]}", "tokens: id 272 is not in 0 ... 271", 400},
    {true, "{\"tokens\":[-1]}", "tokens: id -1", 400},
    {true, "{\"tokens\":[1.5]}", "tokens: entry 0 is not an integer", 400},
    {true, "{\"tokens\":\"x\"}", "tokens: must be a list", 400},
    {true, "{\"tokens\":[1],\"text\":1}", "text: this field", 400},
    {true, "x", "body: ", 400},
};

static void test_texts(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        job_model m = model(BOS);
        m.served_name = "m";
        job *j;
        buf b;
        buf_init(&b, 1 << 20);
        const char *body = texts[i].body;
        assert_int_equal(
            (texts[i].back ? openai_detokenize : openai_tokenize)(&j, &m, body, strlen(body), &b),
            CORUN_OK);
        if (j->http != texts[i].http) fail_msg("%s: %d %s", body, j->http, j->message);
        if (j->http == 200)
            assert_string_equal(b.data, texts[i].want);
        else if (strncmp(j->message, texts[i].want, strlen(texts[i].want)) != 0)
            fail_msg("%s: %s", body, j->message);
        buf_free(&b);
        job_free(j);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_joined_is_whole),
        cmocka_unit_test(test_body_is_row),
        cmocka_unit_test(test_error_in_stream),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_texts),
        cmocka_unit_test(test_too_large),
        cmocka_unit_test(test_refused_for_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
