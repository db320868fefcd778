/* The registry of operations: every row is whole, says the parts of its tensors, and has cases, tests and a page. What
 * harness/operations/README.md asks for and somebody left out is named here. */
#include <glob.h>

#include "harness/mutants/mutants_tensors.h"
#include "harness/tests/harness_test.h"

TEST(rows_are_whole)
{
    for (int i = 0; assay_operations[i] != NULL; i++) {
        const assay_operation *op = assay_operations[i];
        const int evaluations = (op->graph != NULL && op->run == NULL) + (op->compute != NULL) + (op->run != NULL);
        const bool drawn = op->graph != NULL;
        const bool whole = op->config_of != NULL && (drawn || op->describe != NULL) &&
                           (drawn || op->operations != NULL || op->count.axes != NULL) &&
                           (op->run == NULL || op->bytes != NULL) && op->summary != NULL && strlen(op->summary) > 10;
        if (!whole || evaluations != 1) fail_msg("the row of %s lacks a function, or a summary, or has two", op->name);
        if (op->second_form.form == NULL) fail_msg("%s has no second form", op->name);
        assert_ptr_equal(assay_operation_by_name(op->name), op);
        for (int j = 0; j < i; j++) assert_string_not_equal(op->name, assay_operations[j]->name);
    }
    assert_null(assay_operation_by_name("attention_of_a_kind"));
}

/* What is a matter of bits has no gradient. */
static bool has_no_gradient(const assay_operation *op)
{
    return (op->components & (ASSAY_USES_QUANTIZE | ASSAY_USES_DEQUANTIZE)) != 0 || op == &assay_op_cache_append;
}

/* Whether the case asks for the gradient of everything that has one. */
static bool has_all_gradients(const assay_case *c)
{
    OWNED_BY(assay_tensor_list_free) assay_tensor_list list = tensors_of(c);
    int cotangents = 0, gradients = 0, missing = 0;
    for (int i = 0; i < list.count; i++) {
        const assay_tensor_spec *spec = &list.entries[i].spec;
        cotangents += spec->role == ASSAY_ROLE_COTANGENT;
        if (spec->role != ASSAY_ROLE_GRADIENT) continue;
        gradients++;
        missing += !assay_text_list_matches(&c->gradients, "gradients/", spec->path);
    }
    if (gradients > 0 && cotangents == 0) fail_msg("%s has gradients, and no output with a cotangent", c->op);
    return gradients > 0 && missing == 0;
}

TEST(rows_have_cases)
{
    int count = 0;
    assay_case *cases = all_cases(&count);
    for (int i = 0; assay_operations[i] != NULL; i++) {
        const char *name = assay_operations[i]->name;
        double flops = 0;
        int found = 0, gradients = 0;
        for (int j = 0; j < count; j++) {
            bool same = strcmp(cases[j].op, name) == 0;
            found += same;
            flops += same ? assay_operation_flops(assay_operations[i], &cases[j], true) : 0;
            gradients += same && has_all_gradients(&cases[j]);
        }
        if (found == 0) fail_msg("the catalogue has no case of %s", name);
        if (!(flops > 0)) fail_msg("flops of %s is 0 for every case", name);
        if ((gradients == 0) != has_no_gradient(assay_operations[i]))
            fail_msg("all its gradients: no case of %s, or one though it has none", name);
    }
    assay_cases_free(cases, count);
}

/* Tensors that show a part of a model: an operation has the part exactly where one of its cases has such a tensor. */
static const struct {
    unsigned component;
    const char *name, *paths;
} inputs[] = {
    {ASSAY_USES_NORM, "NORM", "weights/scale pre_self_attention_layer_norm/scale"},
    {ASSAY_USES_MLP, "MLP", "weights/wo/kernel mlp/wo/kernel"},
    {ASSAY_USES_ROUTER, "ROUTER", "gate/kernel inputs/logits"},
    {ASSAY_USES_EXPERTS, "EXPERTS", "weights/wo moe/wo"},
    {ASSAY_USES_ROPE, "ROPE", "inputs/positions"},
    {ASSAY_USES_ATTENTION, "ATTENTION", "attention_out"},
    {ASSAY_USES_LATENT, "LATENT", "wkv_a/kernel"},
    {ASSAY_USES_LAYER, "LAYER", "decoder_layer_input"},
    {ASSAY_USES_GROUPS, "GROUPS", "inputs/group_sizes"},
    {ASSAY_USES_SORT, "SORT", "outputs/sorted_inputs"},
    {ASSAY_USES_MERGE, "MERGE", "inputs/partial_lse"},
    {ASSAY_USES_DECODE, "DECODE", "inputs/cache_seqlens"},
    {ASSAY_USES_CACHE, "CACHE", "inputs/slot_mapping"},
    {ASSAY_USES_COMBINE, "COMBINE", "inputs/sorted"},
    {ASSAY_USES_QUANTIZE, "QUANTIZE", "outputs/codes"},
    {ASSAY_USES_DEQUANTIZE, "DEQUANTIZE", "inputs/codes"},
};

static unsigned parts_shown(const assay_case *c)
{
    assay_tensor_list list = tensors_of(c);
    unsigned components = 0;
    for (int i = 0; i < list.count; i++) {
        const char *path = list.entries[i].spec.path;
        for (size_t k = 0; k < sizeof inputs / sizeof *inputs; k++) {
            const bool shown =
                !assay_path_in(path, "gradients") && assay_any_word(inputs[k].paths, path, assay_path_ends);
            components |= shown ? inputs[k].component : 0;
        }
    }
    assay_tensor_list_free(&list);
    return (components & ASSAY_USES_MERGE) != 0 ? ASSAY_USES_MERGE
                                                : components; /* of attention it has the result alone */
}

TEST(rows_have_the_parts_of_their_tensors)
{
    int count = 0;
    assay_case *cases = all_cases(&count);
    for (int i = 0; assay_operations[i] != NULL; i++) {
        const assay_operation *op = assay_operations[i];
        unsigned components = 0;
        if (strcmp(op->name, "program") == 0) continue; /* whose tensors are called as users like */
        if (strcmp(op->name, "l2_norm") == 0) continue; /* a norm without a scale */
        for (int j = 0; j < count; j++) components |= strcmp(cases[j].op, op->name) == 0 ? parts_shown(&cases[j]) : 0;
        for (size_t k = 0; k < sizeof inputs / sizeof *inputs; k++) {
            if ((components & inputs[k].component) == (op->components & inputs[k].component)) continue;
            const bool shown = (components & inputs[k].component) != 0;
            fail_msg("%s: .components %s ASSAY_HAS_%s, and %s case has a tensor of \"%s\"", op->name,
                     shown ? "lacks" : "has", inputs[k].name, shown ? "a" : "no", inputs[k].paths);
        }
    }
    assay_cases_free(cases, count);
}

/* A file of the tree as text, to be freed. */
static char *text_of(const char *path)
{
    char full[ASSAY_PATH_SIZE];
    size_t size = 0;
    snprintf(full, sizeof full, "%s/%s", ASSAY_ROOT, path);
    char *text = (char *)bytes_of(full, &size);
    text[size] = '\0';
    return text;
}

/* Whether a test of the folder, or what its tests share, has the line. */
static bool tests_have(const char *folder, const char *line)
{
    char pattern[2 * ASSAY_PATH_SIZE];
    glob_t tests;
    bool found = false;
    snprintf(pattern, sizeof pattern, "%s/%s/tests/*.[ch]", ASSAY_ROOT, folder);
    if (glob(pattern, 0, NULL, &tests) != 0) return false;
    for (size_t i = 0; i < tests.gl_pathc && !found; i++) {
        OWNED char *text = text_of(tests.gl_pathv[i] + strlen(ASSAY_ROOT) + 1);
        found = strstr(text, line) != NULL;
    }
    globfree(&tests);
    return found;
}

/* How many headers of the folder the text includes, which <assay.h> and a test must include too. */
static int check_headers(const char *text, const char *public, const char *folder)
{
    char begin[ASSAY_PATH_SIZE], line[ASSAY_PATH_SIZE];
    int found = 0;
    snprintf(begin, sizeof begin, "#include \"%.100s/", folder);
    for (const char *at = strstr(text, begin); at != NULL; at = strstr(at + 1, begin)) {
        snprintf(line, sizeof line, "%.*s\n", (int)strcspn(at, "\n"), at);
        if (strstr(public, line) == NULL) fail_msg("include/assay.h lacks the line %s", line);
        if (!tests_have(folder, line)) fail_msg("%s/tests has no test with the line %s", folder, line);
        found++;
    }
    return found;
}

/* How many rows the text defines, which the registry must list. */
static int check_rows(const char *text)
{
    static const char begin[] = "\nconst assay_operation assay_op_";
    int found = 0;
    for (const char *at = strstr(text, begin); at != NULL; at = strstr(at, begin)) {
        char name[ASSAY_PATH_SIZE];
        at += strlen(begin);
        snprintf(name, sizeof name, "%.*s", (int)strcspn(at, " "), at);
        if (assay_operation_by_name(name) == NULL) fail_msg("harness/operations/operation.h does not list %s", name);
        found++;
    }
    return found;
}

/* Every row is listed. What rows call of the oracle is in <assay.h>, and has tests. */
TEST(rows_are_listed_and_their_headers_public_and_tested)
{
    static const char *const folders[] = {"oracle/ops", "oracle/moe"};
    OWNED char *public = text_of("include/assay.h");
    glob_t rows;
    int found = 0, listed = 0;
    assert_int_equal(glob(ASSAY_ROOT "/harness/operations/op_*.c", 0, NULL, &rows), 0);
    for (size_t i = 0; i < rows.gl_pathc; i++) {
        OWNED char *text = text_of(rows.gl_pathv[i] + strlen(ASSAY_ROOT) + 1);
        listed += check_rows(text);
        for (size_t k = 0; k < sizeof folders / sizeof *folders; k++) found += check_headers(text, public, folders[k]);
    }
    assert_true(found >= 4 && listed >= 12);
    globfree(&rows);
}

/* A hand calculation, or an identity, of every form: certification holds the two forms against each other alone. */
TEST(second_forms_are_tested)
{
    static const char before[] = "\nquad_form ";
    OWNED char *text = text_of("oracle/quad/quad.h");
    int found = 0;
    for (const char *at = strstr(text, before); at != NULL; at = strstr(at, before)) {
        char call[ASSAY_PATH_SIZE];
        at += strlen(before);
        snprintf(call, sizeof call, "%.*s, &", (int)strcspn(at, ";"), at);
        if (!tests_have("oracle/quad", call)) fail_msg("oracle/quad/tests has no test of %s", call);
        found++;
    }
    assert_true(found >= 15);
}

/* The section of docs/operations.md up to the next one, in place; NULL when there is none. */
static char *section_of(char *text, const char *name)
{
    char heading[128];
    snprintf(heading, sizeof heading, "\n## %s\n", name);
    char *start = strstr(text, heading);
    return start == NULL ? NULL : start + 1;
}

/* Whether a table in CSV has a row that begins with this number. */
static bool table_has(const char *text, const char *number)
{
    char row[32];
    snprintf(row, sizeof row, "\n%s,", number);
    return strstr(text, row) != NULL;
}

/* Takes "layers/N/" out of a path. */
static void drop_layer(char *path)
{
    char *layer = strstr(path, "layers/"), *rest = layer == NULL ? NULL : strchr(layer + strlen("layers/"), '/');
    if (rest != NULL) memmove(layer, rest + 1, strlen(rest));
}

/* Whether a section has the tensor between backquotes: `weights/wo/kernel`, its end `wo/kernel` or `.../kernel`, or a
 * folder of it, `weights/mlp/...`. */
static bool section_has_tensor(const char *section, const char *path)
{
    const char *end = strstr(section + 1, "\n## ");
    for (const char *at = strchr(section, '`'); at != NULL && (end == NULL || at < end); at = strchr(at, '`')) {
        char name[ASSAY_PATH_SIZE];
        const size_t length = strcspn(++at, "`");
        snprintf(name, sizeof name, "%.*s", (int)length, at);
        at += length + 1;
        const bool folder = length > 4 && strcmp(name + length - 4, "/...") == 0;
        const bool tail = strncmp(name, ".../", 4) == 0;
        if (folder) name[length - 4] = '\0';
        if (folder ? assay_path_in(path, name) : assay_path_ends(path, tail ? name + 4 : name)) return true;
    }
    return false;
}

/* A layer's tensors are those of its parts too. */
static bool page_has_tensor(char *text, const assay_operation *op, const char *path)
{
    static const char *const components[] = {"deepseek_layer", "decoder_layer", "mla", "gqa", "mlp", "moe"};
    bool found = section_has_tensor(section_of(text, op->name), path);
    for (size_t i = 0; (op->components & ASSAY_USES_LAYER) != 0 && !found && i < sizeof components / sizeof *components;
         i++) {
        found = section_has_tensor(section_of(text, components[i]), path);
    }
    return found;
}

/* How many tensors that the case reads or gives its section lacks. */
static int tensors_without_line(char *text, const assay_case *c)
{
    const assay_operation *operation = assay_operation_by_name(c->op);
    OWNED_BY(assay_tensor_list_free) assay_tensor_list list = tensors_of(c);
    int missing = 0;
    for (int i = 0; i < list.count; i++) {
        char path[ASSAY_PATH_SIZE];
        snprintf(path, sizeof path, "%s", list.entries[i].spec.path);
        drop_layer(path);
        if (assay_path_in(path, "cotangents") || assay_path_in(path, "gradients")) continue;
        if (list.entries[i].part != ASSAY_OPERAND_CODES) { /* of any operand */
            assert_non_null(strstr(section_of(text, "Quantised operands"), "`PATH_scale`"));
            continue;
        }
        if (page_has_tensor(text, operation, path)) continue;
        missing++;
        print_error("docs/operations.md: %s does not name %s of %s\n", c->op, path, c->name);
    }
    return missing;
}

/* docs/operations.md has a section for every row, and it names every tensor (of batch_split every function: seeds.sh). docs/bugs.csv
 * has every known bug for which the catalogue has a case. README.md names the operation. */
TEST(rows_have_pages)
{
    int count = 0, tags = 0, missing = 0;
    assay_case *cases = all_cases(&count);
    OWNED char *text = text_of("docs/operations.md"), *readme = text_of("README.md"), *bugs = text_of("docs/bugs.csv");
    for (int i = 0; assay_operations[i] != NULL; i++) {
        const char *name = assay_operations[i]->name;
        char quoted[64];
        snprintf(quoted, sizeof quoted, "`%s`", name);
        if (section_of(text, name) == NULL) fail_msg("docs/operations.md has no section %s", name);
        if (strstr(readme, quoted) == NULL) fail_msg("README.md does not name %s", name);
    }
    for (int i = 0; i < count; i++) {
        const bool listed =
            cases[i].program == NULL && strcmp(cases[i].op, "batch_split") != 0; /* else they are the case's */
        if (listed) missing += tensors_without_line(text, &cases[i]);
        for (int j = 0; j < cases[i].tags.count; j++) {
            const char *tag = cases[i].tags.items[j];
            if (strncmp(tag, "bug-", 4) != 0) continue;
            tags++;
            if (table_has(bugs, tag + 4)) continue;
            missing++;
            print_error("docs/bugs.csv does not have %s of %s\n", tag, cases[i].name);
        }
    }
    assert_true(tags > 100);
    assert_int_equal(missing, 0);
    assay_cases_free(cases, count);
}
