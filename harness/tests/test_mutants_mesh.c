/* Mutants of shards and microbatches: what they change, and that what shards see adds up to the whole. */

#include "harness/mutants/mutants_tensors.h"
#include "harness/tests/golden_trial.h"

/* A golden in memory, and a copy of it to change. */
typedef struct fixture {
    trial t;
    assay_tensor_set changed;
} fixture;

static void start(fixture *f, const char *name)
{
    assay_context ctx = assay_context_default(1);
    *f = (fixture){0};
    trial_evaluate(&f->t, case_named(name, "profiles=none"), NULL);
    assert_ok(&ctx, assay_tensor_set_copy(&ctx, &f->t.golden, &f->changed));
}

static void end(fixture *f)
{
    assay_tensor_set_free(&f->changed);
    trial_close(&f->t);
}

static assay_mutation mutation_of(fixture *f, int64_t shard)
{
    return (assay_mutation){
        .c = f->t.c, .profile = assay_profile_by_name("f64"), .tensors = &f->changed, .shard = shard};
}

static bool changes_inputs(fixture *f, const char *mutant, int64_t shard)
{
    bool changes = false;
    const assay_mutation m = mutation_of(f, shard);
    assert_ok(&f->t.ctx, assay_mutant_change_inputs(&f->t.ctx, assay_mutant_by_name(mutant), &m, &changes));
    return changes;
}

static bool changes_results(fixture *f, const char *mutant)
{
    bool changes = false;
    const assay_mutation m = mutation_of(f, 0);
    assert_ok(&f->t.ctx, assay_mutant_change_results(&f->t.ctx, assay_mutant_by_name(mutant), &m, &changes));
    return changes;
}

/* Block `to` of the changed tensor's first axis is block `from` of the golden's times `factor`; of `blocks` in all. */
static void check_block(const fixture *f, const char *path, int64_t blocks, int64_t to, int64_t from, double factor)
{
    const assay_tensor *golden = assay_tensor_set_find(&f->t.golden, path),
                       *changed = assay_tensor_set_find(&f->changed, path);
    assert_non_null(golden);
    const int64_t size = golden->count / blocks;
    for (int64_t i = 0; i < size; i++) {
        if (changed->values[to * size + i] != factor * golden->values[from * size + i])
            fail_msg("%s: block %d is not %g times block %d", path, (int)to, factor, (int)from);
    }
}

/* Eight experts on four shards of three rows. */
static const struct {
    const char *mutant, *path;
    int64_t blocks;
    int64_t from[8];
    double factor[8];
} changes[] = {
    {"expert_ids_global", "weights/wi_0", 8, {0, 1, 3, 3, 5, 5, 7, 7}, {1, 1, 1, 1, 1, 1, 1, 1}},
    {"expert_shard_off_by_one", "weights/wo", 8, {2, 3, 4, 5, 6, 7, 0, 1}, {1, 1, 1, 1, 1, 1, 1, 1}},
    {"expert_shard_first_only", "weights/wo", 8, {0, 1, 2, 3, 4, 5, 6, 7}, {1, 1, 0, 0, 0, 0, 0, 0}},
    {"expert_shard_missing", "weights/wi_1", 8, {0, 1, 2, 3, 4, 5, 6, 7}, {1, 1, 1, 1, 1, 1, 0, 0}},
    {"expert_shard_twice", "weights/wo", 8, {0, 1, 2, 3, 4, 5, 6, 7}, {1, 1, 1, 1, 1, 1, 2, 2}},
    {"expert_shard_twice", "weights/wi_0", 8, {0, 1, 2, 3, 4, 5, 6, 7}, {1, 1, 1, 1, 1, 1, 1, 1}},
    {"shard_rows_rolled", "outputs/y", 4, {1, 2, 3, 0}, {1, 1, 1, 1}},
    {"shard_rows_rolled", "gradients/inputs/x", 4, {1, 2, 3, 0}, {1, 1, 1, 1}},
    {"shard_gradients_rolled", "outputs/y", 4, {0, 1, 2, 3}, {1, 1, 1, 1}},
    {"shard_gradients_rolled", "gradients/inputs/x", 4, {1, 2, 3, 0}, {1, 1, 1, 1}},
    {"router_gradient_local", "cotangents/y", 4, {0, 1, 2, 3}, {1, 0, 0, 0}},
    {"expert_gradients_scaled", "gradients/weights/wi_0", 1, {0}, {4}},
    {"expert_gradients_scaled", "gradients/weights/gate/kernel", 1, {0}, {1}},
};

TEST(what_is_changed)
{
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        OWNED_BY(end) fixture f;
        start(&f, "moe/mesh-expert4");
        assert_true(changes_inputs(&f, changes[i].mutant, 0));
        assert_true(changes_results(&f, changes[i].mutant));
        for (int64_t block = 0; block < changes[i].blocks; block++) {
            check_block(&f, changes[i].path, changes[i].blocks, block, changes[i].from[block],
                        changes[i].factor[block]);
        }
    }
}

/* In the ring shard s lacks the experts of the shard before it; only cotangents of its rows count. */
TEST(the_ring_as_a_shard_sees_it)
{
    for (int64_t shard = 0; shard < 4; shard++) {
        OWNED_BY(end) fixture f;
        start(&f, "moe/mesh-ring-hot-shard");
        const assay_mutation m = mutation_of(&f, shard);
        assert_int_equal(assay_case_shards(f.t.c), 4);
        assert_true(changes_inputs(&f, "ring_step_missing", shard));
        assay_mutation_keep_shard(&m);
        for (int64_t s = 0; s < 4; s++) {
            check_block(&f, "weights/wi_0", 4, s, s, s == (shard + 3) % 4 ? 0 : 1);
            check_block(&f, "weights/wo", 4, s, s, s == (shard + 3) % 4 ? 0 : 1);
            check_block(&f, "cotangents/y", 4, s, s, s == shard ? 1 : 0);
        }
    }
}

static bool nothing(const assay_mutation *m)
{
    (void)m;
    return true;
}

/* Without a change the shards' rows and gradients are the golden's, up to the order of sums. */
TEST(shards_add_up)
{
    static const char *const names[] = {"moe/mesh-ring-balance", "moe/mesh-data2-fsdp2-expert2",
                                        "deepseek_layer/mesh-ring", "deepseek_layer/batch-split-mesh"};
    const assay_mutant none = {.name = "none", .each_shard = true, .change_inputs = nothing};
    for (size_t n = 0; n < sizeof names / sizeof *names; n++) {
        fixture f;
        bool applies = false;
        start(&f, names[n]);
        for (int i = 0; i < f.t.plan.spec_count; i++) {
            assay_tensor *tensor = &f.changed.items[i];
            if (assay_role_is_required(tensor->spec.role)) assay_fill_nan(tensor->values, tensor->count);
        }
        const assay_trial t = trial_at(&f.t, "f64");
        assert_ok(&f.t.ctx, assay_mutant_evaluate(&f.t.ctx, &t, &none, &f.changed, &applies));
        assert_true(applies);
        for (int i = 0; i < f.t.plan.spec_count; i++) {
            const assay_tensor *golden = &f.t.golden.items[i], *found = &f.changed.items[i];
            if (!assay_role_is_required(golden->spec.role)) continue;
            double most = 0;
            for (int64_t k = 0; k < golden->count; k++) most = fmax(most, fabs(golden->values[k]));
            for (int64_t k = 0; k < golden->count; k++) {
                if (!(fabs(found->values[k] - golden->values[k]) <= 1e-13 * most))
                    fail_msg("%s %s: %.17g, expected %.17g", names[n], golden->spec.path, found->values[k],
                             golden->values[k]);
            }
        }
        end(&f);
    }
}

/* What the first replica's rows give, and what the others' rows give, is the whole gradient; nothing else is taken. */
TEST(only_named_gradients_are_taken)
{
    OWNED_BY(end) fixture f;
    bool applies = false;
    start(&f, "moe/mesh-data2-expert2");
    const assay_trial t = trial_at(&f.t, "f64");
    const assay_mutant *mutant = assay_mutant_by_name("gradients_not_summed");
    assert_ok(&f.t.ctx, assay_mutant_evaluate(&f.t.ctx, &t, mutant, &f.changed, &applies));
    assert_true(applies);
    check_block(&f, "outputs/y", 1, 0, 0, 1);
    check_block(&f, "gradients/inputs/x", 1, 0, 0, 1);
    const assay_tensor *golden = assay_tensor_set_find(&f.t.golden, "gradients/weights/wo");
    const assay_tensor *found = assay_tensor_set_find(&f.changed, "gradients/weights/wo");
    assert_true(memcmp(golden->values, found->values, (size_t)golden->count * sizeof(double)) != 0);
    end(&f);
    start(&f, "moe/mesh-expert2");
    assert_false(changes_inputs(&f, "gradients_not_summed", 0));
    assert_false(changes_results(&f, "gradients_summed_twice"));
    assert_false(changes_inputs(&f, "ring_step_missing", 0));
    assert_false(changes_inputs(&f, "tensor_sum_twice", 0));
    assert_false(changes_inputs(&f, "microbatch_gradients_missing", 0));
}
