/* Operations of the catalogue written as programs give their numbers; and what is wrong with a program is said where it stands. */

#include "harness/power/power_test.h"
#include "harness/scales/ensemble.h"
#include "harness/tests/golden_trial.h"

/* What an operation is given, by the names that a program has for it: "weights/w0=weights/wi_0 ...". */
typedef struct renamed {
    const char *names;
    assay_source under;
} renamed;

static const char *name_of(const renamed *r, const char *path, char other[ASSAY_PATH_SIZE])
{
    const size_t length = strlen(path);
    for (const char *at = r->names; at != NULL; at = strchr(at, ' ') == NULL ? NULL : strchr(at, ' ') + 1) {
        if (strncmp(at, path, length) != 0 || at[length] != '=') continue;
        snprintf(other, ASSAY_PATH_SIZE, "%.*s", (int)strcspn(at + length + 1, " "), at + length + 1);
        return other;
    }
    return path;
}

static bool renamed_has(void *self, const char *path)
{
    const renamed *r = self;
    char other[ASSAY_PATH_SIZE];
    return r->under.has(r->under.self, name_of(r, path, other));
}

static assay_status renamed_read(assay_context *ctx, void *self, const char *path, int64_t first, int64_t count,
                                 double *out)
{
    const renamed *r = self;
    char other[ASSAY_PATH_SIZE];
    return r->under.read(ctx, r->under.self, name_of(r, path, other), first, count, out);
}

static assay_status renamed_read_i32(assay_context *ctx, void *self, const char *path, int64_t first, int64_t count,
                                     int32_t *out)
{
    const renamed *r = self;
    char other[ASSAY_PATH_SIZE];
    return r->under.read_i32(ctx, r->under.self, name_of(r, path, other), first, count, out);
}

/* A program, an operation with the same bits, and what each calls the tensors of the other. Only what goes back through a router's
 * softmax has them to 1e-15 of the largest number: the router takes the mean off by sums of twice the digits. */
typedef struct pair {
    const char *program, *operation, *set, *names;
    const char *through_softmax[2];
} pair;

#define PROGRAM(sizes, inputs, weights, steps, outputs)                                                                \
    "case: test/program\nop: program\nsizes: {" sizes "}\ninputs: {" inputs "}\nweights: {" weights "}\nsteps:" steps  \
    "outputs:\n" outputs
#define OF_X(outputs) PROGRAM("T: 4, D: 6", "x: [T, D]", "", " {}\n", outputs)

static const pair PAIRS[] = {
    {PROGRAM("B: 2, S: 5, D: 24", "x: [B, S, D]", "scale: [D], bias: [D]", " {}\n",
             "  y: layer_norm(x, scale, bias, epsilon=1e-6)\n"),
     "layer_norm/small",
     "normalization_layer_epsilon=1e-6",
     NULL,
     {NULL}},
    {PROGRAM("B: 2, S: 3, D: 16", "x: [B, S, D]", "scale: [D]", " {}\n", "  y: rms_norm(x, scale, epsilon=1e-6)\n"),
     "rms_norm/deepseek",
     "base_emb_dim=16;batch=2;sequence=3;normalization_layer_epsilon=1e-6",
     NULL,
     {NULL}},
    {PROGRAM(
         "B: 2, S: 7, D: 16, H: 24", "x: [B, S, D]", "g: [D, H], u: [D, H], o: [H, D]",
         "\n  gate: product(\"BSD,DH->BSH\", x, g)\n  up: product(\"BSD,DH->BSH\", x, u)\n  h: mul(silu(gate), up)\n",
         "  y: product(\"BSH,HD->BSD\", h, o)\nfused: [h]\n"),
     "mlp/silu",
     "base_emb_dim=16;base_mlp_dim=24;batch=2;sequence=7;fused_mlp=false",
     "weights/g=weights/wi_0/kernel weights/u=weights/wi_1/kernel weights/o=weights/wo/kernel "
     "checkpoints/gate=checkpoints/mlpwi_0 checkpoints/up=checkpoints/mlpwi_1",
     {NULL}},
    {PROGRAM("B: 2, S: 7, D: 16, H: 72", "x: [B, S, D]", "g: [D, H], u: [D, H], o: [H, D]",
             "\n  gate: product(\"BSD,DH->BSH\", x, g)\n  up: product(\"BSD,DH->BSH\", x, u)\n"
             "  q: quantise(mul(silu(gate), up), \"mxfp8_e4m3\", scale_rounding=\"up\")\n",
             "  y: product(\"BSH,HD->BSD\", q, o)\n"),
     "mlp/silu",
     "base_emb_dim=16;base_mlp_dim=72;batch=2;sequence=7;fused_mlp=false;quant_hidden_format=mxfp8_e4m3;"
     "quant_scale_rounding=up",
     "weights/g=weights/wi_0/kernel weights/u=weights/wi_1/kernel weights/o=weights/wo/kernel "
     "checkpoints/q/codes=checkpoints/mlp_hidden_codes checkpoints/q/scale=checkpoints/mlp_hidden_codes_scale",
     {NULL}},
    {PROGRAM("B: 2, S: 9, D: 24, N: 4, K: 2, H: 16", "x: [B, S, D], positions: {axes: [B, S], integers: [0, 9]}",
             "wq: [D, N, H], wk: [D, K, H], wv: [D, K, H], wo: [N, H, D], bq: [N, H], bk: [K, H], bv: [K, H], bo: [D]",
             "\n  q: mul(rope(add(product(\"BSD,DNH->BSNH\", x, wq), bq), positions, theta=10000), 0.25)\n"
             "  k: rope(add(product(\"BSD,DKH->BSKH\", x, wk), bk), positions, theta=10000)\n"
             "  v: add(product(\"BSD,DKH->BSKH\", x, wv), bv)\n",
             "  y: add(product(\"BSNH,NHD->BSD\", attention(q, k, v, scale=1, window=4), wo), bo)\n"),
     "gqa/mixtral",
     "base_emb_dim=24;batch=2;sequence=9;base_num_query_heads=4;base_num_kv_heads=2;head_dim=16;attention_bias=true;"
     "query_pre_attn_scalar=0.25;sliding_window_size=4;rope_type=default;rope_max_timescale=10000",
     "weights/wq=weights/query/kernel weights/wk=weights/key/kernel weights/wv=weights/value/kernel "
     "weights/wo=weights/out/kernel weights/bq=weights/query/bias weights/bk=weights/key/bias "
     "weights/bv=weights/value/bias weights/bo=weights/out/bias",
     {NULL}},
    {PROGRAM("B: 2, S: 16, N: 8, K: 2, H: 8", "query: [B, S, N, H], key: [B, S, K, H], value: [B, S, K, H]",
             "sinks: [N]", " {}\n",
             "  attention_out: attention(query, key, value, sinks, scale=1, soft_cap=5)\n"
             "  lse: attention_lse(query, key, value, sinks, scale=1, soft_cap=5)\n"),
     "attention/sinks",
     "attn_logits_soft_cap=5",
     NULL,
     {NULL}},
    {PROGRAM("M: 64, E: 4, K: 32, N: 48", "lhs: [M, K], group_sizes: {axes: [E], integers: [0, 64]}", "rhs: [E, K, N]",
             " {}\n", "  y: grouped_product(\"MK,EKN->MN\", lhs, rhs, group_sizes)\n"),
     "gmm/padded-tail",
     NULL,
     NULL,
     {NULL}},
    {PROGRAM(
         "B: 2, S: 7, D: 24, L: 12, C: 8, R: 4, P: 8, W: 12, Q: 12, N: 3, V: 6, U: 14",
         "x: [B, S, D], positions: {axes: [B, S], integers: [0, 7]}",
         "wq_a: [D, L], q_norm: [L], wq_b: [L, N, Q], wkv_a: [D, W], kv_norm: [C], wkv_b: [C, N, U], out: [N, V, D]",
         "\n  query_wa_proj: product(\"BSD,DL->BSL\", x, wq_a)\n"
         "  mla_q: rms_norm(query_wa_proj, q_norm)\n"
         "  q: product(\"BSL,LNQ->BSNQ\", mla_q, wq_b)\n"
         "  kv_wa_proj: product(\"BSD,DW->BSW\", x, wkv_a)\n"
         "  mla_kv: rms_norm(slice(\"W->C\", kv_wa_proj), kv_norm)\n"
         "  kv: product(\"BSC,CNU->BSNU\", mla_kv, wkv_b)\n"
         "  query: concatenate(\"P,R->Q\", slice(\"Q->P\", q), rope(slice(\"Q->R\", q, first=8), positions))\n"
         "  turned: rope(slice(\"W->R\", kv_wa_proj, first=8), positions)\n"
         "  key_proj: concatenate(\"P,R->Q\", slice(\"U->P\", kv), rearrange(\"BSR->BSNR\", turned))\n"
         "  value_proj: slice(\"U->V\", kv, first=8)\n"
         "  attention_out: attention(query, key_proj, value_proj, scale=0.25)\n",
         "  y: product(\"BSNV,NVD->BSD\", attention_out, out)\n"),
     "mla/small",
     "query_pre_attn_scalar=0.25;rope_type=default;rope_interleave=false",
     "weights/wq_a=weights/wq_a/kernel weights/q_norm=weights/q_norm/scale weights/wq_b=weights/wq_b/kernel "
     "weights/wkv_a=weights/wkv_a/kernel weights/kv_norm=weights/kv_norm/scale weights/wkv_b=weights/wkv_b/kernel "
     "weights/out=weights/out/kernel",
     {NULL}},
    {PROGRAM("B: 2, S: 6, K: 2, R: 24, D: 24, E: 8, F: 12", "x: [B, S, D]",
             "gate: [D, E], wi_0: [E, D, F], wi_1: [E, D, F], wo: [E, F, D]",
             "\n  l: product(\"BSD,DE->BSE\", x, gate)\n  ids: top_k(l, \"E->K\")\n"
             "  order: argsort(\"R\", ids)\n  sizes: bincount(\"E\", ids)\n"
             "  rows: gather(reshape(\"RD\", rearrange(\"BSD->BSKD\", x)), order)\n"
             "  g: grouped_product(\"RD,EDF->RF\", rows, wi_0, sizes)\n"
             "  h: mul(silu(g), grouped_product(\"RD,EDF->RF\", rows, wi_1, sizes))\n"
             "  o: gather(grouped_product(\"RF,EFD->RD\", h, wo, sizes), argsort(\"R\", order))\n",
             "  y: product(\"BSK,BSKD->BSD\", softmax(pick(l, ids), over=\"K\"), reshape(\"BSKD\", o))\n"),
     "moe/mixtral",
     "base_emb_dim=24;base_moe_mlp_dim=12;batch=2;sequence=6",
     "weights/gate=weights/gate/kernel routing/ids/top_k=routing/selected_experts",
     {"gradients/weights/gate/kernel", "gradients/inputs/x"}},
};

static assay_tensor_set results_of(const trial *t)
{
    assay_context ctx = assay_context_default(1);
    assay_tensor_set results = {0};
    for (int i = 0; i < t->plan.list.count; i++) {
        const assay_tensor_spec *spec = &t->plan.list.entries[i].spec;
        if (assay_role_is_result(spec->role)) assert_ok(&ctx, assay_tensor_set_add(&ctx, &results, spec, NULL));
    }
    return results;
}

static assay_status run_into(const trial *t, assay_context *ctx, const assay_source *in, assay_tensor_set *results)
{
    const assay_sink out = assay_tensor_set_sink(results);
    return assay_operation_run(ctx, t->plan.operation, t->c, in, &out);
}

static void hold_against(trial *program, trial *operation, const pair *p)
{
    renamed names = {p->names, operation->source};
    const assay_source source = {
        .self = &names, .has = renamed_has, .read = renamed_read, .read_i32 = renamed_read_i32};
    OWNED_BY(assay_tensor_set_free) assay_tensor_set mine = results_of(program), theirs = results_of(operation);
    int compared = 0;
    assert_ok(&program->ctx, run_into(program, &program->ctx, &source, &mine));
    assert_ok(&operation->ctx, run_into(operation, &operation->ctx, &operation->source, &theirs));
    for (int i = 0; i < mine.count; i++) {
        const assay_tensor *own = &mine.items[i];
        char path[ASSAY_PATH_SIZE], other[ASSAY_PATH_SIZE] = "";
        const bool gradient = own->spec.role == ASSAY_ROLE_GRADIENT;
        snprintf(path, sizeof path, "%s%s", gradient ? "gradients/" : "",
                 name_of(&names, gradient ? own->spec.path + strlen("gradients/") : own->spec.path, other));
        const assay_tensor *its = assay_tensor_set_find(&theirs, path);
        if (its == NULL && own->spec.role == ASSAY_ROLE_CHECKPOINT) continue; /* which has no name there */
        if (its == NULL) fail_msg("%s: %s has no %s", p->operation, p->operation, path);
        assert_int_equal(own->count, its->count);
        compared++;
        if (own->indices != NULL) {
            assert_memory_equal(own->indices, its->indices, (size_t)own->count * sizeof *own->indices);
            continue;
        }
        bool near = false;
        for (int k = 0; k < 2; k++) near |= p->through_softmax[k] != NULL && strcmp(p->through_softmax[k], path) == 0;
        double largest = 0;
        for (int64_t k = 0; k < its->count; k++) largest = fmax(largest, fabs(its->values[k]));
        assert_close(own->values, its->values, its->count, 0, near ? 1e-15 * largest : 0);
        if (!near) assert_same_bits(own->values, its->values, its->count);
    }
    assert_true(compared > 1);
}

TEST(operations_as_programs_give_their_numbers)
{
    for (size_t i = 0; i < sizeof PAIRS / sizeof *PAIRS; i++) {
        OWNED_BY(trial_close) trial program, operation;
        assay_context ctx = assay_context_default(1);
        assay_case *c = case_named(PAIRS[i].operation, PAIRS[i].set), *own = case_from(PAIRS[i].program);
        assert_ok(&ctx, assay_case_set(&ctx, c, "checkpoints=all"));
        assert_ok(&ctx, assay_case_set(&ctx, own, "checkpoints=all"));
        trial_plan(&operation, c);
        trial_plan(&program, own);
        hold_against(&program, &operation, &PAIRS[i]);
    }
}

/* --- and are judged alike --- */

/* The operation's golden gets what the program's allows its results: error scales and null distributions. Returns how many. */
static int lend_judgement(const trial *program, trial *operation, const renamed *names)
{
    static const char *const folders[] = {"error_scale/bf16/", "null/bf16/"};
    int lent = 0;
    for (int i = 0; i < program->golden.count; i++) {
        const assay_tensor *own = &program->golden.items[i];
        for (int k = 0; k < 2; k++) {
            char path[2 * ASSAY_PATH_SIZE], other[ASSAY_PATH_SIZE] = "";
            const size_t length = strlen(folders[k]);
            if (strncmp(own->spec.path, folders[k], length) != 0 || own->values == NULL) continue;
            const char *of = own->spec.path + length;
            const bool gradient = strncmp(of, "gradients/", 10) == 0;
            snprintf(path, sizeof path, "%s%s%s", folders[k], gradient ? "gradients/" : "",
                     name_of(names, gradient ? of + 10 : of, other));
            assay_tensor *its = assay_tensor_set_find(&operation->golden, path);
            if (its == NULL) continue; /* a checkpoint which has no name there */
            assert_int_equal(own->count, its->count);
            memcpy(its->values, own->values, (size_t)own->count * sizeof *own->values);
            lent++;
        }
    }
    return lent;
}

/* *effective grows by the mutants that change anything. */
static int detected(trial *t, int *effective)
{
    OWNED_BY(assay_power_test_free) assay_power_test found = {0};
    const assay_profile *bf16 = assay_profile_by_name("bf16");
    int count = 0;
    assert_ok(&t->ctx, assay_power_test_run(&t->ctx, &t->plan, &t->golden, bf16, 1e-6, NULL, &found));
    for (int i = 0; i < found.mutants.count; i++) {
        const assay_mutant_outcome outcome = found.items[i].outcome;
        *effective += outcome == ASSAY_MUTANT_DETECTED || outcome == ASSAY_MUTANT_PASSES;
        count += outcome == ASSAY_MUTANT_DETECTED;
    }
    return count;
}

/* Of an operation's mutants what a program allows tells as many, within 1 %. */
TEST(programs_judge_as_their_operations)
{
    int of_programs = 0, of_operations = 0, effective = 0;
    for (size_t i = 0; i < sizeof PAIRS / sizeof *PAIRS; i++) {
        OWNED_BY(trial_close) trial program, operation;
        assay_context ctx = assay_context_default(1);
        assay_case *c = case_named(PAIRS[i].operation, PAIRS[i].set), *own = case_from(PAIRS[i].program);
        assay_case *both[] = {c, own};
        for (int k = 0; k < 2; k++) {
            assert_ok(&ctx, assay_case_set(&ctx, both[k], "checkpoints=all"));
            assert_ok(&ctx, assay_case_set(&ctx, both[k], "dtype=bfloat16"));
            assert_ok(&ctx, assay_case_set(&ctx, both[k], "profiles=bf16"));
        }
        trial_evaluate(&operation, c, NULL);
        trial_plan(&program, own);
        renamed names = {PAIRS[i].names, operation.source};
        const assay_source source = {
            .self = &names, .has = renamed_has, .read = renamed_read, .read_i32 = renamed_read_i32};
        const assay_sink sink = assay_results_sink(&program.golden);
        assert_ok(&ctx, assay_plan_tensors(&ctx, &program.golden, &program.plan, &source));
        assert_ok(&ctx, assay_evaluate(&ctx, &program.plan, &source, &sink));
        const int as_operation = detected(&operation, &effective);
        assert_true(lend_judgement(&program, &operation, &names) > 1);
        const int as_program = detected(&operation, &effective);
        assert_true(as_program >= as_operation - 1);
        of_operations += as_operation;
        of_programs += as_program;
    }
    print_message("of %d mutants %d are detected as operations, %d as programs\n", effective / 2, of_operations,
                  of_programs);
    assert_true(abs(of_programs - of_operations) * 100 <= of_operations);
}

/* --- what is wrong, and where --- */

#define GOOD_SIZES "T: 4, D: 6, R: 2"
#define GOOD_INPUTS "x: [T, D], i: {axes: [T], integers: [0, 5]}"
#define GROUPED_SIZES "T: 4, D: 6, E: 2, F: 3"
#define GROUPED_INPUTS "x: [T, D], i: {axes: [E], integers: [0, 4]}"
#define PICKED "\n  p: pick(x, i)\n"

static const struct {
    const char *text, *message;
} WRONG[] = {
    {PROGRAM(GOOD_SIZES, "x: [T, Q]", "", " {}\n", "  y: neg(x)\n"),
     "test.yml:4:10: x has the axis Q, which has no size in sizes"},
    {OF_X("  y: negg(x)\n"), "test.yml:8:6: y: there is no step negg, did you mean neg?"},
    {OF_X("  y: neg(x\n"), "test.yml:8:11: y: expected , or ) in neg("},
    {OF_X("  y: neg(x) x\n"), "test.yml:8:13: y: expected the end, found x"},
    {OF_X("  y: neg(z)\n"), "test.yml:8:10: y: z is no input, weight or step before this one, did you mean x?"},
    {OF_X("  y: neg(x, x)\n"), "test.yml:8:13: y: neg has more operands"},
    {OF_X("  y: add(x)\n"), "test.yml:8:6: y: add has 1 operands, expected add(a, b)"},
    {OF_X("  y: sum(x)\n"), "test.yml:8:6: y: sum lacks over"},
    {OF_X("  y: sum(x, over=D)\n"), "test.yml:8:18: y: over is expected to be axes in quotes"},
    {OF_X("  y: sum(x, over=\"Q\")\n"), "over has the axis Q, expected axes of TD"},
    {OF_X("  y: sum(x, over=\"D\", over=\"D\")\n"), "test.yml:8:23: y: over is given twice"},
    {OF_X("  y: clamp(x, low=1e999)\n"), "test.yml:8:19: y: expected a finite number"},
    {OF_X("  y: relu(x, kink=-0.5)\n"), "test.yml:8:6: y: kink is -0.5, expected a number from 0 to 1"},
    {PROGRAM("T: 4, D: 6", "x: [T, D]", "", "\n  a: neg(b)\n  b: neg(x)\n", "  y: neg(a)\n"),
     "test.yml:7:10: a: b is not there yet"},
    {PROGRAM("T: 4, D: 6", "x: [T, D]", "", "\n  a: neg(a)\n", "  y: neg(a)\n"),
     "test.yml:7:10: a: a is not there yet"},
    {PROGRAM("T: 4, D: 6", "x: [T, D]", "", "\n  a: neg(x)\n", "  y: neg(x)\n"),
     "test.yml:7:6: a: a is read by no step"},
    {PROGRAM("T: 4, D: 6", "x: [T, D], z: [T]", "", " {}\n", "  y: neg(x)\n"), "test.yml:4:21: z is read by no step"},
    {PROGRAM("T: 4, D: 6, Q: 2", "x: [T, D]", "", " {}\n", "  y: neg(x)\n"),
     "test.yml: sizes has Q, which no tensor has"},
    {PROGRAM("T: 4, D: 6", "x: [T, D]", "", "\n  x: neg(x)\n", "  y: neg(x)\n"),
     "test.yml:7:6: x: the name x is taken"},
    {OF_X("  y: x\n"), "test.yml:8:6: y: y is nothing that is computed"},
    {PROGRAM("T: 4, D: 6", "x: [T, D]", "", "\n  a: neg(x)\n  b: a\n", "  y: neg(b)\n"),
     "test.yml:8:6: b: b is another step's name"},
    {PROGRAM("T: 4, D: 6, K: 2", "x: [T, D]", "", "\n  p: pick(x, top_k(x, \"D->K\"))\n", "  y: neg(p)\n"),
     "test.yml:7:14: p: top_k chooses: it stands alone in a line"},
    {PROGRAM("T: 4, D: 6, K: 2", "x: [T, D]", "", " {}\n", "  y: top_k(x, \"D->K\")\n"),
     "test.yml:8:6: y: y is a choice, which its step gives by itself: routing/NAME/top_k"},
    {PROGRAM("T: 4, D: 6, K: 2", "x: [T, D]", "", "\n  i: top_k(x, \"D->K\")\n  o: argsort(i, \"T\")\n",
             "  y: gather(x, o)\n"),
     "test.yml:8:6: o: TK has 8 numbers, and T has 4"},
    {PROGRAM("T: 4, D: 6", "x: [T, D]", "", "\n  o: argsort(x, \"T\")\n", "  y: gather(x, o)\n"),
     "test.yml:7:6: o: operand 1 of argsort is expected to be whole numbers: argsort(x)"},
    {PROGRAM("T: 4, D: 6, K: 2", "x: [T, D]", "", "\n  i: top_k(x, \"D->K\")\n  n: bincount(i, \"D\")\n",
             "  a: n\n  y: n\n"),
     "y: y is a, whole numbers that are an output already"},
    {PROGRAM("T: 4, D: 6, K: 2", "x: [T, D]", "", "\n  i: top_k(x, \"D->K\")\n  n: bincount(i, \"DT\")\n",
             "  y: float(n)\n"),
     "test.yml:8:6: n: the axes are \"DT\", expected one axis"},
    {PROGRAM("T: 4, D: 6, K: 7", "x: [T, D]", "", "\n  i: top_k(x, \"D->K\")\n", "  y: pick(x, i)\n"),
     "K has 7, expected at most the 6 of D"},
    {PROGRAM("T: 4, D: 6, K: 2", "x: [T, D]", "", "\n  i: top_k(x, \"T->K\")\n", "  y: pick(x, i)\n"),
     "T is not the last axis of TD"},
    {PROGRAM(GROUPED_SIZES, GROUPED_INPUTS, "w: [E, D, F]", " {}\n", "  y: grouped_product(\"TD,EFD->TF\", x, w, i)\n"),
     "\"TD,EFD->TF\" has F, which is 3, for the axis D, which is 6"},
    {PROGRAM(GROUPED_SIZES, GROUPED_INPUTS, "w: [E, F, D]", " {}\n", "  y: grouped_product(\"TD,EFD->TF\", x, w, i)\n"),
     "the axes are \"TD,EFD->TF\", expected x with its rows first, w with its groups first"},
    {PROGRAM(GROUPED_SIZES, "x: [T, D], i: {axes: [T], integers: [0, 1]}", "w: [E, D, F]", " {}\n",
             "  y: grouped_product(\"TD,EDF->TF\", x, w, i)\n"),
     "the sizes of groups have the axes T, expected the first one of EDF"},
    {PROGRAM("T: 4, D: 6", "x: [T, D], a: [D]", "", " {}\n", "  y: linear_scan(x, a, over=\"D\")\n"),
     "the axes are TD and D, expected the same, or fewer of a"},
    {OF_X("  y: linear_scan(x, x, over=\"TD\")\n"), "over is \"TD\", expected one axis"},
    {PROGRAM("T: 4, N: 2, K: 3", "x: [T, N, K], g: [N, T]", "", " {}\n", "  y: gated_delta_rule(x, x, x, g, g)\n"),
     "the axes are TNK, TNK, TNK, NT and NT, expected query [..,T,N,K]"},
    {OF_X("  y: neg(quantise(x, \"mxfp4\"))\n"),
     "test.yml:8:10: y: quantise makes codes: it stands alone in a line, whose name they have"},
    {OF_X("  y: quantise(x)\n"), "test.yml:8:6: y: quantise lacks format"},
    {OF_X("  y: quantise(x, \"fp7\")\n"), "test.yml:8:6: y: format is fp7, expected one of mxfp4, mxfp8_e4m3"},
    {OF_X("  y: quantise(x, \"nvfp4_16x16\")\n"),
     "tensor_scale is 0, expected a number above 0, at most 1, with the format nvfp4_16x16"},
    {OF_X("  y: quantise(x, \"mxfp4\", scale_rounding=\"nearest\")\n"),
     "scale_rounding is nearest, expected up or down with the format mxfp4"},
    {OF_X("  y: quantise(x, \"mxfp4\", scale=\"twice\")\n"),
     "scale is twice, expected one of divide, multiply, invert"},
    {OF_X("  y: quantise(x, \"nvfp4\")\n"),
     "tensor_scale is 0, expected a number above 0, at most 1, with the format nvfp4"},
    {OF_X("  y: quantise(x, \"mxfp4\", tensor_scale=0.5)\n"),
     "tensor_scale is 0.5, expected none with the format mxfp4"},
    {OF_X("  y: quantise(x, format=mxfp4)\n"), "test.yml:8:25: y: format is expected to be a word in quotes"},
    {PROGRAM("T: 4, D: 6", "x: [T, D]", "", "\n  y: quantise(x, \"mxfp4\")\n", "  y: quantise(neg(y), \"mxfp4\")\n"),
     "y is the name of a step's codes already"},
    {OF_X("  y: cast(x, \"float64\")\n"), "type is float64, expected bfloat16, float16"},
    {OF_X("  y: quantise(sum(x, over=\"TD\"), \"mxfp4\")\n"), "quantise takes rows"},
    {PROGRAM(GOOD_SIZES, GOOD_INPUTS, "", PICKED, "  y: add(p, i)\n"),
     "operand 2 of add is expected to be no whole numbers"},
    {PROGRAM(GOOD_SIZES, GOOD_INPUTS, "", PICKED, "  y: rope(x, x)\n"),
     "operand 2 of rope is expected to be whole numbers"},
    {PROGRAM(GOOD_SIZES, "x: [T, D]", "", " {}\n", "  y: mul(x, less(x, 2))\n"),
     "operand 1 of less is expected to follow from whole numbers without a rounding"},
    {PROGRAM(GOOD_SIZES, GOOD_INPUTS, "", PICKED, "  y: mul(p, less(div(float(i), 3), 2))\n"),
     "operand 1 of less is expected to follow from whole numbers without a rounding"},
    {PROGRAM(GOOD_SIZES, "x: [T, D]", "", " {}\n", "  y: where(x, x, 0)\n"),
     "operand 1 of where is expected to be whole numbers"},
    {PROGRAM(GOOD_SIZES, "x: [T, D]", "", " {}\n", "  y: slice(\"D->R\", x, first=5)\n"),
     "first is 5, expected a whole number from 0 to 4"},
    {PROGRAM(GOOD_SIZES, "x: [T, D]", "", "\n  a: slice(\"D->R\", x)\n", "  y: concatenate(\"R,R->D\", a, a)\n"),
     "D is 6, and its parts are 4"},
    {PROGRAM(GOOD_SIZES, "x: [T, D]", "", "\n  a: slice(\"D->R\", x)\n", "  y: product(\"TD,TR->R\", x, a)\n"),
     "the axis D is in one operand alone: sum over it before"},
    {PROGRAM(GOOD_SIZES, "x: [T, D]", "", "\n  a: slice(\"D->R\", x)\n", "  y: product(\"TD,TD->T\", x, a)\n"),
     "\"TD,TD->T\" has D, which is 6, for the axis R, which is 2"},
    {PROGRAM(GOOD_SIZES, "x: [T, D]", "", "\n  a: slice(\"D->R\", x)\n", "  y: reshape(a, \"TD\")\n"),
     "TR has 8 numbers, and TD has 24"},
    {PROGRAM("A: 9, B: 9, C: 9, D: 9, E: 9, F: 9, G: 9, H: 9, I: 9, J: 9, K: 9, L: 9, M: 9",
             "x: [A, B, C, D, E, F, G], z: [H, I, J, K, L, M]", "", " {}\n", "  y: add(x, z)\n"),
     "add gives the axes ABCDEFGHIJKLM, expected at most 12"},
    {PROGRAM("T: 2147483647, D: 2147483647, R: 2147483647", "x: [T], u: [D], v: [R]", "", " {}\n",
             "  y: mul(mul(x, u), v)\n"),
     "test.yml:8:10: y: mul: its size does not fit in 64 bits"},
    {PROGRAM(GOOD_SIZES, "x: [T, D]", "", " {}\n", "  y: clamp(x, low=1, high=-1)\n"),
     "low is 1, expected at most high, which is -1"},
    {PROGRAM("T: 4", "x: {axes: [T], integers: [0, 9]}", "", " {}\n", "  y: mod(float(x), 0.5)\n"),
     "operand 2 of mod is expected to be a whole number, 1 or more"},
    {PROGRAM("T: 4", "x: [T]", "", "\n  a: {repeat: 0, steps: {x: neg(x)}}\n", "  y: neg(x)\n"),
     "repeat: expected a whole number from 1"},
    {PROGRAM("T: 4", "x: [T]", "", "\n  a: {scan: S, steps: {h: at(x)}}\n", "  y: neg(x)\n"),
     "a is expected to be {repeat: 20, steps: {..}} or, of an axis T, {scan: T, steps: {..}, stack: {..}}"},
    {PROGRAM("T: 4", "x: [T]", "", "\n  a: {scan: T, steps: {h: neg(x)}, stack: {y: x}}\n", "  y: neg(x)\n"),
     "stack has x, expected a line of the scan, of at most 28 letters"},
    {PROGRAM("T: 4", "x: [T]", "", "\n  a: {repeat: 2, steps: {h: at(x)}}\n", "  y: neg(h)\n"), "there is no step at"},
    {PROGRAM("T: 4", "x: [T]", "", "\n  a: {repeat: 2, steps: {h: exp(h)}}\n", "  y: neg(h)\n"),
     "h_0: h is no input, weight or step before this one"},
    {PROGRAM("T: 4, D: 3", "x: [T]", "", " {}\n", "  y: 'concatenate(\"->D\", x, x)'\n"),
     "D is 3, and its parts are 2"},
    {"case: test/p\nop: program\nsizes: {T: 4}\ninputs: {x: [T]}\nsteps: {}\noutputs: {y: add(x, x)}\n",
     "test.yml:6:21: x) is no name, expected letters, digits and _, a letter first; a comma within {} ends a step, "
     "unless "
     "that stands in quotes"},
    {OF_X(""), "test.yml:7:9: outputs: expected a mapping"},
    {"case: test/p\nop: program\n", "test/p lacks steps, inputs and outputs"},
    {"case: test/p\nop: rms_norm\nsizes: {T: 4}\n", "test.yml:3:1: sizes is for op program, this is op rms_norm"},
    {"case: test/p\nop: rms_norm\ninputs: {x: [T]}\n", "axes of inputs are for op program, this is op rms_norm"},
    {PROGRAM("T: 0", "x: [T]", "", " {}\n", "  y: neg(x)\n"), "sizes.T: expected a whole number from 1"},
    {PROGRAM("TD: 4", "x: [T]", "", " {}\n", "  y: neg(x)\n"), "expected an axis of one letter in sizes, found TD"},
    {PROGRAM("T: 4", "x: [T]", "x: [T]", " {}\n", "  y: neg(x)\n"), "x is there twice"},
    {PROGRAM("T: 4", "x: {axes: [T], integers: [3, 1]}", "", " {}\n", "  y: neg(x)\n"),
     "integers: expected the least one first"},
    {PROGRAM("T: 4", "x: [T]", "", " {}\n", "  y: neg(x)\nfused: [q]\n"), "fused has q, which is no step"},
    {PROGRAM("T: 4", "x: [T]", "", " {}\n", "  y: neg(x)\nstored: [q]\n"), "stored has q, which is no step"},
    {PROGRAM("T: 4", "x: [T]", "", " {}\n", "  y: neg(x)\nfused: [y]\nstored: [y]\n"),
     "test.yml:9:8: fused has y, which stored has too"},
    {PROGRAM("T: 4", "x: [T]", "", " {}\n", "  y: neg(x)\naccumulate: {q: bf16}\n"),
     "test.yml:9:14: accumulate has q, which is no step"},
    {PROGRAM("T: 4", "x: [T]", "", " {}\n", "  y: neg(x)\naccumulate: {y: float64}\n"),
     "y: expected float32, bfloat16, float16 or stored, found float64"},
};

TEST(what_is_wrong_is_said_where_it_stands)
{
    for (size_t i = 0; i < sizeof WRONG / sizeof *WRONG; i++) {
        assay_context ctx = assay_context_default(1);
        assay_case *cases = NULL;
        int count = 0;
        const assay_status status =
            assay_cases_parse(&ctx, "test.yml", WRONG[i].text, strlen(WRONG[i].text), &cases, &count);
        if (status != ASSAY_BAD_INPUT) fail_msg("taken: %s", WRONG[i].text);
        if (strstr(ctx.message, WRONG[i].message) == NULL)
            fail_msg("'%s' is not in '%s'", WRONG[i].message, ctx.message);
    }
}

TEST(groups_hold_rows_that_there_are)
{
    static const char *const values[] = {"3, 2", "-1, 2"}, *const said[] = {
                                                               "inputs/i has 5 rows in all, expected at most 4",
                                                               "inputs/i[0] is -1, expected 0 or more"};
    for (int i = 0; i < 2; i++) {
        OWNED_BY(trial_close) trial t;
        char set[64];
        assay_context ctx = assay_context_default(1);
        assay_case *c = case_from(PROGRAM(GROUPED_SIZES, GROUPED_INPUTS, "w: [E, D, F]", " {}\n",
                                          "  y: grouped_product(\"TD,EDF->TF\", x, w, i)\n"));
        snprintf(set, sizeof set, "inputs.i={values: [%s]}", values[i]);
        assert_ok(&ctx, assay_case_set(&ctx, c, set));
        trial_plan(&t, c);
        OWNED_BY(assay_tensor_set_free) assay_tensor_set results = results_of(&t);
        assert_bad_input(&ctx, run_into(&t, &ctx, &t.source, &results), said[i]);
    }
}

#define LABELS(values, mask)                                                                                           \
    PROGRAM("T: 4, V: 3", "x: [T, V], t: {axes: [T], integers: [0, 2]" values "}", "", " {}\n",                        \
            "  y: where(" mask ", 0, pick(x, t))\n")

/* -100 is no index where it is passed over: it is drawn, and may be given; elsewhere it is refused. */
TEST_WITH_CONTEXT(labels_are_passed_over)
{
    static const char *const texts[] = {LABELS("", "equal(float(t), -100)"),
                                        LABELS(", values: [1, -100, 2, -100]", "equal(-100, float(t))")};
    trial t;
    for (int i = 0; i < 2; i++) {
        int over = 0;
        trial_evaluate(&t, case_from(texts[i]), NULL);
        const assay_tensor *labels = assay_tensor_set_find(&t.golden, "inputs/t"),
                           *y = assay_tensor_set_find(&t.golden, "outputs/y"),
                           *dx = assay_tensor_set_find(&t.golden, "gradients/inputs/x");
        for (int k = 0; k < 4; k++) {
            const bool is_over = labels->indices[k] == -100;
            double flows = 0;
            for (int v = 0; v < 3; v++) flows += fabs(dx->values[3 * k + v]);
            assert_true((y->values[k] == 0) == is_over && (flows == 0) == is_over);
            over += is_over;
        }
        assert_true(over > 0 && over < 4);
        trial_close(&t);
    }
    trial_plan(&t, case_from(LABELS(", values: [1, -100, 2, -99]", "equal(float(t), -100)")));
    OWNED_BY(assay_tensor_set_free) assay_tensor_set results = results_of(&t);
    assert_bad_input(&ctx, run_into(&t, &ctx, &t.source, &results), "inputs/t[3] is -99, expected 0 to 2");
    trial_close(&t);
}

static const char SMALL[] =
    PROGRAM("T: 4, D: 6, H: 3", "x: [T, D], s: {axes: [T], values: [1, 2, 3, 4]}", "w: [D, H]",
            "\n  a: product(\"TD,DH->TH\", x, w)\n  b: mul(softmax(a, over=\"H\"), s)\n",
            "  y: sum(b, over=\"H\")\n  b: b\nstored: [b]\nfused: all\naccumulate: {a: bfloat16}\n");

TEST_WITH_CONTEXT(a_program_as_text_is_the_same_program)
{
    OWNED_BY(free_case) assay_case *c = case_from(SMALL);
    OWNED char *text = NULL, *again = NULL;
    assert_ok(&ctx, assay_case_to_yaml(&ctx, c, &text));
    OWNED_BY(free_case) assay_case *second = case_from(text);
    assert_ok(&ctx, assay_case_to_yaml(&ctx, second, &again));
    assert_string_equal(text, again);
    assert_non_null(strstr(text, "\nfused: [a, y]\nstored: [b, b]\naccumulate: {a: bfloat16}\n"));
}

/* Of two that have the same axes the first says their order. */
TEST(a_sum_is_laid_out_as_its_first_operand)
{
    OWNED_BY(trial_close) trial t;
    trial_plan(&t, case_from(PROGRAM("T: 4, D: 6, E: 2", "x: [T, D], z: [D, T], u: [E, D, T]", "", " {}\n",
                                     "  y: add(x, z)\n  v: mul(z, x)\n  w: mul(x, u)\n")));
    static const char *const outputs[] = {"outputs/y", "outputs/v", "outputs/w"}, *const axes[] = {"TD", "DT", "EDT"};
    for (int i = 0; i < 3; i++) {
        const assay_tensor_spec *spec = &assay_tensor_list_find(&t.plan.list, outputs[i])->spec;
        assert_int_equal(spec->shape.rank, strlen(axes[i]));
        for (int k = 0; k < spec->shape.rank; k++) assert_int_equal(spec->labels[k][0], axes[i][k]);
    }
}

/* Rows that are gathered before a product reads them have a product's weights. */
TEST(gathered_weights_are_filled_by_their_product)
{
    OWNED_BY(trial_close) trial t;
    trial_plan(&t, case_from(PROGRAM("T: 4, D: 64, F: 6, E: 3", "x: [T, D], i: {axes: [T], integers: [0, 2]}",
                                     "w: [E, D, F], table: [E, D]", " {}\n",
                                     "  y: product(\"TD,TDF->TF\", add(x, gather(table, i)), gather(w, i))\n")));
    assert_true(assay_tensor_list_find(&t.plan.list, "weights/w")->fill.scale == 0.125);
    assert_true(assay_tensor_list_find(&t.plan.list, "weights/table")->fill.scale == 1);
}

/* By its name or by its path: the golden's case has one fill of it, and can be read again. */
TEST_WITH_CONTEXT(an_input_is_filled_otherwise)
{
    static const char *const sets[] = {"inputs.s={values: [5]}", "inputs.inputs/s={values: [6]}"};
    OWNED_BY(free_case) assay_case *c = case_from(SMALL);
    for (int i = 0; i < 2; i++) {
        OWNED char *yaml = NULL;
        assert_ok(&ctx, assay_case_set(&ctx, c, sets[i]));
        assert_ok(&ctx, assay_case_yaml(&ctx, c, &yaml));
        OWNED_BY(free_case) assay_case *again = case_from(yaml);
        const assay_case_input *fill = assay_case_input_of(again, "inputs/s");
        assert_true(fill->fill.value_count == 1 && fill->values[0] == 5 + i);
    }
}

TEST_WITH_CONTEXT(sizes_are_changed_one_after_the_other)
{
    OWNED_BY(free_case)
    assay_case *c =
        case_from(PROGRAM("D: 6, R: 2, P: 4", "x: [D]", "", "\n  r: slice(\"D->R\", x)\n  p: slice(\"D->P\", x)\n",
                          "  y: concatenate(\"R,P->D\", r, p)\n"));
    assert_ok(&ctx, assay_case_set(&ctx, c, "sizes.R=5"));
    const assay_operation *operation;
    OWNED_BY(assay_tensor_list_free) assay_tensor_list list = {0};
    assert_bad_input(&ctx, assay_operation_prepare(&ctx, c, &operation, &list), "D is 6, and its parts are 9");
    assert_ok(&ctx, assay_case_set(&ctx, c, "sizes.D=9"));
    assert_ok(&ctx, assay_operation_prepare(&ctx, c, &operation, &list));
}

static const char RECURRENT[] =
    PROGRAM("T: 2, N: 1, K: 1, V: 1",
            "q: {axes: [T, N, K], values: [1, 2]}, k: {axes: [T, N, K], values: [1, 2]}, "
            "v: {axes: [T, N, V], values: [3, 5]}, g: {axes: [T, N], values: [-1, 0]}, "
            "b: {axes: [T, N], values: [1, 0.5]}, z: {axes: [T, N], values: [1, 1]}, a: {axes: [T, N], values: [7, 2]}",
            "", " {}\n",
            "  y: gated_delta_rule(q, k, v, g, b)\n"
            "  z: linear_scan(a, z, over=\"T\")\n");

/* S = 3, then 3 + 2 (5 - 2 * 3) / 2 = 2. */
TEST(recurrences_by_hand)
{
    static const double y[] = {3, 4}, z[] = {1, 3};
    OWNED_BY(trial_close) trial t;
    trial_plan(&t, case_from(RECURRENT));
    OWNED_BY(assay_tensor_set_free) assay_tensor_set results = results_of(&t);
    assert_ok(&t.ctx, run_into(&t, &t.ctx, &t.source, &results));
    assert_close(assay_tensor_set_find(&results, "outputs/y")->values, y, 2, 0, 0);
    assert_close(assay_tensor_set_find(&results, "outputs/z")->values, z, 2, 0, 0);
}

#define STATES                                                                                                         \
    PROGRAM("T: 40, N: 2, K: 6, V: 5",                                                                                 \
            "q: [T, N, K], k: {axes: [T, N, K], scale: 0.4}, v: [T, N, V], "                                           \
            "g: {axes: [T, N], distribution: uniform, low: -0.05, high: 0}, "                                          \
            "b: {axes: [T, N], distribution: uniform}",                                                                \
            "", " {}\n", "  y: gated_delta_rule(q, k, v, g, b)\nprofiles: [bf16]\nfused: all\n")

/* RMS of the error scale of y at bf16. */
static double scale_of_y(const char *text)
{
    OWNED_BY(trial_close) trial t;
    double squares = 0;
    trial_evaluate(&t, case_from(text), NULL);
    const assay_tensor *scale = assay_tensor_set_find(&t.golden, "error_scale/bf16/outputs/y");
    for (int64_t i = 0; i < scale->count; i++) squares += scale->values[i] * scale->values[i];
    const double rms = sqrt(squares / (double)scale->count);
    return rms;
}

/* A chunk at a time reads a state in bfloat16, token by token need not; kept in bfloat16 it gathers roundings. */
TEST(a_state_errs_as_the_type_that_it_is_kept_in)
{
    const double chunks = scale_of_y(STATES), single = scale_of_y(STATES "accumulate: {y: float32}\n"),
                 half = scale_of_y(STATES "accumulate: {y: float16}\n"),
                 brain = scale_of_y(STATES "accumulate: {y: bfloat16}\n");
    assert_true(single > 0 && single < chunks * 0x1p-10);
    assert_true(half > single * 0x1p10 && half < chunks / 2);
    assert_true(brain > 1.2 * chunks && brain < 10 * chunks);
}

/* The largest are those of x, also where a member stores the maximum on another grid. */
TEST(a_maximum_has_its_gradient_in_every_member)
{
    OWNED_BY(trial_close) trial t;
    trial_evaluate(&t,
                   case_from(PROGRAM("T: 5, D: 6", "x: [T, D]", "", "\n  a: tanh(x)\n",
                                     "  y: mul(max(a, over=\"D\"), 3)\nprofiles: [f64, bf16]\nfused: [a]\n")),
                   NULL);
    const double *dx = assay_tensor_set_find(&t.golden, "gradients/inputs/x")->values;
    const assay_tensor *fine = assay_tensor_set_find(&t.golden, "error_scale/f64/gradients/inputs/x"),
                       *coarse = assay_tensor_set_find(&t.golden, "error_scale/bf16/gradients/inputs/x");
    double most = 0;
    int any = 0;
    for (int64_t i = 0; i < fine->count; i++) most = fmax(most, fabs(dx[i]));
    for (int64_t i = 0; i < fine->count; i++) {
        any += dx[i] != 0;
        assert_true(fine->values[i] <= 0x1p-48 * most);
        assert_true(coarse->values[i] <= 0x1p-6 * most);
    }
    assert_int_equal(any, 5);
}

/* Behind a mask a whole row may be -1e30, whose logarithm of 3 no number has beside it: its gradients are thirds all the same, in
 * every member too. */
TEST(a_sum_of_exponentials_far_from_zero_has_its_gradient)
{
    OWNED_BY(trial_close) trial t;
    double dy[3];
    trial_evaluate(&t,
                   case_from(PROGRAM("T: 3, D: 3",
                                     "x: {axes: [T, D], values: [-1.0e30, -1.0e30, -1.0e30, -1.0e9, -1.0e9, -1.0e9, "
                                     "1.0e5, 1.0e5, 1.0e5]}",
                                     "", " {}\n", "  y: logsumexp(x, over=\"D\")\nprofiles: [f32]\n")),
                   NULL);
    assert_ok(&t.ctx, t.source.read(&t.ctx, t.source.self, "cotangents/y", 0, 3, dy));
    const assay_tensor *dx = assay_tensor_set_find(&t.golden, "gradients/inputs/x"),
                       *scale = assay_tensor_set_find(&t.golden, "error_scale/f32/gradients/inputs/x");
    for (int64_t i = 0; i < dx->count; i++) {
        const double third = dy[i / 3] / 3;
        assert_close(dx->values + i, &third, 1, 1e-15, 0);
        assert_true(scale->values[i] > 0 && scale->values[i] <= 0.05 * fabs(third));
    }
}

/* What is read through a detach alone has a gradient of exactly 0, in every member; a kernel that lets it flow is told. */
TEST(a_gradient_that_is_stopped_is_exactly_zero)
{
    OWNED_BY(trial_close) trial t;
    OWNED_BY(assay_power_test_free) assay_power_test found = {0};
    trial_evaluate(&t,
                   case_from(PROGRAM("T: 5, D: 6", "x: [T, D], t: [T, D]", "", "\n  gap: sub(x, detach(tanh(t)))\n",
                                     "  y: sum(square(gap), over=\"D\")\nprofiles: [f32]\n")),
                   NULL);
    const assay_tensor *x = assay_tensor_set_find(&t.golden, "gradients/inputs/x"),
                       *of_t = assay_tensor_set_find(&t.golden, "gradients/inputs/t"),
                       *scale = assay_tensor_set_find(&t.golden, "error_scale/f32/gradients/inputs/t");
    for (int64_t i = 0; i < of_t->count; i++) {
        assert_true(x->values[i] != 0);
        assert_true(of_t->values[i] == 0 && scale->values[i] == 0);
    }
    assert_ok(&t.ctx,
              assay_power_test_run(&t.ctx, &t.plan, &t.golden, assay_profile_by_name("f32"), 1e-6, NULL, &found));
    const int place = assay_mutant_place(&found.mutants, "step:gap.detach:gradient_not_stopped");
    assert_true(place >= 0 && found.items[place].outcome == ASSAY_MUTANT_DETECTED);
}

#define NORM(weights, line)                                                                                            \
    PROGRAM("T: 24, D: 256", "x: [T, D]", weights, " {}\n", "  y: " line "\nfused: all\nprofiles: [bf16]\n")

/* A scale that a kernel computes in registers is rounded nowhere, nor is x / rms before: what is left is of float32. */
TEST(what_a_norm_reads_in_registers_is_not_rounded)
{
    const double norm = scale_of_y(NORM("w: {axes: [D], scale: 0.1, mean: 1}", "rms_norm(x, w)")),
                 near = scale_of_y(NORM("w: {axes: [D], scale: 0.1}", "rms_norm(x, add(w, 1.0))")),
                 layer = scale_of_y(
                     NORM("w: {axes: [D], scale: 0.1, mean: 1}, b: {axes: [D], scale: 0.1}", "layer_norm(x, w, b)")),
                 near_layer = scale_of_y(
                     NORM("w: {axes: [D], scale: 0.1}, b: {axes: [D], scale: 0.1}", "layer_norm(x, add(w, 1.0), b)"));
    assert_true(near > 0 && near < 0.01 * norm);
    assert_true(near_layer > 0 && near_layer < 0.01 * layer);
}

TEST(without_memory_nothing_is_read)
{
    for (int64_t n = 0;; n++) {
        assay_context ctx = assay_context_default(1);
        assay_case *cases = NULL;
        int count = 0;
        assay_fail_allocation(n);
        const assay_status status = assay_cases_parse(&ctx, "test.yml", SMALL, strlen(SMALL), &cases, &count);
        const bool done = had_memory(&ctx, status);
        assay_cases_free(cases, count);
        if (done) break;
    }
}
