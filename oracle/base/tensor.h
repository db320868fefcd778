/* What a tensor is called and what shape it has, and the two streams through which operations see tensors.
 *
 * An operation asks a source for a tensor, or for a slice of its flattened elements (row-major, last axis contiguous), and
 * hands results to a sink. A source may make elements from a seed, read them from a file or hold them in memory; the
 * operation cannot tell. So the same code serves a toy case and a block whose weights exceed memory. */
#pragma once

#include "oracle/base/dtype.h"
#include "oracle/base/status.h"

struct assay_random_recipe;

#define ASSAY_MAX_RANK 12
#define ASSAY_PATH_SIZE 160

typedef struct assay_shape {
    int rank;
    int64_t dims[ASSAY_MAX_RANK];
} assay_shape;

assay_shape assay_shape_of(int rank, ...);           /* rank arguments of type int64_t */
int64_t assay_shape_count(const assay_shape *shape); /* of a shape that was checked before; rank 0 is 1 */
int64_t assay_axes_product(const assay_shape *shape, int first, int last); /* of axes [first, last) */
int64_t assay_row_length(const assay_shape *shape);                        /* the last axis; of a scalar 1 */
bool assay_shape_equal(const assay_shape *a, const assay_shape *b);
/* "[2,16,64]", "[]" for a scalar */
void assay_shape_text(const assay_shape *shape, char *text, size_t size);

/* What a tensor is to its case: the folder of its path. What is compared stands in the order in which a report lists it
 * where it does not know the data flow. */
typedef enum assay_tensor_role {
    ASSAY_ROLE_NONE, /* a folder that nobody knows */
    ASSAY_ROLE_INPUT,
    ASSAY_ROLE_WEIGHT,
    ASSAY_ROLE_COTANGENT,
    ASSAY_ROLE_SCHEDULE,
    ASSAY_ROLE_ROUTING,
    ASSAY_ROLE_CHECKPOINT,
    ASSAY_ROLE_OUTPUT,
    ASSAY_ROLE_GRADIENT,
    ASSAY_ROLE_REMAT,
    ASSAY_ROLE_ERROR_SCALE,
    ASSAY_ROLE_NULL,
    ASSAY_ROLE_CERTIFICATE,
    ASSAY_ROLE_DISCRIMINATION,
    ASSAY_ROLES
} assay_tensor_role;

extern const char *const assay_role_folders[ASSAY_ROLES]; /* "inputs"; "" of none */
/* For those who have a path alone. */
assay_tensor_role assay_role_of(const char *path);
bool assay_role_is_input(assay_tensor_role role);    /* an input, weight or cotangent */
bool assay_role_is_compared(assay_tensor_role role); /* the schedule or a result */
bool assay_role_is_result(assay_tensor_role role);   /* an output, gradient, checkpoint or routing */
bool assay_role_is_required(assay_tensor_role role); /* an output or gradient: a candidate without one fails */

/* One dataset: path inside the fixture ("inputs/x", "gradients/weights/wo"), stored type, shape, and for each axis its
 * letter as docs/operations.md names it ("B", "S", "D"). The role is set where the path is. */
typedef struct assay_tensor_spec {
    char path[ASSAY_PATH_SIZE];
    assay_tensor_role role;
    assay_dtype type;
    assay_dtype kept_as; /* of an output: the type that `dtypes:` gives it; float64: the profile's */
    assay_shape shape;
    const char *labels[ASSAY_MAX_RANK]; /* string literals */
} assay_tensor_spec;

/* Gives the spec its path, cut where it is too long, and its role. */
void assay_tensor_call(assay_tensor_spec *spec, const char *path);
/* Whether goldens hold error scales of such a tensor: floats among outputs, gradients and checkpoints. */
bool assay_has_error_scale(const assay_tensor_spec *spec);

/* Which type of a profile a result is kept in: activations and gradients in that of storage; what a router gives, and losses,
 * in the router's; a log-sum-exp in that of statistics. */
typedef enum assay_kept { ASSAY_KEPT_STORED, ASSAY_KEPT_BY_ROUTER, ASSAY_KEPT_AS_STATISTIC } assay_kept;
assay_kept assay_tensor_kept(const assay_tensor_spec *spec);
/* A choice of experts: routing/selected_experts, or that of a layer. */
bool assay_path_is_choice(const char *path);
/* Codes of what a kernel computed and quantised itself, or their scales (oracle/ops/requantise.h). */
bool assay_path_is_hidden(const char *path);
/* Whether the path is that name, or ends in it after a slash. */
bool assay_path_ends(const char *path, const char *name);
bool assay_begins(const char *text, const char *start);
/* Whether the test is true of the text and one of the words, which have spaces between them. */
bool assay_any_word(const char *words, const char *text, bool (*test)(const char *text, const char *word));
bool assay_is_word(const char *text, const char *word); /* such a test */
/* What belongs to a tensor at a profile: "error_scale/bf16/outputs/y", "null/bf16/outputs/y". Cut where it is too long. */
void assay_path_at(assay_tensor_role role, const char *profile, const char *of, char path[ASSAY_PATH_SIZE]);
/* "gradients/weights/wo" */
void assay_gradient_path(const char *of, char path[ASSAY_PATH_SIZE]);
/* The tensor that a path of such a role belongs to: "outputs/y". Its own path where it has another role. */
const char *assay_path_of(const char *path);

/* read: elements [first, first + count) of the tensor at `path` ("inputs/x", "weights/wi_0", "cotangents/y").
 * read_i32 is for the tensors of type int32. has: whether the source has that tensor. */
typedef struct assay_source {
    void *self;
    bool (*has)(void *self, const char *path);
    assay_status (*read)(assay_context *ctx, void *self, const char *path, int64_t first, int64_t count, double *out);
    assay_status (*read_i32)(assay_context *ctx, void *self, const char *path, int64_t first, int64_t count,
                             int32_t *out);
    /* How a tensor is drawn (oracle/base/random.h), what it points to living as long as the source; false, or no such
     * function: nobody says. */
    bool (*recipe)(void *self, const char *path, struct assay_random_recipe *recipe);
    /* The elements where they lie, which nobody writes to and which stay as long as the source; NULL, or no such function: they
     * are read. */
    const double *(*lend)(void *self, const char *path, int64_t first, int64_t count);
} assay_source;

/* wants: whether anybody will look at the tensor at `path` ("outputs/y", "gradients/weights/wo", "routing/margin",
 * "error_scale/bf16/outputs/y"): an operation skips the work of what nobody wants. write: the next `count` elements of
 * that tensor; slices of one tensor arrive in order, those of different tensors may interleave. write_zeros: the next
 * `count` elements are 0, for a sink that need not see them; NULL: they are written. */
typedef struct assay_sink {
    void *self;
    bool (*wants)(void *self, const char *path);
    assay_status (*write)(assay_context *ctx, void *self, const char *path, int64_t count, const double *values);
    assay_status (*write_i32)(assay_context *ctx, void *self, const char *path, int64_t count, const int32_t *values);
    assay_status (*write_zeros)(assay_context *ctx, void *self, const char *path, int64_t count);
    /* Where the next `count` elements will be: made there, they are not copied when they are written from there. NULL, or no
     * such function: there is no such place. */
    double *(*room)(void *self, const char *path, int64_t count);
} assay_sink;

/* What stands before a source, a sink or both and changes some of what passes begins with it; the rest passes by these functions. */
typedef struct assay_wrapped {
    const assay_source *in;
    const assay_sink *out;
} assay_wrapped;
bool assay_wrapped_has(void *self, const char *path);
assay_status assay_wrapped_read_i32(assay_context *ctx, void *self, const char *path, int64_t first, int64_t count,
                                    int32_t *out);
bool assay_wrapped_wants(void *self, const char *path);
assay_status assay_wrapped_write_i32(assay_context *ctx, void *self, const char *path, int64_t count,
                                     const int32_t *values);

/* The whole tensor, allocated. */
assay_status assay_read_needed(assay_context *ctx, const assay_source *in, const char *path, int64_t count,
                               double **out);
assay_status assay_read_needed_i32(assay_context *ctx, const assay_source *in, const char *path, int64_t count,
                                   int32_t **out);
/* *out is NULL where the source does not have it. */
assay_status assay_read_all(assay_context *ctx, const assay_source *in, const char *path, int64_t count, double **out);
assay_status assay_read_all_i32(assay_context *ctx, const assay_source *in, const char *path, int64_t count,
                                int32_t **out);

bool assay_wants(const assay_sink *out, const char *path);
/* Written if wanted. */
assay_status assay_write_result(assay_context *ctx, const assay_sink *out, const char *path, int64_t count,
                                const double *values);
assay_status assay_write_result_i32(assay_context *ctx, const assay_sink *out, const char *path, int64_t count,
                                    const int32_t *values);

/* A run stage by stage: of a tensor that it has computed and handed to the sink, an operation goes on from what the source
 * has as "staged/PATH", if it has that; a slice of it where the tensor comes in slices. */
void assay_staged_path(const char *of, char path[ASSAY_PATH_SIZE]);
assay_status assay_go_on_from(assay_context *ctx, const assay_source *in, const char *path, int64_t first,
                              int64_t count, double *values);
/* The tensor that a path of a source is staged for, "checkpoints/mla_kv"; NULL: it is another path. */
const char *assay_staged_of(const char *path);
