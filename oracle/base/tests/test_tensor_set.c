#include "oracle/base/tensor_set.h"
#include "tests/support/assay_test.h"

static const assay_tensor_spec x = {.path = "inputs/x", .type = ASSAY_BFLOAT16, .shape = {2, {2, 3}}};
static const assay_tensor_spec w = {.path = "weights/w", .type = ASSAY_FLOAT64, .shape = {1, {3}}};
static const assay_tensor_spec ids = {.path = "inputs/ids", .type = ASSAY_INT32, .shape = {1, {3}}};
static const double six[] = {1, 2, 3, 4, 5, 6};
static const int32_t three[] = {7, 8, 9};

static assay_tensor_set set_of(assay_context *ctx, int count, const assay_tensor_spec *const *specs)
{
    assay_tensor_set set = {0};
    for (int i = 0; i < count; i++) assert_ok(ctx, assay_tensor_set_add(ctx, &set, specs[i], NULL));
    return set;
}

static void expect_refusal(const assay_context *ctx, assay_status status, const char *message)
{
    assert_int_equal(status, ASSAY_INTERNAL);
    assert_string_equal(ctx->message, message);
}

/* Of a tensor that a source does not have. */
static void expect_bad_input(const assay_context *ctx, assay_status status, const char *message)
{
    assert_int_equal(status, ASSAY_BAD_INPUT);
    assert_string_equal(ctx->message, message);
}

TEST_WITH_CONTEXT(slices_follow_each_other)
{
    assay_tensor_set set = set_of(&ctx, 2, (const assay_tensor_spec *[]){&x, &ids});
    const assay_sink sink = assay_tensor_set_sink(&set);
    const assay_source source = assay_tensor_set_source(&set);
    double back[4] = {0};
    int32_t ids_back[2] = {0};
    assert_true(sink.wants(sink.self, "inputs/x"));
    assert_ok(&ctx, sink.write(&ctx, sink.self, "inputs/x", 2, six));
    assert_ok(&ctx, sink.write_i32(&ctx, sink.self, "inputs/ids", 1, three)); /* between those of another tensor */
    assert_ok(&ctx, sink.write(&ctx, sink.self, "inputs/x", 4, six + 2));
    assert_ok(&ctx, sink.write_i32(&ctx, sink.self, "inputs/ids", 2, three + 1));
    assert_ok(&ctx, assay_tensor_set_require_complete(&ctx, &set));
    assert_same_bits(assay_tensor_set_find(&set, "inputs/x")->values, six, 6);
    assert_ok(&ctx, source.read(&ctx, source.self, "inputs/x", 1, 4, back));
    assert_same_bits(back, six + 1, 4);
    assert_ok(&ctx, source.read_i32(&ctx, source.self, "inputs/ids", 1, 2, ids_back));
    assert_memory_equal(ids_back, three + 1, sizeof ids_back);
    assert_ok(&ctx, sink.write(&ctx, sink.self, "inputs/x", 0, six)); /* nothing is not too much */
    expect_refusal(&ctx, sink.write(&ctx, sink.self, "inputs/x", 1, six), "inputs/x has more elements than its shape");
    assay_tensor_set_free(&set);
    assert_int_equal(set.count, 0);
}

TEST_WITH_CONTEXT(more_elements_than_the_shape_are_refused_and_not_written)
{
    OWNED_BY(assay_tensor_set_free) assay_tensor_set set = set_of(&ctx, 2, (const assay_tensor_spec *[]){&w, &ids});
    const assay_sink sink = assay_tensor_set_sink(&set);
    expect_refusal(&ctx, sink.write(&ctx, sink.self, "weights/w", 4, six),
                   "weights/w has more elements than its shape");
    expect_refusal(&ctx, sink.write_i32(&ctx, sink.self, "inputs/ids", INT64_MAX, three),
                   "inputs/ids has more elements than its shape");
    assert_ok(&ctx, sink.write(&ctx, sink.self, "weights/w", 3, six));
}

TEST_WITH_CONTEXT(an_incomplete_tensor_is_not_given)
{
    OWNED_BY(assay_tensor_set_free) assay_tensor_set set = set_of(&ctx, 2, (const assay_tensor_spec *[]){&w, &x});
    const assay_sink sink = assay_tensor_set_sink(&set);
    const assay_source source = assay_tensor_set_source(&set);
    double back[3];
    assert_ok(&ctx, sink.write(&ctx, sink.self, "weights/w", 3, six));
    assert_ok(&ctx, sink.write(&ctx, sink.self, "inputs/x", 5, six));
    expect_refusal(&ctx, assay_tensor_set_require_complete(&ctx, &set), "inputs/x was not written in full");
    assert_true(source.has(source.self, "weights/w"));
    assert_false(source.has(source.self, "inputs/x"));
    assert_true(source.lend(source.self, "weights/w", 1, 2) == assay_tensor_set_find(&set, "weights/w")->values + 1);
    assert_null(source.lend(source.self, "weights/w", 1, 3));
    assert_null(source.lend(source.self, "weights/w", -1, 2));
    assert_null(source.lend(source.self, "inputs/x", 0, 1));
    expect_refusal(&ctx, source.read(&ctx, source.self, "inputs/x", 3, 3, back),
                   "inputs/x has fewer elements than are asked for");
    expect_refusal(&ctx, source.read(&ctx, source.self, "weights/w", -1, 2, back),
                   "weights/w has fewer elements than are asked for");
    expect_refusal(&ctx, source.read(&ctx, source.self, "weights/w", INT64_MAX, 2, back),
                   "weights/w has fewer elements than are asked for");
    assay_tensor_set_rewind(&set);
    assert_false(source.has(source.self, "weights/w"));
    assert_ok(&ctx, sink.write(&ctx, sink.self, "weights/w", 3, six + 1));
    assert_ok(&ctx, source.read(&ctx, source.self, "weights/w", 0, 3, back));
    assert_same_bits(back, six + 1, 3);
}

TEST_WITH_CONTEXT(unknown_paths_and_other_types_are_refused)
{
    assay_tensor_set set = set_of(&ctx, 2, (const assay_tensor_spec *[]){&w, &ids}), none = {0};
    const assay_sink sink = assay_tensor_set_sink(&set);
    const assay_source source = assay_tensor_set_source(&set);
    double values[3];
    int32_t integers[3];
    assert_null(assay_tensor_set_find(&none, "weights/w"));
    assert_null(assay_tensor_set_find(&set, "weights"));
    assert_false(sink.wants(sink.self, "weights/w2"));
    assert_false(source.has(source.self, "a"));
    expect_refusal(&ctx, sink.write(&ctx, sink.self, "outputs/y", 1, six), "outputs/y is not there");
    expect_bad_input(&ctx, source.read(&ctx, source.self, "z", 0, 0, values), "z is not there");
    expect_refusal(&ctx, sink.write(&ctx, sink.self, "inputs/ids", 1, six), "inputs/ids holds int32, expected numbers");
    expect_bad_input(&ctx, source.read(&ctx, source.self, "inputs/ids", 0, 0, values),
                     "inputs/ids holds int32, expected numbers");
    expect_refusal(&ctx, sink.write_i32(&ctx, sink.self, "weights/w", 1, three),
                   "weights/w holds numbers, expected int32");
    expect_bad_input(&ctx, source.read_i32(&ctx, source.self, "weights/w", 0, 0, integers),
                     "weights/w holds numbers, expected int32");
    expect_refusal(&ctx, assay_tensor_set_add(&ctx, &set, &w, NULL), "the tensor weights/w is there twice");
    assert_int_equal(set.count, 2);
    assay_tensor_set_free(&set);
}

TEST_WITH_CONTEXT(many_tensors_are_found_and_stay_in_order)
{
    enum { MANY = 300 };
    OWNED_BY(assay_tensor_set_free) assay_tensor_set set = {0};
    assay_tensor_spec spec = {.type = ASSAY_FLOAT64, .shape = {0}};
    const double *first = NULL;
    for (int i = 0; i < MANY; i++) {
        assay_tensor *added = NULL;
        snprintf(spec.path, sizeof spec.path, "weights/layers/%d/w", i * 7 % MANY);
        assert_ok(&ctx, assay_tensor_set_add(&ctx, &set, &spec, &added));
        assert_ptr_equal(added, &set.items[i]);
        added->values[0] = i;
        if (i == 0) first = added->values;
    }
    for (int i = 0; i < MANY; i++) {
        snprintf(spec.path, sizeof spec.path, "weights/layers/%d/w", i * 7 % MANY);
        const assay_tensor *found = assay_tensor_set_find(&set, spec.path);
        assert_non_null(found);
        assert_true(found->values[0] == i && found == &set.items[i]);
    }
    assert_ptr_equal(set.items[0].values, first);
    assert_null(assay_tensor_set_find(&set, "weights/layers/300/w"));
}

TEST_WITH_CONTEXT(a_copy_has_elements_of_its_own)
{
    OWNED_BY(assay_tensor_set_free)
    assay_tensor_set set = set_of(&ctx, 2, (const assay_tensor_spec *[]){&w, &ids}), copy = {0}, read = {0};
    const assay_sink sink = assay_tensor_set_sink(&set);
    const assay_source source = assay_tensor_set_source(&set);
    assert_ok(&ctx, sink.write(&ctx, sink.self, "weights/w", 2, six));
    assert_ok(&ctx, sink.write_i32(&ctx, sink.self, "inputs/ids", 3, three));
    assert_ok(&ctx, assay_tensor_set_copy(&ctx, &set, &copy));
    assert_int_equal(copy.count, 2);
    assert_int_equal(copy.items[0].written, 2);
    assert_same_bits(copy.items[0].values, six, 2);
    assert_memory_equal(copy.items[1].indices, three, sizeof three);
    assert_ptr_not_equal(copy.items[0].values, set.items[0].values);
    assert_ok(&ctx, assay_tensor_set_read(&ctx, &read, &ids, &source));
    assert_true(assay_tensor_is_complete(&read.items[0]));
    assert_memory_equal(read.items[0].indices, three, sizeof three);
    assert_int_equal(assay_tensor_set_read(&ctx, &read, &w, &source), ASSAY_INTERNAL); /* not complete there */
}

TEST_WITH_CONTEXT(an_overlay_gives_what_it_has_before_the_rest)
{
    OWNED_BY(assay_tensor_set_free) assay_tensor_set over = set_of(&ctx, 2, (const assay_tensor_spec *[]){&w, &x});
    OWNED_BY(assay_tensor_set_free)
    assay_tensor_set under = set_of(&ctx, 3, (const assay_tensor_spec *[]){&w, &x, &ids});
    const assay_sink above = assay_tensor_set_sink(&over), below = assay_tensor_set_sink(&under);
    assay_overlay overlay = {assay_tensor_set_source(&over), assay_tensor_set_source(&under)};
    const assay_source both = assay_overlay_source(&overlay);
    double back[6];
    int32_t ids_back[3];
    assert_ok(&ctx, above.write(&ctx, above.self, "weights/w", 3, six));
    assert_ok(&ctx, above.write(&ctx, above.self, "inputs/x", 5, six)); /* which is not complete: it has none */
    assert_ok(&ctx, below.write(&ctx, below.self, "weights/w", 3, six + 3));
    assert_ok(&ctx, below.write_i32(&ctx, below.self, "inputs/ids", 3, three));
    assert_true(both.has(both.self, "weights/w"));
    assert_true(both.has(both.self, "inputs/ids"));
    assert_false(both.has(both.self, "inputs/x"));
    assert_ok(&ctx, both.read(&ctx, both.self, "weights/w", 0, 3, back));
    assert_same_bits(back, six, 3);
    assert_same_bits(both.lend(both.self, "weights/w", 0, 3), six, 3);
    assert_null(both.lend(both.self, "inputs/ids", 0, 3));
    assert_ok(&ctx, below.write(&ctx, below.self, "inputs/x", 6, six));
    assert_ok(&ctx, both.read(&ctx, both.self, "inputs/x", 0, 6, back));
    assert_same_bits(back, six, 6);
    assert_ok(&ctx, both.read_i32(&ctx, both.self, "inputs/ids", 0, 3, ids_back));
    assert_memory_equal(ids_back, three, sizeof three);
    expect_bad_input(&ctx, both.read(&ctx, both.self, "outputs/y", 0, 1, back), "outputs/y is not there");
}

TEST_WITH_CONTEXT(a_tee_gives_each_what_it_wants)
{
    OWNED_BY(assay_tensor_set_free) assay_tensor_set first = set_of(&ctx, 2, (const assay_tensor_spec *[]){&w, &ids});
    OWNED_BY(assay_tensor_set_free) assay_tensor_set second = set_of(&ctx, 2, (const assay_tensor_spec *[]){&w, &x});
    assay_tee tee = {assay_tensor_set_sink(&first), assay_tensor_set_sink(&second)};
    const assay_sink both = assay_tee_sink(&tee);
    assert_true(both.wants(both.self, "inputs/ids") && both.wants(both.self, "inputs/x"));
    assert_false(both.wants(both.self, "outputs/y"));
    assert_ok(&ctx, both.write(&ctx, both.self, "weights/w", 3, six));
    assert_ok(&ctx, both.write(&ctx, both.self, "inputs/x", 6, six));
    assert_ok(&ctx, both.write_i32(&ctx, both.self, "inputs/ids", 3, three));
    assert_ok(&ctx, both.write(&ctx, both.self, "outputs/y", 1, six)); /* which nobody wants */
    assert_ok(&ctx, assay_tensor_set_require_complete(&ctx, &first));
    assert_ok(&ctx, assay_tensor_set_require_complete(&ctx, &second));
    assert_same_bits(first.items[0].values, six, 3);
    assert_same_bits(second.items[0].values, six, 3);
    assay_tensor_set_rewind(&second); /* the first is full, and its refusal is the tee's */
    expect_refusal(&ctx, both.write(&ctx, both.self, "weights/w", 1, six),
                   "weights/w has more elements than its shape");
    assert_int_equal(second.items[0].written, 0);
}

TEST_WITH_CONTEXT(no_memory)
{
    int64_t n = 0;
    for (;; n++) {
        assay_tensor_set set = {0}, copy = {0};
        assay_status status = ASSAY_OK;
        assay_tensor_spec spec = w;
        assay_fail_allocation(n);
        for (int i = 0; status == ASSAY_OK && i < 9; i++) { /* beyond the room at first */
            snprintf(spec.path, sizeof spec.path, "weights/%d", i);
            spec.type = i % 2 == 0 ? ASSAY_FLOAT64 : ASSAY_INT32;
            status = assay_tensor_set_add(&ctx, &set, &spec, NULL);
        }
        if (status == ASSAY_OK) status = assay_tensor_set_copy(&ctx, &set, &copy);
        const bool done = had_memory(&ctx, status);
        for (int i = 0; i < set.count; i++) assert_non_null(assay_tensor_set_find(&set, set.items[i].spec.path));
        assert_int_equal(copy.count, done ? 9 : 0);
        assay_tensor_set_free(&set);
        assay_tensor_set_free(&copy);
        if (done) break;
        assert_true(n < 1000);
    }
    assert_true(n >= 18);
}

TEST_WITH_CONTEXT(a_size_that_does_not_fit_is_refused)
{
    OWNED_BY(assay_tensor_set_free) assay_tensor_set set = {0};
    const assay_tensor_spec large = {
        .path = "weights/w", .type = ASSAY_FLOAT64, .shape = {2, {INT64_C(1) << 40, INT64_C(1) << 40}}};
    assert_int_equal(assay_tensor_set_add(&ctx, &set, &large, NULL), ASSAY_BAD_INPUT);
    assert_int_equal(set.count, 0);
    assert_ok(&ctx, assay_tensor_set_add(&ctx, &set, &w, NULL));
}
