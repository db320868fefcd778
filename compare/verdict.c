#include "compare/verdict.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

const char *assay_verdict_name(assay_verdict verdict)
{
    static const char *const names[] = {"PASS", "FAIL", "VACUOUS", "NOT COMPARABLE", "UNSUPPORTED"};
    return names[verdict];
}

const char *assay_verdict_color(assay_verdict verdict)
{
    return verdict == ASSAY_PASS ? "\033[32m" : verdict == ASSAY_FAIL ? "\033[31m" : "\033[33m";
}

void assay_routing_text(const assay_routing_summary *routing, char text[512])
{
    text[0] = '\0';
    if (!routing->judged) {
        if (routing->message[0] != '\0') snprintf(text, 512, "routing: %s", routing->message);
        return;
    }
    snprintf(text, 512, "routing: %" PRId64 " tokens: %" PRId64 " exact, %" PRId64 " admissible, %" PRId64 " wrong%s",
             routing->tokens, routing->exact, routing->admissible, routing->wrong,
             routing->evaluated_again ? "; compared with the golden evaluated again given the candidate's choice" : "");
}

static const assay_tensor_result *first_of(const assay_report *report, assay_verdict verdict)
{
    for (int i = 0; i < report->count; i++) {
        if (report->tensors[i].verdict == verdict) return &report->tensors[i];
    }
    return NULL;
}

static void say_passed(assay_report *report)
{
    int compared = 0, vacuous = 0;
    const assay_tensor_result *first = first_of(report, ASSAY_VACUOUS);
    for (int i = 0; i < report->count; i++) {
        compared += report->tensors[i].compared;
        vacuous += report->tensors[i].verdict == ASSAY_VACUOUS;
    }
    int length = snprintf(report->message, sizeof report->message, "%d tensor%s correct at %.32s", compared - vacuous,
                          compared - vacuous == 1 ? "" : "s", report->profile);
    if (first != NULL) {
        snprintf(report->message + length, sizeof report->message - (size_t)length, "; zeros would pass in %s%s",
                 first->spec.path, vacuous > 1 ? " and others" : "");
    }
}

/* A kernel without backward, of which nobody said so. */
static bool has_no_gradient(const assay_report *report)
{
    int gradients = 0;
    for (int i = 0; i < report->count; i++) {
        const assay_tensor_result *r = &report->tensors[i];
        if (r->spec.role != ASSAY_ROLE_GRADIENT || !r->required) continue;
        if (r->finding != ASSAY_FINDING_MISSING) return false;
        gradients++;
    }
    return gradients > 0;
}

void assay_conclude(assay_report *report, const assay_certificate_inputs *shown)
{
    const assay_tensor_result *wrong = first_of(report, ASSAY_FAIL);
    const assay_tensor_result *not_comparable = first_of(report, ASSAY_NOT_COMPARABLE);
    const assay_tensor_result *vacuous = first_of(report, ASSAY_VACUOUS);
    const assay_direction_result *along = assay_direction_worst(report->direction_count, report->directions);
    bool informed = shown->floats_required ? shown->floats : shown->integers;
    char *message = report->message;
    if (wrong != NULL) {
        report->verdict = ASSAY_FAIL;
        snprintf(message, sizeof report->message, "%s", wrong->message);
        if (wrong->spec.role == ASSAY_ROLE_GRADIENT && has_no_gradient(report))
            snprintf(message, sizeof report->message,
                     "%.160s, nor is any gradient (forward only? --set gradients=none, in Python gradients=False)",
                     wrong->message);
    } else if (report->unknown_count > 0) {
        report->verdict = ASSAY_FAIL;
        const bool result = assay_role_is_result(assay_role_of(report->unknown[0]));
        snprintf(message, sizeof report->message, "%.128s: unknown path, %s", report->unknown[0],
                 result ? "the golden has no such dataset" : "no result has it");
    } else if (along != NULL) {
        char text[ASSAY_DIRECTION_TEXT];
        assay_direction_text(along, text);
        report->verdict = ASSAY_FAIL;
        snprintf(message, sizeof report->message, "no tensor alone, but %s", text);
    } else if (not_comparable != NULL) {
        report->verdict = ASSAY_NOT_COMPARABLE;
        snprintf(message, sizeof report->message, "%s", not_comparable->message);
    } else if (!informed) {
        report->verdict = ASSAY_VACUOUS;
        snprintf(message, sizeof report->message, "%s",
                 vacuous != NULL ? vacuous->message
                                 : "nothing but zeros to compare: any backend that does nothing passes");
    } else {
        report->verdict = ASSAY_PASS;
        say_passed(report);
        assay_report_weigh(report);
    }
}

void assay_report_join_stages(assay_report *report)
{
    const assay_report *stages = report->stages;
    const size_t length = strlen(report->message);
    if (stages == NULL) return;
    if (report->verdict == ASSAY_PASS && stages->verdict == ASSAY_PASS) {
        snprintf(report->message + length, sizeof report->message - length, "%s",
                 stages->count > 0 ? "; every stage by itself too" : "; no checkpoint is given to begin a stage with");
    }
    if (stages->verdict != ASSAY_FAIL && stages->verdict != ASSAY_NOT_COMPARABLE) return;
    report->verdict = stages->verdict == ASSAY_FAIL || report->verdict == ASSAY_FAIL ? ASSAY_FAIL : stages->verdict;
    snprintf(report->message, sizeof report->message, "stage %.240s", stages->message);
    snprintf(report->diagnosis, sizeof report->diagnosis, "%s", stages->diagnosis);
    if (stages->explanation[0] == '\0') return;
    snprintf(report->explanation, sizeof report->explanation, "by stage, %.480s", stages->explanation);
    memcpy(report->explained_by, stages->explained_by, sizeof report->explained_by);
    report->explained_count = stages->explained_count;
}

void assay_report_weigh(assay_report *report)
{
    if (report->verdict != ASSAY_PASS || report->power.vacuous[0] == '\0') return;
    report->verdict = ASSAY_VACUOUS;
    snprintf(report->message, sizeof report->message,
             "the golden would let mutant %.64s pass at %.32s: correct, but so is a backend with this bug",
             report->power.vacuous, report->profile);
}
