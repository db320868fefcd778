#include "harness/commands/report_parcel.h"

#include <stdlib.h>
#include <string.h>

#include "compare/steps.h"
#include "oracle/base/memory.h"

static void pack_steps(const assay_steps *s, FILE *out)
{
    fwrite(s, sizeof *s, 1, out);
    fwrite(s->steps, sizeof *s->steps, (size_t)s->step_count, out);
    fwrite(s->tensors, sizeof *s->tensors, (size_t)s->tensor_count, out);
}

void assay_report_pack(const assay_report *report, FILE *out)
{
    fwrite(report, sizeof *report, 1, out);
    if (report->count > 0) fwrite(report->tensors, sizeof *report->tensors, (size_t)report->count, out);
    for (int i = 0; i < report->unknown_count; i++) fwrite(report->unknown[i], strlen(report->unknown[i]) + 1, 1, out);
    for (int i = 0; report->pictures != NULL && i < report->count; i++) {
        fputc(report->pictures[i] != NULL, out);
        if (report->pictures[i] != NULL) fwrite(report->pictures[i], sizeof *report->pictures[i], 1, out);
    }
    if (report->steps != NULL) pack_steps(report->steps, out);
    if (report->stages != NULL) assay_report_pack(report->stages, out);
}

/* NULL: there are not so many bytes. */
static const char *next(const char **at, const char *end, size_t size)
{
    const char *here = *at;
    if ((size_t)(end - here) < size) return NULL;
    *at += size;
    return here;
}

static void *copy(const char *from, size_t size)
{
    void *memory = from == NULL ? NULL : malloc(size + 1);
    return memory == NULL ? NULL : memcpy(memory, from, size);
}

static bool unpack_unknown(const char **at, const char *end, assay_report *report, int count)
{
    if (count == 0) return true;
    if (count < 0 || count > end - *at) return false; /* each has a byte at least */
    report->unknown = calloc((size_t)count, sizeof *report->unknown);
    for (; report->unknown != NULL && report->unknown_count < count; report->unknown_count++) {
        const size_t size = strnlen(*at, (size_t)(end - *at)) + 1;
        char *name = copy(next(at, end, size), size);
        if (name == NULL) return false;
        report->unknown[report->unknown_count] = name;
    }
    return report->unknown != NULL;
}

static bool unpack_pictures(const char **at, const char *end, assay_report *report)
{
    report->pictures = calloc((size_t)report->count + 1, sizeof *report->pictures);
    for (int i = 0; report->pictures != NULL && i < report->count; i++) {
        const char *drawn = next(at, end, 1);
        if (drawn == NULL) return false;
        if (*drawn == 0) continue;
        report->pictures[i] = copy(next(at, end, sizeof *report->pictures[i]), sizeof *report->pictures[i]);
        if (report->pictures[i] == NULL) return false;
    }
    return report->pictures != NULL;
}

static bool unpack_steps(const char **at, const char *end, assay_report *report)
{
    assay_steps *s = copy(next(at, end, sizeof *s), sizeof *s);
    if (s == NULL) return false;
    report->steps = s;
    const size_t of_steps = (size_t)s->step_count * sizeof *s->steps;
    const size_t of_tensors = (size_t)s->tensor_count * sizeof *s->tensors;
    s->steps = copy(next(at, end, of_steps), of_steps);
    s->tensors = copy(next(at, end, of_tensors), of_tensors);
    return s->steps != NULL && s->tensors != NULL;
}

assay_status assay_report_unpack(assay_context *ctx, const char **at, const char *end, assay_report *report)
{
    assay_report packed;
    const char *head = next(at, end, sizeof packed);
    *report = (assay_report){0};
    if (head == NULL) return assay_fail(ctx, ASSAY_INTERNAL, "a report is cut short");
    memcpy(&packed, head, sizeof packed);
    *report = packed;
    report->tensors = NULL;
    report->unknown = NULL;
    report->pictures = NULL;
    report->steps = NULL;
    report->stages = NULL;
    report->count = report->unknown_count = 0;
    const size_t size = (size_t)packed.count * sizeof *packed.tensors;
    report->tensors = copy(next(at, end, size), size);
    if (report->tensors != NULL) report->count = packed.count;
    if (report->tensors == NULL || !unpack_unknown(at, end, report, packed.unknown_count) ||
        (packed.pictures != NULL && !unpack_pictures(at, end, report)) ||
        (packed.steps != NULL && !unpack_steps(at, end, report))) {
        return assay_fail(ctx, ASSAY_NO_MEMORY, "no memory for a report");
    }
    if (packed.stages == NULL) return ASSAY_OK;
    MUST(assay_alloc_list(ctx, "a report", 1, sizeof *report->stages, &report->stages));
    return assay_report_unpack(ctx, at, end, report->stages);
}
