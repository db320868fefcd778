/* Steps of programs on numbers that are worked out by hand. */

#include "oracle/quad/tests/quad_case.h"

/* x [T,D] = 1 2 3, 4 5 6; s [T] = 2 10; i [T] = 2 0; a single line gives y. */
static void assert_step(const char *step, const char *cotangent, const char *expected)
{
    assay_context ctx = assay_context_default(1);
    const assay_program empty = {.sizes = {['T'] = 2, ['D'] = 3, ['E'] = 2, ['R'] = 2, ['P'] = 5}};
    assay_program *p;
    assay_program_place place;
    char given[200];
    assert_ok(&ctx, assay_program_copy(&ctx, &empty, &p));
    const assay_program_tensor tensors[] = {{.name = "x", .axes = "TD"},
                                            {.name = "s", .axes = "T"},
                                            {.name = "i", .axes = "T", .integers = true},
                                            {.name = "u", .axes = "R"},
                                            {.name = "v", .axes = "P"}};
    assay_program_line lines[] = {{.name = "y", .output = true}, {.name = "rest", .output = true}};
    snprintf(lines[0].text, sizeof lines[0].text, "%s", step);
    snprintf(lines[1].text, sizeof lines[1].text, "%s",
             "add(add(add(sum(x, over=\"TD\"), sum(s, over=\"T\")), add(sum(u, over=\"R\"), sum(v, over=\"P\"))),"
             " add(sum(pick(x, i), over=\"T\"), sum(rearrange(\"T->TE\", s), over=\"TE\")))");
    for (int i = 0; i < 5; i++) assert_ok(&ctx, assay_program_add_tensor(&ctx, p, &tensors[i]));
    for (int i = 0; i < 2; i++) assert_ok(&ctx, assay_program_add_line(&ctx, p, &lines[i]));
    assert_ok(&ctx, assay_program_compile(&ctx, p, &place));
    const assay_program *config = p;
    snprintf(
        given, sizeof given,
        "inputs/x 1 2 3 4 5 6; inputs/s 2 10; inputs/i # 2 0; inputs/u 7 8; inputs/v 1 0 -1 2 -2; cotangents/y %s; "
        "cotangents/rest 0",
        cotangent);
    assert_by_hand(quad_program, &config, given, expected);
    assay_program_free(p);
}

TEST(test_steps_by_hand)
{
    assert_step("sum(mul(x, s), over=\"D\")", "1 -1",
                "outputs/y 12 150; gradients/inputs/x 2 2 2 -10 -10 -10; gradients/inputs/s 6 -15");
    assert_step("cumsum(x, over=\"T\")", "1 2 3 4 5 6", "outputs/y 1 2 3 5 7 9; gradients/inputs/x 5 7 9 4 5 6");
    assert_step("pick(x, i)", "1 2", "outputs/y 3 4; gradients/inputs/x 0 0 1 2 0 0");
    assert_step("max(x, over=\"T\")", "1 2 3", "outputs/y 4 5 6; gradients/inputs/x 0 0 0 1 2 3");
    assert_step("max(sub(x, x), over=\"D\")", "3 6", "outputs/y 0 0; gradients/inputs/x 0 0 0 0 0 0");
    assert_step("rearrange(\"TD->DT\", x)", "1 2 3 4 5 6", "outputs/y 1 4 2 5 3 6; gradients/inputs/x 1 3 5 2 4 6");
    assert_step("concatenate(\"D,R->P\", sum(x, over=\"T\"), u)", "1 2 3 4 5",
                "outputs/y 5 7 9 7 8; gradients/inputs/x 1 2 3 1 2 3; gradients/inputs/u 4 5");
    assert_step("product(\"TD,TD->T\", x, x)", "1 1", "outputs/y 14 77; gradients/inputs/x 2 4 6 8 10 12");
    assert_step("mul(s, detach(s))", "1 -1", "outputs/y 4 100; gradients/inputs/s 2 -10");
    assert_step("where(i, s, mul(s, 3))", "1 1", "outputs/y 2 30; gradients/inputs/s 1 3");
    assert_step("maximum(s, 5)", "1 1", "outputs/y 5 10; gradients/inputs/s 0 1");
    assert_step("div(s, mean(x, over=\"D\"))", "1 1",
                "outputs/y 1 2; gradients/inputs/s 0.5 0.2; gradients/inputs/x -.16666666666666666 -.16666666666666666 "
                "-.16666666666666666 -.13333333333333333 "
                "-.13333333333333333 -.13333333333333333");
    assert_step("slice(\"P->R\", v, first=3)", "1 2", "outputs/y 2 -2; gradients/inputs/v 0 0 0 1 2");
}
