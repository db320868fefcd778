#include "harness/commands/rank_costs.h"

#include <math.h>
#include <string.h>

#include "harness/golden/golden.h"
#include "harness/plan/sections.h"
#include "harness/ranks/ranks.h"
#include "harness/sketch/sketch.h"

const char *const assay_loop_names[ASSAY_LOOPS] = {[ASSAY_SHARE_EXPERTS] = "experts",
                                                   [ASSAY_SHARE_HEADS] = "heads",
                                                   [ASSAY_SHARE_ROWS] = "parts of products",
                                                   [ASSAY_LOOP_MEMBERS] = "members"};

const char *const assay_rank_quantity_names[ASSAY_RANK_QUANTITIES] = {"operations", "drawn",   "sent",
                                                                      "received",   "written", "memory"};

/* What a run of the operation is asked for: of a gradient that is sketched, all of it. */
typedef enum wanted_kind { VALUES, SCALED_VALUES, NO_VALUES, SCALES } wanted_kind;

typedef struct wanted {
    const assay_plan *plan;
    wanted_kind kind;
    const char *precision; /* of SCALES */
} wanted;

static bool has_at(const assay_plan *plan, assay_tensor_role role, const char *precision, const char *path)
{
    char at[ASSAY_PATH_SIZE];
    assay_path_at(role, precision, path, at);
    return assay_plan_find(plan, at) >= 0;
}

static bool has_scale(const assay_plan *plan, const char *path)
{
    bool any = false;
    for (int p = 0; p < plan->precision_count; p++)
        any |= has_at(plan, ASSAY_ROLE_ERROR_SCALE, plan->precisions[p].name, path);
    return any;
}

static bool is_in_plan(const wanted *w, const char *path)
{
    switch (w->kind) {
    case VALUES:
        return assay_plan_find(w->plan, path) >= 0;
    case SCALED_VALUES:
        return has_scale(w->plan, path);
    case SCALES:
        return has_at(w->plan, ASSAY_ROLE_ERROR_SCALE, w->precision, path);
    case NO_VALUES:
        break;
    }
    return false;
}

static bool is_wanted(void *self, const char *path)
{
    const wanted *w = self;
    const assay_tensor_list *list = &w->plan->list;
    bool any = is_in_plan(w, path);
    for (int i = 0; i < list->sketched_count && !any; i++) {
        if (strcmp(list->sketched[i].path, path) != 0) continue;
        for (int part = 0; part < ASSAY_SKETCH_PARTS && !any; part++) {
            const assay_tensor_spec spec =
                assay_sketch_spec(&list->sketched[i], w->plan->c->sketch_above, (assay_sketch_part)part);
            any = is_in_plan(w, spec.path);
        }
    }
    return any;
}

static bool has(void *self, const char *path)
{
    return assay_role_is_given(assay_role_of(path)) &&
           assay_tensor_list_find(&((const assay_plan *)self)->list, path) != NULL;
}

static double bytes_of(const assay_tensor_spec *spec, double size)
{
    return size * (double)assay_shape_count(&spec->shape);
}

/* Of all that is given, or of the weights alone, read once. */
static double read_bytes(const assay_plan *plan, bool weights)
{
    double bytes = 0;
    for (int i = 0; i < plan->list.count; i++) {
        const assay_tensor_spec *spec = &plan->list.entries[i].spec;
        const bool read = weights ? spec->role == ASSAY_ROLE_WEIGHT : assay_role_is_given(spec->role);
        if (read && spec->type != ASSAY_INT32) bytes += bytes_of(spec, sizeof(double));
    }
    return bytes;
}

static double given_bytes(const assay_plan *plan)
{
    return read_bytes(plan, false);
}

/* Bytes of errors that a member leaves, of a precision. */
static double bytes_of_member(const assay_plan *plan, const assay_precision *precision)
{
    double bytes = 0;
    const bool null_only = assay_ensemble_is_propagated(plan, precision);
    for (int i = 0; i < plan->list.count; i++) {
        const assay_tensor_spec *spec = &plan->list.entries[i].spec;
        if (!assay_has_error_scale(spec)) continue;
        const assay_tensor_role role = null_only ? ASSAY_ROLE_NULL : ASSAY_ROLE_ERROR_SCALE;
        if (has_at(plan, role, precision->name, spec->path)) bytes += bytes_of(spec, sizeof(float));
    }
    return bytes;
}

/* The part of what is given that is not in memory after the golden run. */
static double part_again(const assay_plan *plan)
{
    const double given = given_bytes(plan);
    return given > 0 ? fmax(1 - ASSAY_ENSEMBLE_BYTES / given, 0) : 0;
}

typedef struct run_kind {
    const assay_sink *scales; /* [count]: that come with it */
    int count;
    double drawn; /* the part of what is given that is drawn or read, and not in memory */
    bool nearest; /* in emulated arithmetic, whose products are whole */
} run_kind;

/* A run of the operation by all ranks; whether they share any of it. */
static bool add_run(const assay_plan *plan, wanted_kind kind, const run_kind *run, assay_shared_work *work)
{
    wanted values = {plan, kind, NULL};
    const assay_source in = {.self = (void *)plan, .has = has};
    const assay_sink out = {.self = &values, .wants = is_wanted};
    assay_run_shares shares = {0};
    bool any = false;
    assay_operation_shares(plan->operation, plan->c, work->least, &in, &out, run->scales, run->count, &shares);
    if (run->nearest) shares.loops[ASSAY_SHARE_ROWS] = (assay_ranks_loop){0};
    work->operations +=
        shares.operations > 0 ? shares.operations : assay_operation_flops(plan->operation, plan->c, true);
    work->drawn += run->drawn * (given_bytes(plan) + (shares.weights_twice ? read_bytes(plan, true) : 0));
    for (int i = 0; i < ASSAY_SHARES; i++) {
        any |= shares.loops[i].pieces > 0;
        shares.loops[i].drawn *= run->drawn;
        assay_ranks_loop_add(&work->loops[i], &shares.loops[i]);
    }
    return any;
}

/* Each member is a run of the operation, of which ranks share no part; but the one to nearest by all of them. */
static void add_members(const assay_plan *plan, double run, assay_shared_work *work)
{
    const bool null = plan->null_left_out[0] == '\0';
    assay_ranks_loop *loop = &work->loops[ASSAY_LOOP_MEMBERS];
    const double given = given_bytes(plan), part = part_again(plan);
    if (assay_ensemble_needs_no_runs(plan) && !null) return;
    work->drawn += fmin(given, ASSAY_ENSEMBLE_BYTES);
    for (int p = 0; p < plan->precision_count; p++) {
        const assay_precision *precision = &plan->precisions[p];
        const int members = assay_ensemble_members(plan, precision);
        if (assay_ensemble_is_propagated(plan, precision) && !null) continue;
        loop->pieces += members;
        loop->times++;
        loop->put += members * bytes_of_member(plan, precision);
        loop->operations += members * run;
        loop->drawn += members * part * given;
        if (null) add_run(plan, SCALED_VALUES, &(run_kind){.drawn = part, .nearest = true}, work);
    }
    work->operations += loop->operations;
    work->drawn += loop->drawn;
}

/* What an ensemble passes on to all ranks of a golden run that has left it with the first one. */
static double golden_bytes(const assay_plan *plan)
{
    double bytes = 0;
    for (int i = 0; i < plan->list.count; i++) {
        const assay_tensor_spec *spec = &plan->list.entries[i].spec;
        const bool choice = assay_path_is_choice(spec->path);
        if (choice) bytes += bytes_of(spec, sizeof(int32_t)) + sizeof(int64_t);
        if (!choice && assay_has_error_scale(spec) && has_scale(plan, spec->path))
            bytes += bytes_of(spec, sizeof(double)) + sizeof(int64_t);
    }
    return bytes;
}

/* The golden one; and where scales are raised one of rounded inputs, and one for their scales. */
static void add_runs(const assay_plan *plan, assay_shared_work *work)
{
    enum { MOST = 16 };
    wanted of[MOST];
    assay_sink scales[MOST];
    int count = 0;
    const double part = part_again(plan);
    const bool ensemble = !assay_ensemble_needs_no_runs(plan) || plan->null_left_out[0] == '\0';
    for (int p = 0; p < plan->precision_count && count < MOST; p++) {
        const assay_precision *precision = &plan->precisions[p];
        if (!assay_ensemble_is_propagated(plan, precision) || assay_ensemble_is_raised(plan, precision)) continue;
        of[count] = (wanted){plan, SCALES, precision->name};
        scales[count] = (assay_sink){.self = &of[count], .wants = is_wanted};
        count++;
    }
    if (add_run(plan, VALUES, &(run_kind){scales, count, 1, false}, work) && ensemble)
        work->loops[ASSAY_LOOP_MEMBERS].broadcast += golden_bytes(plan);
    for (int p = 0; p < plan->precision_count; p++) {
        wanted own = {plan, SCALES, plan->precisions[p].name};
        const assay_sink scale = {.self = &own, .wants = is_wanted};
        if (!assay_ensemble_is_raised(plan, &plan->precisions[p])) continue;
        add_run(plan, SCALED_VALUES, &(run_kind){.drawn = part}, work);
        add_run(plan, NO_VALUES, &(run_kind){&scale, 1, part, false}, work);
    }
}

/* Which types what is given lies beyond the range of: every rank looks, and at most at all of it. */
static void add_looks(const assay_plan *plan, assay_shared_work *work)
{
    for (int p = 0; p < plan->precision_count; p++)
        if (plan->precisions[p].given_beyond) work->drawn += given_bytes(plan);
}

assay_shared_work assay_shared_work_of(const assay_plan *plan, double least)
{
    assay_shared_work work = {.least = least,
                              .stored = assay_golden_given_bytes(plan),
                              .written = (double)plan->file_bytes,
                              .memory = (double)plan->memory};
    work.drawn = work.stored;
    add_looks(plan, &work);
    add_runs(plan, &work);
    add_members(plan, assay_operation_flops(plan->operation, plan->c, true), &work);
    return work;
}

/* The part of the loops that the rank with most pieces has, or that with fewest. */
static double part_of(const assay_ranks_loop *loop, int64_t ranks, bool most)
{
    if (loop->pieces == 0) return 0;
    const double pieces = (double)loop->pieces / (double)loop->times, share = pieces / (double)ranks;
    return (most ? ceil(share) : floor(share)) / pieces;
}

void assay_rank_costs(const assay_shared_work *work, int64_t ranks, assay_rank_cost costs[ASSAY_RANK_QUANTITIES])
{
    const double n = (double)ranks;
    double shared = 0, drawn = 0, put = 0, broadcast = 0;
    double most_shared = 0, most_drawn = 0, most_put = 0, least_own = 0;
    for (int i = 0; i < ASSAY_LOOPS; i++) {
        const assay_ranks_loop *loop = &work->loops[i];
        const double most = part_of(loop, ranks, true), own = part_of(loop, ranks, false);
        shared += loop->operations;
        drawn += loop->drawn;
        put += loop->put;
        broadcast += loop->broadcast;
        most_shared += most * loop->operations;
        most_drawn += most * loop->drawn;
        most_put += most * loop->put;
        least_own += own * loop->put;
    }
    const double everywhere = work->operations - shared;
    const double drawn_everywhere = work->drawn - work->stored - drawn;
    int children = 0;
    while (assay_ranks_child(0, ranks, children) >= 0) children++;
    const double passed_on = broadcast * children;
    const double left = ranks > 1 ? 1 : 0;
    costs[ASSAY_RANK_OPERATIONS] =
        (assay_rank_cost){everywhere + most_shared, n * everywhere + shared, work->operations};
    costs[ASSAY_RANK_DRAWN] = (assay_rank_cost){drawn_everywhere + most_drawn + work->stored,
                                                n * drawn_everywhere + drawn + work->stored, work->drawn};
    costs[ASSAY_RANK_SENT] =
        (assay_rank_cost){left * fmax(most_put, passed_on), left * (put - least_own) + (n - 1) * broadcast, 0};
    costs[ASSAY_RANK_RECEIVED] =
        (assay_rank_cost){left * fmax(put - least_own, broadcast), left * (put - least_own) + (n - 1) * broadcast, 0};
    costs[ASSAY_RANK_WRITTEN] = (assay_rank_cost){work->written, work->written, work->written};
    costs[ASSAY_RANK_MEMORY] = (assay_rank_cost){work->memory, n * work->memory, work->memory};
}
