/* The tensors of each function of the batch-split module. */
#include "oracle/layer/batch_split_function_internal.h"

#include <stdio.h>
#include <string.h>

/* Room for another one. */
static assay_function_tensor *add(assay_function_tensors *list, const char *folder, const char *group, const char *name)
{
    assay_function_tensor *tensor = &list->items[list->count++];
    *tensor = (assay_function_tensor){.weight = -1, .bundle = -1, .result = strcmp(folder, "outputs") == 0};
    snprintf(tensor->path, sizeof tensor->path, "%s/%s%s%.100s", folder, group, group[0] != '\0' ? "/" : "", name);
    memcpy(tensor->of, tensor->path, sizeof tensor->of);
    return tensor;
}

static bool is_integer(assay_function_holds holds)
{
    return holds == ASSAY_HOLDS_CHOICES || holds == ASSAY_HOLDS_POSITIONS || holds == ASSAY_HOLDS_LAYER ||
           holds == ASSAY_HOLDS_INTEGERS || holds == ASSAY_HOLDS_COUNTS || holds == ASSAY_HOLDS_ROLLED ||
           holds == ASSAY_HOLDS_OWN_COUNTS;
}

/* Of an argument: whether it has a gradient. */
static bool has_gradient(const bs_tensor_form *form)
{
    return !is_integer(form->holds) && form->holds != ASSAY_HOLDS_ANGLES && !form->constant;
}

static const bs_tensor_form *form_of(const bs_tensor_form *forms, const char *name)
{
    for (int i = 0; i < BS_MOST_ARGUMENTS && forms[i].name != NULL; i++) {
        if (strcmp(forms[i].name, name) == 0) return &forms[i];
    }
    return NULL;
}

/* `other`: of those that no layer has its place is counted from there. */
static assay_function_tensor *add_form(const bs_run *run, const char *folder, const bs_tensor_form *form,
                                       bs_tensor other, int64_t place, assay_function_tensors *list)
{
    if (strchr(form->axes, 'o') != NULL && run->factor == 1) return NULL; /* there is no microbatch but the last */
    assay_function_tensor *tensor = add(list, folder, "", form->name);
    snprintf(tensor->axes, sizeof tensor->axes, "%s", form->axes);
    tensor->shape.rank = (int)strlen(form->axes);
    for (int k = 0; k < tensor->shape.rank; k++) tensor->shape.dims[k] = bs_axis_size(run, form->axes[k]);
    tensor->holds = form->holds;
    tensor->integers = is_integer(form->holds);
    tensor->tensor = form->tensor != MB_NONE ? form->tensor : (bs_tensor)(other + place);
    return tensor;
}

static void add_arguments(const assay_function_config *config, const bs_run *run, const bs_tensor_form *forms,
                          assay_function_tensors *list)
{
    const assay_batch_split_function *bwd = assay_function_backward(config->function);
    const bool results = forms == config->function->out;
    for (int i = 0; i < BS_MOST_ARGUMENTS && forms[i].name != NULL; i++) {
        char gradient[ASSAY_PATH_SIZE];
        assay_function_tensor *tensor =
            add_form(run, results ? "outputs" : "inputs", &forms[i], results ? MB_OTHER_OUT : MB_OTHER_IN, i, list);
        snprintf(gradient, sizeof gradient, "%.100s_grad", forms[i].name);
        if (tensor == NULL || bwd == NULL) continue;
        tensor->differentiated = results ? form_of(bwd->in, gradient) != NULL : has_gradient(&forms[i]);
    }
}

/* Of a NAME_bwd: X as NAME's argument or, if that has none, as what it left; Y_grad as its result Y. */
static void add_given(const assay_function_config *config, const bs_run *run, const assay_batch_split_function *forward,
                      assay_function_tensors *list)
{
    const bs_tensor_form *forms = config->function->in;
    for (int i = 0; i < BS_MOST_ARGUMENTS && forms[i].name != NULL; i++) {
        char name[ASSAY_PATH_SIZE];
        bs_tensor_form form = forms[i];
        const bool gradient = bs_ends_with(form.of != NULL ? form.of : form.name, "_grad", name);
        const bs_tensor_form *argument = gradient || form.axes != NULL ? NULL : form_of(forward->in, name);
        const bs_tensor_form *behind = argument != NULL ? argument : form_of(forward->out, name);
        form.tensor = behind->tensor;
        if (form.axes == NULL) {
            form.axes = behind->axes;
            form.holds = argument != NULL ? argument->holds : gradient ? ASSAY_HOLDS_NUMBERS : ASSAY_HOLDS_RESIDUAL;
        }
        assay_function_tensor *tensor = argument != NULL
                                            ? add_form(run, "inputs", &form, MB_OTHER_IN, argument - forward->in, list)
                                            : add_form(run, "inputs", &form, MB_OTHER_OUT, behind - forward->out, list);
        if (tensor == NULL) continue;
        snprintf(tensor->of, sizeof tensor->of, "%s/%.140s", argument != NULL ? "inputs" : "outputs", name);
        tensor->gradient = gradient;
    }
}

/* X_grad of each argument X that has one. */
static void add_gradients(const bs_run *run, const assay_batch_split_function *forward, assay_function_tensors *list)
{
    for (int i = 0; i < BS_MOST_ARGUMENTS && forward->in[i].name != NULL; i++) {
        char name[ASSAY_PATH_SIZE];
        const bs_tensor_form form = {.name = name, .axes = forward->in[i].axes, .tensor = forward->in[i].tensor};
        if (!has_gradient(&forward->in[i])) continue;
        snprintf(name, sizeof name, "%.100s_grad", forward->in[i].name);
        assay_function_tensor *tensor = add_form(run, "outputs", &form, MB_OTHER_IN, i, list);
        snprintf(tensor->of, sizeof tensor->of, "inputs/%.100s", forward->in[i].name);
        tensor->gradient = true;
    }
}

static assay_tensor_row take_row(assay_function_tensor *tensor, const bs_run *run, int weight)
{
    const assay_tensor_row of_weight = bs_weight_row(run, weight), *row = &of_weight;
    memcpy(tensor->axes, row->axes, sizeof tensor->axes);
    tensor->shape = row->shape;
    tensor->holds = row->kind == ASSAY_KERNEL ? ASSAY_HOLDS_KERNEL
                    : row->kind == ASSAY_BIAS ? ASSAY_HOLDS_BIAS
                                              : ASSAY_HOLDS_SCALE;
    tensor->fan_in = row->fan_in > 0 ? row->fan_in : row->shape.dims[0];
    tensor->weight = weight;
    tensor->by_expert = weight >= BS_ROUTED;
    return of_weight;
}

/* One more axis. */
static void insert_axis(assay_function_tensor *tensor, int at, char axis, int64_t size)
{
    memmove(tensor->axes + at + 1, tensor->axes + at, (size_t)(tensor->shape.rank - at) + 1);
    memmove(tensor->shape.dims + at + 1, tensor->shape.dims + at,
            (size_t)(tensor->shape.rank - at) * sizeof *tensor->shape.dims);
    tensor->axes[at] = axis;
    tensor->shape.dims[at] = size;
    tensor->shape.rank++;
}

/* A weight as the shards have it. */
static void put_on_shards(assay_function_tensor *tensor, const bs_run *run, bool gathered)
{
    tensor->shape = bs_weight_shape(run, tensor->weight, gathered);
    if (tensor->by_expert) tensor->axes[0] = 'e';
    insert_axis(tensor, 0, 'm', run->sizes.shards);
}

static void add_weights(const assay_function_config *config, const bs_run *run, assay_function_tensors *list)
{
    const assay_batch_split_function *f = config->function;
    for (const bs_weight_form *form = bs_row_of(f)->weights; form != NULL && form->name != NULL; form++) {
        assay_function_tensor *tensor = add(list, "weights", "", form->name);
        take_row(tensor, run, form->weight);
        tensor->differentiated = assay_function_backward(f) != NULL;
    }
}

/* Each shard's own, or of scales and biases the sum. */
static void add_weight_gradients(const bs_run *run, const assay_batch_split_function *forward,
                                 assay_function_tensors *list)
{
    for (const bs_weight_form *form = forward->weights; form != NULL && form->name != NULL; form++) {
        char name[ASSAY_PATH_SIZE];
        snprintf(name, sizeof name, "%.100s_grad", form->name);
        assay_function_tensor *tensor = add(list, "outputs", "", name);
        snprintf(tensor->of, sizeof tensor->of, "weights/%.100s", form->name);
        tensor->gradient = true;
        const assay_tensor_row row = take_row(tensor, run, form->weight);
        tensor->holds = ASSAY_HOLDS_NUMBERS;
        if (row.kind == ASSAY_KERNEL) put_on_shards(tensor, run, true);
    }
}

/* The axes over which a weight is not split: the shards along them have the same numbers of it. What is summed over fsdp has been summed
 * over expert too. */
static unsigned same_axes(const assay_tensor_row *row, int weight, const bs_bundle_form *form)
{
    const unsigned data = 1u << ASSAY_AXIS_DATA, fsdp = 1u << ASSAY_AXIS_FSDP, expert = 1u << ASSAY_AXIS_EXPERT;
    const bool gathered = form->lying == BS_GATHERED, apart = weight >= BS_ROUTED || (gathered && form->sums);
    if (row->kind != ASSAY_KERNEL) return data | fsdp | expert;
    return (apart ? 0 : expert) | (form->sums ? 0 : data | (gathered ? fsdp : 0));
}

static void add_bundle(const assay_function_config *config, const bs_run *run, const char *folder, int place,
                       assay_function_tensors *list)
{
    const bs_bundle_form *form = &config->function->bundles[place];
    for (int i = 0; i < BS_BUNDLE; i++) {
        const int weight = bs_bundle[i].weight;
        assay_function_tensor *tensor = add(list, folder, form->name, bs_bundle[i].name);
        const assay_tensor_row row = take_row(tensor, run, weight);
        tensor->bundle = place;
        if (form->lying == BS_WHOLE) continue;
        if (form->lying == BS_STACKED) {
            insert_axis(tensor, (int)config->layer_axis, 'A', config->layers);
            continue;
        }
        put_on_shards(tensor, run, form->lying == BS_GATHERED);
        tensor->holds = ASSAY_HOLDS_SHARED;
        tensor->same = same_axes(&row, weight, form);
    }
}

static int bundle_count(const assay_batch_split_function *f)
{
    int count = 0;
    for (; count < 3 && f->bundles[count].lying != BS_NO_BUNDLE; count++) continue;
    return count;
}

void assay_function_tensors_of(const assay_function_config *config, assay_function_tensors *tensors)
{
    const stack_run stack = {.config = &config->stack};
    bs_run run;
    const assay_batch_split_function *f = config->function, *forward = assay_function_forward(f);
    const int bundles = bundle_count(f);
    bs_run_of(&run, &stack);
    tensors->count = 0;
    if (forward == NULL) add_arguments(config, &run, f->in, tensors);
    if (forward != NULL) add_given(config, &run, forward, tensors);
    for (int i = 0; i + 1 < bundles; i++) add_bundle(config, &run, "inputs", i, tensors);
    add_weights(config, &run, tensors);
    if (forward == NULL) add_arguments(config, &run, f->out, tensors);
    if (forward != NULL) add_gradients(&run, forward, tensors);
    if (forward != NULL) add_weight_gradients(&run, forward, tensors);
    if (bundles > 0) add_bundle(config, &run, "outputs", bundles - 1, tensors);
}

static void add_intermediates(const bs_run *run, const assay_batch_split_function *f, assay_function_tensors *made)
{
    for (int i = 0; f != NULL && i < BS_MOST_INTERMEDIATES && f->made[i].name != NULL; i++)
        add_form(run, "checkpoints", &f->made[i], MB_NONE, 0, made);
}

void assay_function_intermediates_of(const assay_function_config *config, assay_function_tensors *made)
{
    const stack_run stack = {.config = &config->stack};
    bs_run run;
    const assay_batch_split_function *f = config->function, *forward = assay_function_forward(f);
    bs_run_of(&run, &stack);
    made->count = 0;
    if (config->recipe.recipe == NULL) return;
    add_intermediates(&run, bs_row_of(f), made);
    add_intermediates(&run, forward != NULL ? f : assay_function_backward(f), made);
}

static assay_function_tensors tensors_with(const assay_function_config *config, const char *function)
{
    assay_function_config other = *config;
    assay_function_tensors tensors;
    other.function = assay_batch_split_function_of(function);
    assay_function_tensors_of(&other, &tensors);
    return tensors;
}

void assay_function_view_of(const assay_function_config *config, assay_function_view *view)
{
    const assay_batch_split_function *f = config->function;
    view->config = config;
    view->sizes = assay_batch_split_sizes_of(&config->stack);
    view->name = bs_row_of(f)->name;
    view->backward = bs_row_of(f) != f;
    view->own = tensors_with(config, f->name);
    view->forward = tensors_with(config, view->name);
    view->whole = tensors_with(config, "fetch_weights");
}
