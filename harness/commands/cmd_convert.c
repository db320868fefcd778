#include <stdio.h>

#include "fixtures/files.h"
#include "fixtures/fixture.h"
#include "harness/commands/command.h"
#include "harness/plan/progress.h"

static assay_status check_names(assay_context *ctx, const char *from, const char *to)
{
    const char *const paths[] = {from, to};
    for (int i = 0; i < 2; i++) {
        MUST(assay_fixture_check_name(ctx, paths[i]));
        if (assay_fixture_is_file_name(paths[i])) continue;
        return assay_fail(ctx, ASSAY_BAD_INPUT, "%s: expected a name that ends in .h5 or .safetensors", paths[i]);
    }
    return ASSAY_OK;
}

static int64_t count_of(const assay_fixture_reader *reader, int index)
{
    return assay_shape_count(&assay_fixture_spec(reader, index)->shape);
}

static assay_status run(assay_context *ctx, const assay_options *options, int *exit_code)
{
    assay_status status;
    const char *from = options->arguments[0], *to = options->arguments[1];
    assay_fixture_reader *reader = NULL;
    assay_fixture_writer *writer = NULL;
    assay_progress progress = {0};
    int64_t elements = 0;
    *exit_code = ASSAY_EXIT_PASS;
    TRY(check_names(ctx, from, to));
    TRY(assay_fixture_open(ctx, from, &reader));
    const int count = assay_fixture_count(reader);
    /* what carries digests keeps them, so they must be right */
    if (assay_fixture_text(reader, "digest") != NULL) TRY(assay_fixture_check_digests(ctx, reader));
    TRY(assay_make_parents(ctx, to));
    TRY(assay_fixture_create(ctx, to, &writer));
    TRY(assay_fixture_copy_attributes(ctx, reader, writer));
    for (int i = 0; i < count; i++) {
        const assay_tensor_spec *spec = assay_fixture_spec(reader, i);
        const assay_random_recipe *recipe = assay_fixture_recipe(reader, spec->path);
        TRY(recipe != NULL && !options->materialise ? assay_fixture_declare_recipe(ctx, writer, spec, recipe)
                                                    : assay_fixture_declare(ctx, writer, spec));
        elements += count_of(reader, i);
    }
    assay_progress_start(&progress, options->quiet, to, elements);
    for (int i = 0; i < count; i++) {
        const char *path = assay_fixture_spec(reader, i)->path;
        TRY(assay_fixture_copy_elements(ctx, reader, writer, path));
        assay_progress_add(&progress, count_of(reader, i), path);
    }
    assay_progress_end(&progress);
cleanup:
    status = assay_fixture_end(ctx, writer, status);
    if (status == ASSAY_OK) printf("%s\n", to);
    assay_fixture_close(reader);
    return status;
}

const assay_command assay_command_convert = {
    .name = "convert",
    .arguments = "FROM TO",
    .summary = "a golden, request or candidate into another container: .h5, .safetensors",
    .details = "The endings of the names choose. Numbers, attributes and digests stay what they are.\n",
    .options = ASSAY_OPT_MATERIALISE,
    .least = 2,
    .most = 2,
    .run = run,
};
