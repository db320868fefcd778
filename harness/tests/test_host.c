/* Buffers of a shared object: what is written beside them is found, in every type; what is left as it was is no result. */

#include "harness/backends/backend.h"
#include "harness/host/host.h"
#include "harness/plan/inputs.h"
#include "harness/tests/harness_test.h"

enum { BESIDE = 1 << 17, ROOM = 1 << 23 }; /* around results, so that what is written beside one is in no other block */

typedef struct arena {
    unsigned char *bytes;
    int64_t used;
} arena;

static assay_status take(assay_context *ctx, void *self, const char *what, int64_t bytes, void **out)
{
    arena *a = self;
    const int64_t beside = strncmp(what, "outputs/", 8) == 0 || strncmp(what, "routing/", 8) == 0 ? BESIDE : 0;
    (void)ctx;
    assert_true(a->used + bytes + 2 * beside + 64 < ROOM);
    *out = a->bytes + a->used + beside;
    a->used += (bytes + 2 * beside + 63) / 64 * 64;
    return ASSAY_OK;
}

typedef struct hosted {
    arena memory;
    assay_case *c;
    assay_plan plan;
    assay_inputs inputs;
    assay_host host;
} hosted;

static void host_case(hosted *h, const char *yaml)
{
    assay_context ctx = assay_context_default(1);
    *h = (hosted){.c = case_from(yaml)};
    const assay_host_memory memory = {&h->memory, take};
    h->memory.bytes = aligned_alloc(64, ROOM);
    assert_non_null(h->memory.bytes);
    assert_ok(&ctx, assay_plan_make(&ctx, &h->plan, h->c));
    assert_ok(&ctx, assay_inputs_open_plan(&ctx, &h->inputs, &h->plan, NULL));
    const assay_source in = assay_inputs_source(&h->inputs);
    assert_ok(&ctx, assay_host_make(&ctx, &h->plan, &in, &memory, &h->host));
}

static void host_free(hosted *h)
{
    assay_inputs_close(&h->inputs);
    assay_plan_free(&h->plan);
    assay_cases_free(h->c, 1);
    free(h->memory.bytes);
}

/* What the backend of these tests does beside its first result, which it fills. */
static struct {
    assay_backend_type type;
    int64_t size, first, count; /* elements written, from the place behind the last on; below 0: before the first */
    bool adds;                  /* to what is there */
    int code;
} does;

static int64_t count_of(const assay_backend_result *r)
{
    int64_t count = 1;
    for (int32_t axis = 0; axis < r->rank; axis++) count *= r->dims[axis];
    return count;
}

static int backend(const assay_backend_request *request)
{
    assay_backend_result *r = &request->results[0];
    const int64_t count = count_of(r);
    unsigned char *data = r->data;
    if (r->type != ASSAY_BACKEND_INT32) r->type = does.type;
    memset(data, 0x11, (size_t)(count * does.size));
    unsigned char *beside = data + (does.first < 0 ? does.first : count + does.first) * does.size;
    for (int64_t i = 0; i < does.count * does.size; i++) {
        /* as +1 does to a NaN whose every bit is set: it stays as it is */
        if (!does.adds || beside[i] != 0xff) beside[i] = (unsigned char)(does.adds ? beside[i] + 1 : 0x11);
    }
    return does.code;
}

static const char one_result[] = "{case: rms_norm/x, op: rms_norm, model: {base_emb_dim: 64}, batch: 2, sequence: 24, "
                                 "gradients: none, profiles: none, dtype: float32}";
static const char choice[] =
    "{case: routing/x, op: routing, batch: 64, sequence: 24, dtype: float32, gradients: none, profiles: none, model: "
    "{decoder_block: mixtral, base_emb_dim: 4, num_experts: 4, num_experts_per_tok: 2}}";

static const struct {
    const char *name;
    assay_backend_type type;
    int64_t size;
} types[] = {
    {"float64", ASSAY_BACKEND_FLOAT64, 8},
    {"float32", ASSAY_BACKEND_FLOAT32, 4},
    {"bfloat16", ASSAY_BACKEND_BFLOAT16, 2},
    {"float16", ASSAY_BACKEND_FLOAT16, 2},
    {"float8_e4m3fn", ASSAY_BACKEND_FLOAT8_E4M3FN, 1},
    {"float8_e5m2", ASSAY_BACKEND_FLOAT8_E5M2, 1},
    {"float4_e2m1fn", ASSAY_BACKEND_FLOAT4_E2M1FN, 1},
    {"float8_e8m0fnu", ASSAY_BACKEND_FLOAT8_E8M0FNU, 1},
};
enum { TYPES = sizeof types / sizeof *types };

static void assert_says(const assay_host *host, const char *expected)
{
    if (strstr(host->message, expected) == NULL) fail_msg("\"%s\", expected \"%s\"", host->message, expected);
}

/* By the type that the backend wrote, though there is room for float64. */
TEST(what_lies_behind_a_result_is_found)
{
    static const int64_t counts[] = {1, 7, 1001, 3072, 9216};
    OWNED_BY(host_free) hosted h;
    host_case(&h, one_result);
    assert_int_equal(h.host.result_count, 1);
    for (int t = 0; t < TYPES; t++) {
        does.type = types[t].type;
        does.size = types[t].size;
        does.count = 0;
        assert_int_equal(assay_host_call(&h.host, backend), ASSAY_BACKEND_EXIT_DONE);
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
            char expected[128];
            does.first = 0;
            does.count = counts[i];
            snprintf(expected, sizeof expected,
                     "behind the buffer of outputs/y, which has 3072 elements of %s: first at "
                     "index 3072",
                     types[t].name);
            assert_int_equal(assay_host_call(&h.host, backend), EXIT_FAILURE);
            assert_says(&h.host, expected);
            /* one element there alone, as far as the guard of 16384 bytes goes, which begins behind room for float64 */
            does.first = counts[i] - 1;
            does.count = 1;
            const bool seen = (3072 + counts[i]) * does.size <= INT64_C(3072) * 8 + 16384;
            assert_int_equal(assay_host_call(&h.host, backend) == EXIT_FAILURE, seen);
        }
    }
}

TEST(what_lies_before_a_result_is_found)
{
    OWNED_BY(host_free) hosted h;
    host_case(&h, one_result);
    for (int t = 0; t < TYPES; t++) {
        does.type = types[t].type;
        does.size = types[t].size;
        does.count = 1;
        does.first = -1;
        assert_int_equal(assay_host_call(&h.host, backend), EXIT_FAILURE);
        assert_says(&h.host, "before the buffer of outputs/y");
        assert_says(&h.host, "first at index -1");
        does.first = -1001;
        assert_int_equal(assay_host_call(&h.host, backend), EXIT_FAILURE);
        assert_says(&h.host, "first at index -1001");
    }
}

/* The first call finds NaN there, which a sum does not change; the second one finds the guard. */
TEST(what_is_added_behind_a_result_is_found_in_the_second_call)
{
    for (int t = 0; t < TYPES; t++) {
        OWNED_BY(host_free) hosted h;
        host_case(&h, one_result);
        does.type = types[t].type;
        does.size = types[t].size;
        does.first = 0;
        does.count = 1;
        does.adds = true;
        const int first = assay_host_call(&h.host, backend);
        if (first == ASSAY_BACKEND_EXIT_DONE) assert_int_equal(assay_host_call(&h.host, backend), EXIT_FAILURE);
        assert_says(&h.host, "behind the buffer of outputs/y");
        does.adds = false;
    }
}

/* -1 is a number that a kernel may leave there, and has every bit set. */
TEST(what_lies_behind_integers_is_found)
{
    OWNED_BY(host_free) hosted h;
    host_case(&h, choice);
    assert_string_equal(h.host.specs[0].path, "routing/selected_experts");
    does.size = 4;
    does.first = 0;
    does.count = 1;
    does.adds = true;
    assert_int_equal(assay_host_call(&h.host, backend), EXIT_FAILURE);
    assert_says(&h.host,
                "behind the buffer of routing/selected_experts, which has 3072 elements of int32: first at index 3072");
    does.adds = false;
}

/* A backend that does not have the case has not said its types. */
TEST(what_is_not_done_has_no_type)
{
    OWNED_BY(host_free) hosted h;
    host_case(&h, one_result);
    does.type = ASSAY_BACKEND_BFLOAT16;
    does.size = 2;
    does.first = 0;
    does.count = 9;
    does.code = ASSAY_BACKEND_UNSUPPORTED;
    assert_int_equal(assay_host_call(&h.host, backend), ASSAY_BACKEND_EXIT_UNSUPPORTED);
    does.code = ASSAY_BACKEND_DONE;
}

static int leave_alone(const assay_backend_request *request)
{
    request->results[0].type = does.type;
    if (does.count > 0) memset(request->results[0].data, 0, 1);
    return ASSAY_BACKEND_DONE;
}

TEST(a_result_that_is_left_as_it_was_is_not_written)
{
    OWNED_BY(host_free) hosted h;
    host_case(&h, one_result);
    for (int t = 0; t < TYPES; t++) {
        for (does.count = 0; does.count < 2; does.count++) {
            assay_context ctx = assay_context_default(1);
            assay_tensor_spec spec;
            const void *bytes;
            bool written;
            does.type = types[t].type;
            assert_int_equal(assay_host_call(&h.host, leave_alone), ASSAY_BACKEND_EXIT_DONE);
            assert_ok(&ctx, assay_host_result(&ctx, &h.host, 0, &spec, &bytes, &written));
            /* a code of every bit set may be meant */
            assert_int_equal(written, does.count > 0 || types[t].size == 1);
        }
    }
}
