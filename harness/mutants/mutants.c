/* The table of mutants, which `assay list --mutants` prints; its rows stand in rows/, a file for each chapter.
 *
 * A row begins with what the mutant is: its name, what it models, bugs, which traits an operation needs for it, and
 * which operations must detect it. Then it says what it changes, of which most rows need one:
 *   KEY(key, how, by)            a key of the configuration: FLIP a flag; a number TO, PLUS, TIMES, SQUARED
 *   TEXT(key, "one>other")       a text; .keys = {CHANGE(...), CHANGE(...)}: two keys; .sets = FLAG(...): what is no key;
 *                                .router: a member of its rule
 *   INPUTS(paths, edit, .by = n) inputs, weights and chosen experts whose paths end in one of these; for three edits MOVED(paths,
 *                                axis, places), REPLACED(paths, number) and MULTIPLIED(paths, number of the case)
 *   COTANGENTS(paths, edit, ...) the same of cotangents
 *   RESULTS(folders, edit, ...)  the golden's results in these folders; with `.named = paths` those of them alone
 *   INTEGERS(folders, edit, ...) the same of indices and counts
 *   HIDDEN_SCALES(edit, ...)     scales of h that the kernel quantises itself
 *   STEP(kind, tensors, how, ...) a step of this kind that reads or makes one of these tensors, wherever it stands; CHANGED(word):
 *                                what is no step of a graph, or is told another parameter
 *   .degrade, .whole_blocks, .whole_rows: the arithmetic
 *   .configure, .change_inputs, .change_results: a function, for what one key or tensor alone cannot say
 * and, where it needs to, how it is evaluated (`.golden_choice` ...) and to which cases alone it applies (`.where`).
 *
 * Most edits are three: `fill` and `scale` (`.by`) change numbers, `move` exchanges them. ALONG(axis, places) says which: for
 * each place along the axis, from which one its numbers come, or that they are of the part that is changed (to 0, by `move`).
 * Axes are labels or what mutant_change.c calls them; places stand in mutants_places.c; `.number` or, by the case,
 * `.of_case` says of how many. EACH(numbers) changes each number by itself. mutants.h says what each member means; mutants_tensors.h lists the functions to choose from.
 * A new one is declared there and stands in the file of its kind. */
#include <math.h>
#include <string.h>

#include "harness/mutants/mutants_tensors.h"
#include "harness/mutants/step_changes.h"
#include "harness/operations/op_support.h"

/* Traits of operations: one of them is enough; 0 is every operation. */
#define ROUTER ASSAY_USES_ROUTER
#define EXPERTS ASSAY_USES_EXPERTS
#define GATED (ASSAY_USES_MLP | ASSAY_USES_EXPERTS)
#define LATENT ASSAY_USES_LATENT
#define GROUPED ASSAY_USES_GROUPED
#define PROJECTED (ASSAY_USES_LATENT | ASSAY_USES_GROUPED)
#define ROPE ASSAY_USES_ROPE
#define ATTENTION ASSAY_USES_ATTENTION
#define SHARING ASSAY_USES_SHARING
#define MERGE ASSAY_USES_MERGE
#define DECODE ASSAY_USES_DECODE
#define CACHE ASSAY_USES_CACHE
#define NORMED (ASSAY_USES_NORM | ASSAY_USES_LATENT)
#define LAYER ASSAY_USES_LAYER
#define GROUPS ASSAY_USES_GROUPS
#define SORT ASSAY_USES_SORT
#define COMBINE ASSAY_USES_COMBINE
#define QUANTIZE ASSAY_USES_QUANTIZE
#define DEQUANTIZE ASSAY_USES_DEQUANTIZE
#define CODES ASSAY_HAS_CODES
#define HIDDEN ASSAY_HAS_HIDDEN
#define CACHE_BYTES ASSAY_HAS_CACHE_BYTES
#define RECIPE ASSAY_HAS_RECIPE
#define RECIPE_OF_BLOCKS ASSAY_HAS_RECIPE_OF_BLOCKS
#define WITH_INTERMEDIATES (GATED | ATTENTION)
#define WITH_LINEAR (GATED | PROJECTED | GROUPS)
#define WITH_PRODUCTS (WITH_INTERMEDIATES | GROUPS)
#define WITH_FUNCTIONS (ASSAY_USES_NORM | ROPE | ATTENTION)

/* Paths of inputs and weights, folders of results. */
#define UP_WEIGHTS "wi wi_0 wi_1"
#define KERNELS "wi wi_0 wi_1 wo"
#define STREAMS "kv_cache ckv_cache kpe_cache key_cache value_cache"
#define GIVEN_SCALES "k_scale v_scale kv_scale"
#define CACHES                                                                                                         \
    "kv_cache ckv_cache kpe_cache key_cache value_cache kv_cache_scale ckv_cache_scale kpe_cache_scale "               \
    "key_cache_scale value_cache_scale"
#define EXPERT_WEIGHTS "wi wi_0 wi_1 wo wi_0_bias wi_1_bias wo_bias rhs"
#define EVERYTHING "outputs gradients checkpoints"

/* What is divided is not, and the reverse; a softmax over all is one over the chosen. */
#define METHODS                                                                                                        \
    "Default>Renormalize Renormalize>Default DeepSeekV3>Sigmoid RenormalizeNaive>Default TopK>Renormalize "            \
    "SigmoidRenorm>Sigmoid MiniMax2>Sigmoid Sigmoid>SigmoidRenorm TopKSigmoid>SigmoidRenorm"

#define CHANGE(name, change, value)                                                                                    \
    {                                                                                                                  \
        .key = ASSAY_KEY_AT_##name, .how = ASSAY_KEY_##change, .by = value                                             \
    }
#define KEY(name, change, value) .keys = {CHANGE(name, change, value)}
#define TEXT(name, pairs) .keys = {{.key = ASSAY_KEY_AT_##name, .how = ASSAY_KEY_EXCHANGED, .value = pairs}}
#define FLAG(name) offsetof(assay_model_config, name)
#define INPUTS(paths, ...) .inputs = {.of = paths, .edit = __VA_ARGS__}
#define COTANGENTS(paths, ...) .inputs = {.of = paths, .cotangents = true, .edit = __VA_ARGS__}
#define MOVED(paths, name, map, ...) INPUTS(paths, assay_edit_move, ALONG(name, map), __VA_ARGS__)
#define REPLACED(paths, number) INPUTS(paths, EACH(replaced), .by = number)
#define MULTIPLIED(paths, number) INPUTS(paths, assay_edit_scale, .by = 1, OF_CASE(number))
#define RESULTS(folders, ...) .results = {.of = folders, .edit = __VA_ARGS__}
#define INTEGERS(folders, ...) .integers = {.of = folders, .edit = __VA_ARGS__}
#define HIDDEN_SCALES(...) .hidden_scales = {.edit = __VA_ARGS__}
#define STEP(of, named, change, ...) .step = {.how = ASSAY_STEP_##change, .kind = of, .tensors = named, __VA_ARGS__}
#define READS(what)                                                                                                    \
    .step = {.how = ASSAY_STEP_CHANGED, .kind = "reading", .reading = assay_change_reading, .change = ASSAY_READ_##what}
#define BYTES(change)                                                                                                  \
    INPUTS(STREAMS " " GIVEN_SCALES, assay_edit_given_bytes, .by = ASSAY_BYTES_##change),                              \
        .integers.by = ASSAY_BYTES_##change, .change_results = assay_edit_written_bytes
#define CACHED(becomes) EACH(cached), .by = ASSAY_CACHED_##becomes
#define PAGES(paths, ...) INPUTS(paths, __VA_ARGS__), .change_inputs = assay_edit_none_to_first_page
#define STAGE(paths, ...) .stage = {.of = paths, .edit = __VA_ARGS__}
#define EACH(map) assay_edit_each, .each = assay_##map
#define ALONG(name, map) .axis = name, .places = assay_##map
#define OF_CASE(name) .of_case = ASSAY_CASE_##name
#define WHERE(name) .where = ASSAY_WHERE_##name
#define LOG2_E 1.4426950408889634
#define NO_SINK (-1000.0) /* far below any score */
#define WHOLE_SEQUENCE 1e9

const assay_mutant assay_mutants[] = {
    /* the whole candidate is nothing */
    {"zero_results", "every result is zero", "", 0, ASSAY_EVERYWHERE, .always = true,
     RESULTS(EVERYTHING, assay_edit_fill, .by = 0), INTEGERS("outputs routing", assay_edit_fill, .by = 0)},
    {"nan_results", "every result is NaN", "16, 26, 55", 0, ASSAY_EVERYWHERE, .always = true,
     RESULTS(EVERYTHING, assay_edit_fill, .by = NAN)},
    {"no_results", "no result is given", "", 0, ASSAY_EVERYWHERE, .always = true,
     .change_results = assay_edit_omit_all},
    {"result_missing", "the last result is not given", "59", 0, ASSAY_EVERYWHERE, .always = true,
     .change_results = assay_edit_omit_last},
    {"other_seed", "the results of other inputs", "33", 0, ASSAY_EVERYWHERE, .other_seed = true},
/* clang-format off */
#include "harness/mutants/rows/routing.inc"
#include "harness/mutants/rows/dispatch.inc"
#include "harness/mutants/rows/codes.inc"
#include "harness/mutants/rows/cache.inc"
#include "harness/mutants/rows/recipes.inc"
#include "harness/mutants/rows/operands.inc"
#include "harness/mutants/rows/shards.inc"
#include "harness/mutants/rows/mlp.inc"
#include "harness/mutants/rows/attention.inc"
#include "harness/mutants/rows/decode.inc"
#include "harness/mutants/rows/layers.inc"
#include "harness/mutants/rows/results.inc"
    /* clang-format on */
};
const int assay_mutant_count = sizeof assay_mutants / sizeof *assay_mutants;

const assay_mutant *assay_mutant_by_name(const char *name)
{
    for (int i = 0; i < assay_mutant_count; i++)
        if (strcmp(assay_mutants[i].name, name) == 0) return &assay_mutants[i];
    for (int i = 0; i < assay_ignored_setting_count; i++)
        if (strcmp(assay_ignored_settings[i].name, name) == 0) return &assay_ignored_settings[i];
    return NULL;
}

const char *assay_mutant_way(const assay_mutant *mutant)
{
    if (assay_mutant_changes_configuration(mutant)) return "configuration";
    if (assay_mutant_changes_steps(mutant) || mutant->stage.of != NULL) return "steps";
    if (mutant->degrade != NULL || assay_mutant_is_lossy(mutant)) return "arithmetic";
    if (assay_mutant_requantises(mutant)) return "arithmetic";
    return assay_mutant_changes_inputs(mutant) || mutant->other_seed ? "inputs" : "results";
}

bool assay_mutant_changes_steps(const assay_mutant *mutant)
{
    return mutant->step.how != ASSAY_STEP_AS_IT_IS;
}

bool assay_mutant_is_lossy(const assay_mutant *mutant)
{
    return mutant->whole_blocks > 0 || mutant->whole_rows != 0;
}

bool assay_mutant_requantises(const assay_mutant *mutant)
{
    return mutant->requantise != NULL || mutant->hidden_scales.edit != NULL;
}

bool assay_mutant_is_evaluated(const assay_mutant *mutant)
{
    return strcmp(assay_mutant_way(mutant), "results") != 0;
}

static unsigned traits_of(const assay_plan *plan)
{
    unsigned traits = plan->operation->components;
    const assay_quant_recipe *recipe = assay_quant_recipe_by_name(plan->c->config.quant_recipe.text);
    if (recipe != NULL) traits |= ASSAY_HAS_RECIPE;
    if (recipe != NULL && recipe->dx_dy.scales == ASSAY_SCALES_BLOCKS) traits |= ASSAY_HAS_RECIPE_OF_BLOCKS;
    if (strcmp(plan->operation->name, "batch_split") == 0) traits |= ASSAY_IS_FUNCTION;
    if ((traits & DECODE) != 0 && strcmp(plan->c->config.kv_cache_dtype.text, "auto") != 0) traits |= CACHE_BYTES;
    for (int i = 0; i < plan->list.count; i++) {
        const assay_tensor_spec *spec = &plan->list.entries[i].spec;
        if (strcmp(spec->path, "inputs/x") == 0) traits |= ASSAY_HAS_X;
        if (plan->list.entries[i].format != NULL) traits |= ASSAY_HAS_CODES;
        if (assay_path_is_hidden(spec->path)) traits |= ASSAY_HAS_HIDDEN;
        if (spec->role == ASSAY_ROLE_WEIGHT) traits |= ASSAY_HAS_WEIGHTS;
    }
    return traits;
}

bool assay_mutant_is_for(const assay_mutant *mutant, const assay_plan *plan)
{
    return mutant->traits == 0 || (mutant->traits & traits_of(plan)) != 0;
}

bool assay_mutant_is_required(const assay_mutant *mutant, const assay_plan *plan)
{
    const unsigned components = plan->operation->components & ASSAY_USES_ALL;
    const bool layers = (components & ASSAY_USES_LAYER) != 0, several = (components & (components - 1)) != 0;
    const assay_extent extent = layers ? ASSAY_EVERYWHERE : several ? ASSAY_IN_BLOCKS : ASSAY_ALONE;
    return assay_mutant_is_for(mutant, plan) && extent <= mutant->required;
}
