#include "compare/steps.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "compare/style_sheets.h"

void assay_steps_free(assay_steps *steps)
{
    if (steps == NULL) return;
    free(steps->steps);
    free(steps->tensors);
    free(steps);
}

bool assay_steps_show(const assay_steps *steps, const char *path)
{
    bool shown = false;
    for (int t = 0; t < steps->tensor_count; t++) shown |= strcmp(steps->tensors[t].path, path) == 0;
    return shown;
}

/* In pixels; letters are of one width. */
enum { LETTER = 7, LINE = 16, PAD = 8, GAP = 20, LANE = 10, BETWEEN = 36 };

/* What writes the lines of a box, or measures them. */
typedef struct pen {
    FILE *out; /* NULL: it measures */
    double x, y, width;
    int lines, letters;
    const assay_report *report;
    int number;
} pen;

static void write_line(pen *p, const char *name, const char *shape)
{
    const int letters = (int)(strlen(name) + strlen(shape)) + 1;
    if (letters > p->letters) p->letters = letters;
    if (p->out != NULL)
        fprintf(p->out, "<text x=\"%.0f\" y=\"%.0f\">%s %s</text>", p->x + PAD, p->y + LINE * p->lines + 0.75 * LINE,
                name, shape);
    p->lines++;
}

static const char *color_of(const assay_tensor_result *r)
{
    if (r == NULL || (!r->compared && r->verdict == ASSAY_PASS)) return "grey";
    return r->verdict == ASSAY_PASS ? "pass" : r->verdict == ASSAY_FAIL ? "fail" : "other";
}

/* With its verdict in colour and as its title, and the way to its section of the page. */
static void write_tensor(pen *p, const assay_step_tensor *t)
{
    const assay_tensor_result *r = NULL;
    bool first = true;
    const int count = p->out == NULL || p->report == NULL ? 0 : p->report->count;
    for (int i = 0; i < count && r == NULL; i++) {
        if (strcmp(p->report->tensors[i].spec.path, t->path) == 0) r = &p->report->tensors[i];
        first &= r != NULL || p->report->tensors[i].verdict != ASSAY_FAIL;
    }
    const char *color = color_of(r);
    const bool linked = strcmp(color, "grey") != 0, failed = strcmp(color, "fail") == 0;
    if (p->out != NULL) {
        if (linked) fprintf(p->out, "<a href=\"#r%dt%d\">", p->number, (int)(r - p->report->tensors));
        fprintf(p->out, "<g class=\"%s %s%s\">",
                t->checkpoint ? "bold"
                : t->step < 0 ? "soft"
                              : "plain",
                color, failed && first ? " first" : "");
        if (t->path[0] != '\0')
            fprintf(p->out, "<title>%s%s</title>", t->path, failed && first ? " (first wrong)" : "");
        fprintf(p->out, "<rect x=\"%.0f\" y=\"%.0f\" width=\"%.0f\" height=\"%d\"/>", p->x + PAD / 2,
                p->y + LINE * p->lines, p->width - PAD, LINE - 1);
    }
    write_line(p, t->name, t->shape);
    if (p->out != NULL) fprintf(p->out, "</g>%s", linked ? "</a>" : "");
}

/* The kind, what it makes, and what it is given that no step makes. */
static void write_step(pen *p, const assay_steps *s, int number)
{
    const assay_step *step = &s->steps[number];
    if (p->out != NULL) fprintf(p->out, "<g class=\"soft\">");
    if (step->kind[0] != '\0') write_line(p, step->kind, "");
    if (step->with[0] != '\0') write_line(p, step->with, "");
    if (p->out != NULL) fprintf(p->out, "</g>");
    for (int t = 0; t < s->tensor_count; t++)
        if (s->tensors[t].step == number) write_tensor(p, &s->tensors[t]);
    for (int i = 0; i < step->in_count; i++)
        if (s->tensors[step->in[i]].step < 0) write_tensor(p, &s->tensors[step->in[i]]);
}

/* A step is a box in the row of its depth. In each row between it and the last one that reads it is a lane, which its lines
 * pass through: these places of it stand one after the other. */
typedef struct box {
    int row, rows; /* the first is the box's own */
    int place;     /* the first of as many */
    int width, height;
    double wanted; /* the middle that it would like in the row that is laid out; infinite: any */
} box;

typedef struct layout {
    const assay_steps *s;
    box *boxes;
    int *members;       /* of one row, from the left */
    int *top, *heights; /* of each row */
    double *x;          /* the middle of each place */
    int row_count, place_count;
    double width;
} layout;

/* The step that makes the input; -1: none does. */
static int maker(const assay_steps *s, int step, int i)
{
    return s->tensors[s->steps[step].in[i]].step;
}

/* As deep as what reads it allows, so that lines are short. */
static void choose_rows(layout *l)
{
    const assay_steps *s = l->s;
    box *b = l->boxes;
    for (int n = 0; n < s->step_count; n++) {
        for (int i = 0; i < s->steps[n].in_count; i++) {
            const int from = maker(s, n, i);
            if (from >= 0 && b[from].row >= b[n].row) b[n].row = b[from].row + 1;
        }
        if (b[n].row >= l->row_count) l->row_count = b[n].row + 1;
    }
    for (int n = s->step_count - 1; n >= 0; n--) {
        int next = l->row_count, last = 0;
        for (int reader = n + 1; reader < s->step_count; reader++) {
            for (int i = 0; i < s->steps[reader].in_count; i++) {
                if (maker(s, reader, i) != n) continue;
                if (b[reader].row < next) next = b[reader].row;
                if (b[reader].row > last) last = b[reader].row;
            }
        }
        if (last > 0) b[n].row = next - 1;
        b[n].rows = last > b[n].row ? last - b[n].row : 1;
    }
    for (int n = 0; n < s->step_count; n++) {
        b[n].place = l->place_count;
        l->place_count += b[n].rows;
    }
}

static void measure(layout *l)
{
    for (int n = 0; n < l->s->step_count; n++) {
        pen p = {0};
        write_step(&p, l->s, n);
        box *b = &l->boxes[n];
        b->width = LETTER * p.letters + 2 * PAD;
        b->height = LINE * p.lines + PAD;
        if (b->height > l->heights[b->row]) l->heights[b->row] = b->height;
    }
    l->top[0] = GAP;
    for (int row = 1; row <= l->row_count; row++) l->top[row] = l->top[row - 1] + l->heights[row - 1] + BETWEEN;
}

/* Where those above it are, in the middle. */
static double wanted_of(const layout *l, int n, int row)
{
    const box *b = &l->boxes[n];
    double sum = 0;
    int count = 0;
    if (row > b->row) return l->x[b->place + row - 1 - b->row];
    for (int i = 0; i < l->s->steps[n].in_count; i++) {
        const int from = maker(l->s, n, i);
        if (from < 0) continue;
        sum += l->x[l->boxes[from].place + row - 1 - l->boxes[from].row];
        count++;
    }
    return count > 0 ? sum / count : INFINITY;
}

/* From the left in the order of what they want, those that want nothing last; then the row as a whole to where they want it. */
static void lay_row(layout *l, int row)
{
    int count = 0, wanting = 0;
    double left = 0, off = 0;
    for (int n = 0; n < l->s->step_count; n++) {
        box *b = &l->boxes[n];
        if (row < b->row || row >= b->row + b->rows) continue;
        int at = count++;
        b->wanted = wanted_of(l, n, row);
        for (; at > 0 && l->boxes[l->members[at - 1]].wanted > b->wanted; at--) l->members[at] = l->members[at - 1];
        l->members[at] = n;
    }
    for (int i = 0; i < count; i++) {
        const box *b = &l->boxes[l->members[i]];
        const double width = row == b->row ? b->width : LANE;
        double *x = &l->x[b->place + row - b->row];
        *x = i > 0 ? left + width / 2 : isinf(b->wanted) ? 0 : b->wanted;
        if (!isinf(b->wanted)) *x = fmax(*x, b->wanted);
        left = *x + width / 2 + GAP;
        if (isinf(b->wanted)) continue;
        off += b->wanted - *x;
        wanting++;
    }
    for (int i = 0; i < count; i++) {
        const box *b = &l->boxes[l->members[i]];
        if (wanting > 0) l->x[b->place + row - b->row] += off / wanting;
    }
}

static void lay_out(layout *l)
{
    double least = 0, most = 0;
    measure(l);
    for (int row = 0; row < l->row_count; row++) lay_row(l, row);
    for (int n = 0; n < l->s->step_count; n++) {
        const box *b = &l->boxes[n];
        least = fmin(least, l->x[b->place] - b->width / 2.0);
        most = fmax(most, l->x[b->place] + b->width / 2.0);
        for (int k = 1; k < b->rows; k++) least = fmin(least, l->x[b->place + k] - LANE);
        for (int k = 1; k < b->rows; k++) most = fmax(most, l->x[b->place + k] + LANE);
    }
    for (int i = 0; i < l->place_count; i++) l->x[i] += GAP - least;
    l->width = most - least + 2 * GAP;
}

static void draw_line(FILE *out, const layout *l, int from, int to)
{
    const box *a = &l->boxes[from], *b = &l->boxes[to];
    double x = l->x[a->place];
    fprintf(out, "<path d=\"M%.0f %d", x, l->top[a->row] + a->height);
    for (int row = a->row + 1; row <= b->row; row++) {
        const double next = row == b->row ? l->x[b->place] : l->x[a->place + row - a->row];
        const int end = l->top[row], start = end - BETWEEN, middle = end - BETWEEN / 2;
        fprintf(out, "V%dC%.0f %d %.0f %d %.0f %d", start, x, middle, next, middle, next, end);
        x = next;
    }
    fprintf(out, "\"/>");
}

static void draw(FILE *out, const layout *l, const assay_report *report, int number)
{
    const int height = l->top[l->row_count] - BETWEEN + GAP;
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"steps\" role=\"img\" aria-label=\"steps of the case\" "
            "viewBox=\"0 0 %.0f %d\" width=\"%.0f\" height=\"%d\" style=\"width:%.0fpx\"><style>%s</style>"
            "<rect class=\"page\" width=\"%.0f\" height=\"%d\"/>",
            l->width, height, l->width, height, l->width, assay_steps_style_sheet, l->width, height);
    for (int n = 0; n < l->s->step_count; n++) {
        for (int i = 0; i < l->s->steps[n].in_count; i++)
            if (maker(l->s, n, i) >= 0) draw_line(out, l, maker(l->s, n, i), n);
    }
    for (int n = 0; n < l->s->step_count; n++) {
        const box *b = &l->boxes[n];
        const double x = l->x[b->place] - b->width / 2.0;
        pen p = {
            .out = out, .x = x, .y = l->top[b->row] + PAD / 2, .width = b->width, .report = report, .number = number};
        fprintf(out, "<rect class=\"box\" rx=\"4\" x=\"%.0f\" y=\"%d\" width=\"%d\" height=\"%d\"/>", x, l->top[b->row],
                b->width, b->height);
        write_step(&p, l->s, n);
        fprintf(out, "\n");
    }
    fprintf(out, "</svg>\n");
}

bool assay_steps_draw(FILE *out, const assay_steps *steps, const assay_report *report, int number)
{
    layout l = {.s = steps, .boxes = calloc((size_t)steps->step_count + 1, sizeof *l.boxes)};
    if (l.boxes != NULL) {
        choose_rows(&l);
        l.members = calloc((size_t)steps->step_count + 1, sizeof *l.members);
        l.top = calloc(2 * ((size_t)l.row_count + 1), sizeof *l.top);
        l.x = calloc((size_t)l.place_count + 1, sizeof *l.x);
    }
    const bool drawn = l.members != NULL && l.top != NULL && l.x != NULL;
    if (drawn) {
        l.heights = l.top + l.row_count + 1;
        lay_out(&l);
        draw(out, &l, report, number);
    }
    free(l.boxes);
    free(l.members);
    free(l.top);
    free(l.x);
    return drawn;
}
