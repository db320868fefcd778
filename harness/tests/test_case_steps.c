/* Cases as steps: whole, in order, with all that the contract has of them; and their picture. */
#include <libxml/parser.h>
#include <libxml/xpath.h>

#include "harness/judge/case_steps.h"
#include "harness/tests/harness_test.h"
#include "oracle/base/memory.h"

static xmlDoc *picture_of(const assay_steps *steps)
{
    size_t size = 0;
    OWNED char *text = NULL;
    FILE *out = assay_text_open(&text, &size);
    assert_non_null(out);
    assert_true(assay_steps_draw(out, steps, NULL, 0));
    assert_true(assay_text_close(out, &text));
    xmlDoc *picture = xmlReadMemory(text, (int)strlen(text), NULL, NULL, XML_PARSE_NOERROR | XML_PARSE_NOWARNING);
    assert_non_null(picture);
    return picture;
}

static double number_of(xmlNode *node, const char *name)
{
    xmlChar *text = xmlGetProp(node, (const xmlChar *)name);
    assert_non_null(text);
    const double number = strtod((const char *)text, NULL);
    xmlFree(text);
    return number;
}

/* Boxes, one for each step, lie within the picture and not on each other. */
static void check_boxes(const char *name, xmlDoc *picture, int steps)
{
    xmlXPathContext *context = xmlXPathNewContext(picture);
    xmlXPathObject *found = xmlXPathEvalExpression((const xmlChar *)"//*[@class='box']", context);
    xmlNode *svg = xmlDocGetRootElement(picture), **boxes = found->nodesetval->nodeTab;
    assert_int_equal(found->nodesetval->nodeNr, steps);
    for (int i = 0; i < steps; i++) {
        const double x = number_of(boxes[i], "x"), y = number_of(boxes[i], "y");
        const double right = x + number_of(boxes[i], "width"), bottom = y + number_of(boxes[i], "height");
        if (!(x > 0 && y > 0 && right < number_of(svg, "width") && bottom < number_of(svg, "height")))
            fail_msg("%s: box %d lies outside", name, i);
        for (int j = 0; j < i; j++) {
            const double x2 = number_of(boxes[j], "x"), y2 = number_of(boxes[j], "y");
            const bool beside = x2 >= right || x2 + number_of(boxes[j], "width") <= x;
            const bool below = y2 >= bottom || y2 + number_of(boxes[j], "height") <= y;
            if (!beside && !below) fail_msg("%s: boxes %d and %d lie on each other", name, j, i);
        }
    }
    xmlXPathFreeObject(found);
    xmlXPathFreeContext(context);
}

/* What a step is given has been made, and all steps together are the case's work. */
static void check_steps(const assay_case *c, const assay_steps *steps)
{
    double sum = 0;
    for (int i = 0; i < steps->step_count; i++) {
        sum += steps->steps[i].operations;
        for (int k = 0; k < steps->steps[i].in_count; k++) {
            const int in = steps->steps[i].in[k];
            if (!(in >= 0 && in < steps->tensor_count && steps->tensors[in].step < i))
                fail_msg("%s: step %d is given what nobody has made", c->name, i);
        }
    }
    const assay_operation *operation = assay_operation_by_name(c->op);
    if (operation->count.axes != NULL || c->program != NULL) return; /* steps count products and attention */
    if (sum != assay_operation_flops(operation, c, false)) fail_msg("%s: %g operations", c->name, sum);
}

TEST_WITH_CONTEXT(all_cases_that_have_steps)
{
    int count = 0, tried = 0;
    assay_case *cases = all_cases(&count);
    for (int i = 0; i < count; i++) {
        const assay_case *c = &cases[i];
        const assay_operation *operation = assay_operation_by_name(c->op);
        assay_steps *steps = NULL, *shown = NULL;
        if (!assay_has_steps(operation)) continue;
        assert_ok(&ctx, assay_case_steps(&ctx, c, true, &steps));
        assert_ok(&ctx, assay_case_steps(&ctx, c, false, &shown));
        check_steps(c, steps);
        check_steps(c, shown);
        assay_tensor_list list = tensors_of(c);
        for (int k = 0; k < list.count; k++) {
            const assay_tensor_spec *spec = &list.entries[k].spec;
            const assay_tensor_role role = spec->role;
            const bool wanted =
                role == ASSAY_ROLE_CHECKPOINT || role == ASSAY_ROLE_ROUTING || role == ASSAY_ROLE_OUTPUT;
            if (wanted && !assay_steps_show(steps, spec->path)) fail_msg("%s: no step makes %s", c->name, spec->path);
        }
        assay_tensor_list_free(&list);
        xmlDoc *picture = picture_of(steps);
        check_boxes(c->name, picture, steps->step_count);
        xmlFreeDoc(picture);
        assay_steps_free(steps);
        assay_steps_free(shown);
        tried++;
    }
    assert_true(tried > 100);
    assay_cases_free(cases, count);
}

TEST_WITH_CONTEXT(other_operations_are_refused)
{
    OWNED_BY(free_case) assay_case *c = case_named("permute/stable", NULL);
    assay_steps *steps;
    assert_int_equal(assay_case_steps(&ctx, c, true, &steps), ASSAY_BAD_INPUT);
    assert_null(steps);
    assert_non_null(strstr(ctx.message, "op is permute, which has no steps; expected one of "));
}

TEST_WITH_CONTEXT(out_of_memory_leaves_nothing_behind)
{
    OWNED_BY(free_case) assay_case *c = case_named("deepseek_stack/three-layers", NULL);
    assay_steps *steps;
    size_t size = 0;
    int64_t n = 0;
    while (lacks_memory(&n, &ctx, assay_case_steps(&ctx, c, false, &steps))) assert_null(steps);
    assert_true(n > 3);
    for (n = 0;; n++) {
        char *text = NULL;
        FILE *out = assay_text_open(&text, &size);
        assert_non_null(out);
        assay_fail_allocation(n);
        const bool drawn = assay_steps_draw(out, steps, NULL, 0);
        const bool whole = assay_text_close(out, &text) && drawn;
        assert_int_equal(whole, !assay_allocation_failed());
        assay_fail_allocation(-1);
        free(text);
        if (whole) break;
    }
    assert_true(n >= 4);
    assay_steps_free(steps);
}
