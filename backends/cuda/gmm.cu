/* A backend to copy: the grouped matrix product in bfloat16 on tensor cores, forward and backward.
 *
 *     nvcc -O3 -arch=sm_90 -fmad=false -shared -Xcompiler -fPIC -I include backends/cuda/gmm.cu -o libgmm_cuda.so
 *     assay run gmm/primes gmm/ragged --backend ./libgmm_cuda.so --precision bf16
 *
 * Put your kernel in the place of multiply(). Without -shared it is a program that makes inputs on the device from their seeds;
 * docs/your-kernel.md has it. With -DON_HOST no GPU is asked for: the same tiles are walked by loops on the processor, with the same
 * functions for every index, so that a wrong index shows without a GPU. What that cannot show: barriers, and tensor cores' own sums. */
#include <inttypes.h>
#include <mma.h>

#include <assay/random.h>

#include "call.cuh"

using namespace nvcuda;

/* ---- the product ---- */

/* A block makes TILE x TILE elements, DEPTH of the sum at a time; each of its four warps a quarter, of 2 x 2 fragments. */
enum { TILE = 64, DEPTH = 32, SIDE = 16, THREADS = 128 };

typedef struct matrix {
    const number *data;
    int64_t rows, columns, row, column; /* the last two: strides */
} matrix;

typedef struct product {
    matrix a, b; /* c [a.rows,b.columns] = a b */
    number *c;
} product;

typedef enum form { FORWARD, TO_LHS, TO_RHS } form;

typedef struct job {
    form form;
    const int32_t *sizes; /* rows of each group; what is behind the last one is in no group */
    int64_t k, n;
    const number *lhs, *rhs, *dy; /* [rows,k], [groups,k,n], [rows,n] */
    number *out;
} job;

static __host__ __device__ matrix transposed(matrix m)
{
    const matrix t = {m.data, m.columns, m.rows, m.column, m.row};
    return t;
}

/* y = lhs rhs, d lhs = dy rhs^T, d rhs = lhs^T dy, each for the rows of one group */
static __host__ __device__ product product_of(const job *j, int64_t group)
{
    int64_t first = 0;
    for (int64_t g = 0; g < group; g++) first += j->sizes[g];
    const int64_t m = j->sizes[group], k = j->k, n = j->n;
    const matrix lhs = {j->lhs + first * k, m, k, k, 1}, rhs = {j->rhs + group * k * n, k, n, n, 1}, dy = {j->dy + first * n, m, n, n, 1};
    const product forward = {lhs, rhs, j->out + first * n}, to_lhs = {dy, transposed(rhs), j->out + first * k};
    const product to_rhs = {transposed(lhs), dy, j->out + group * k * n};
    return j->form == FORWARD ? forward : j->form == TO_LHS ? to_lhs : to_rhs;
}

/* Rows are longer than the tile, so that neighbouring rows are in other banks; fragments need rows of whole 16 bytes. */
typedef struct tiles {
    __align__(32) number a[TILE][DEPTH + 8];
    __align__(32) number b[DEPTH][TILE + 8];
    __align__(32) float c[TILE][TILE + 4];
} tiles;

/* This thread's share of a tile; beyond the matrix it is 0, which is why no memory there is read. */
template <int ROWS, int COLUMNS, int WIDTH>
static __host__ __device__ void load(number (*tile)[WIDTH], const matrix *m, int64_t row, int64_t column, int thread)
{
    for (int i = thread; i < ROWS * COLUMNS; i += THREADS) {
        const int64_t r = row + i / COLUMNS, c = column + i % COLUMNS;
        tile[i / COLUMNS][i % COLUMNS] = r < m->rows && c < m->columns ? m->data[r * m->row + c * m->column] : __float2bfloat16_rn(0);
    }
}

static __host__ __device__ void load_both(tiles *t, const product *p, int64_t row, int64_t column, int64_t depth, int thread)
{
    load<TILE, DEPTH>(t->a, &p->a, row, depth, thread);
    load<DEPTH, TILE>(t->b, &p->b, depth, column, thread);
}

static __host__ __device__ void store(const product *p, const tiles *t, int64_t row, int64_t column, int thread)
{
    for (int i = thread; i < TILE * TILE; i += THREADS) {
        const int64_t r = row + i / TILE, c = column + i % TILE;
        if (r < p->a.rows && c < p->b.columns) p->c[r * p->b.columns + c] = __float2bfloat16_rn(t->c[i / TILE][i % TILE]);
    }
}

/* Where fragment i (of rows) or j (of columns) of a warp begins in the tile. */
static __host__ __device__ int fragment_row(int warp, int i) { return (warp / 2 * 2 + i) * SIDE; }
static __host__ __device__ int fragment_column(int warp, int j) { return (warp % 2 * 2 + j) * SIDE; }

#ifdef ON_HOST
static void multiply(job j, int64_t column, int64_t row, int64_t group)
{
    static tiles t;
    const product p = product_of(&j, group);
    if (row >= p.a.rows) return;
    memset(t.c, 0, sizeof t.c);
    for (int64_t depth = 0; depth < p.a.columns; depth += DEPTH) {
        for (int thread = 0; thread < THREADS; thread++) load_both(&t, &p, row, column, depth, thread);
        for (int part = 0; part < THREADS / 32 * 4 * SIDE * SIDE; part++) { /* an element of a fragment of a warp */
            const int warp = part / (4 * SIDE * SIDE), i = part / (2 * SIDE * SIDE) % 2, k = part / (SIDE * SIDE) % 2;
            const int r = fragment_row(warp, i) + part / SIDE % SIDE, c = fragment_column(warp, k) + part % SIDE;
            for (int d = 0; d < DEPTH; d++) t.c[r][c] += __bfloat162float(t.a[r][d]) * __bfloat162float(t.b[d][c]);
        }
    }
    for (int thread = 0; thread < THREADS; thread++) store(&p, &t, row, column, thread);
}
#else
static __global__ void multiply(job j)
{
    __shared__ tiles t;
    const product p = product_of(&j, blockIdx.z);
    const int64_t row = (int64_t)blockIdx.y * TILE, column = (int64_t)blockIdx.x * TILE;
    const int thread = (int)threadIdx.x, warp = thread / 32;
    if (row >= p.a.rows) return; /* the whole block */
    wmma::fragment<wmma::accumulator, SIDE, SIDE, SIDE, float> sums[2][2];
    for (int i = 0; i < 4; i++) wmma::fill_fragment(sums[i / 2][i % 2], 0);
    for (int64_t depth = 0; depth < p.a.columns; depth += DEPTH) {
        load_both(&t, &p, row, column, depth, thread);
        __syncthreads();
        for (int d = 0; d < DEPTH; d += SIDE) {
            wmma::fragment<wmma::matrix_a, SIDE, SIDE, SIDE, number, wmma::row_major> a[2];
            wmma::fragment<wmma::matrix_b, SIDE, SIDE, SIDE, number, wmma::row_major> b[2];
            for (int i = 0; i < 2; i++) {
                wmma::load_matrix_sync(a[i], &t.a[fragment_row(warp, i)][d], DEPTH + 8);
                wmma::load_matrix_sync(b[i], &t.b[d][fragment_column(warp, i)], TILE + 8);
            }
            for (int i = 0; i < 4; i++) wmma::mma_sync(sums[i / 2][i % 2], a[i / 2], b[i % 2], sums[i / 2][i % 2]);
        }
        __syncthreads(); /* before the next tiles are written */
    }
    for (int i = 0; i < 4; i++)
        wmma::store_matrix_sync(&t.c[fragment_row(warp, i / 2)][fragment_column(warp, i % 2)], sums[i / 2][i % 2], TILE + 4, wmma::mem_row_major);
    __syncthreads();
    store(&p, &t, row, column, thread);
}
#endif

static void start(const job *j, int64_t groups, int64_t most_rows, int64_t columns)
{
    const dim3 grid((unsigned)((columns + TILE - 1) / TILE), (unsigned)((most_rows + TILE - 1) / TILE), (unsigned)groups);
    if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
#ifdef ON_HOST
    for (int64_t block = 0; block < (int64_t)grid.x * grid.y * grid.z; block++)
        multiply(*j, block % grid.x * TILE, block / grid.x % grid.y * TILE, block / grid.x / grid.y);
#else
    multiply<<<grid, THREADS>>>(*j);
#endif
}

/* ---- inputs from seeds ---- */

static __host__ __device__ void put(void *out, uint64_t i, assay_draw_type type, double x)
{
    const uint64_t code = assay_draw_code(type, x);
    switch (type) {
    case ASSAY_DRAW_FLOAT64:
        ((uint64_t *)out)[i] = code;
        break;
    case ASSAY_DRAW_FLOAT32:
    case ASSAY_DRAW_TFLOAT32:
        ((uint32_t *)out)[i] = (uint32_t)code;
        break;
    case ASSAY_DRAW_BFLOAT16:
    case ASSAY_DRAW_FLOAT16:
        ((uint16_t *)out)[i] = (uint16_t)code;
        break;
    default:
        ((uint8_t *)out)[i] = (uint8_t)code;
    }
}

/* Elements 2 j and 2 j + 1. */
static __host__ __device__ void draw_two(void *out, uint64_t count, const assay_draw *t, uint64_t j)
{
    double x[2];
    if (2 * j >= count) return;
    assay_draw_pair(t, j, x);
    put(out, 2 * j, t->type, x[0]);
    if (2 * j + 1 < count) put(out, 2 * j + 1, t->type, x[1]);
}

#ifndef ON_HOST
static __global__ void draw(void *out, uint64_t count, assay_draw t)
{
    draw_two(out, count, &t, (uint64_t)blockIdx.x * blockDim.x + threadIdx.x);
}
#endif

/* Fills device memory, as a test of yours may, in place of an upload. */
static void start_drawing(void *out, uint64_t count, const assay_draw *t)
{
#ifdef ON_HOST
    for (uint64_t j = 0; 2 * j < count; j++) draw_two(out, count, t, j);
#else
    draw<<<(unsigned)((count / 2 + THREADS) / THREADS), THREADS>>>(out, count, *t);
#endif
}

/* A tensor a line: PATH SEED TYPE COUNT ROW DISTRIBUTION MEAN SCALE LOW HIGH FILE; ROW is the length of the last axis. */
static const char *const DISTRIBUTIONS[] = {"normal",       "uniform",    "integers", "constant", "near_ties",
                                            "block_powers", "row_powers", "cancel",   "bell",     "ramp"};
static const struct {
    const char *name;
    size_t size;
} TYPES[] = {{"float64", 8}, {"float32", 4},       {"tfloat32", 4},    {"bfloat16", 2},
             {"float16", 2}, {"float8_e4m3fn", 1}, {"float8_e5m2", 1}, {"float4_e2m1fn", 1}};

static const char *make(const char *line)
{
    char path[256], type[32], distribution[32], file[512];
    uint64_t seed, count;
    assay_draw t = {};
    int known = 0;
    if (sscanf(line, "%255s %" SCNu64 " %31s %" SCNu64 " %" SCNu64 " %31s %lf %lf %lf %lf %511s", path, &seed, type, &count, &t.row,
               distribution, &t.mean, &t.scale, &t.low, &t.high, file) != 11)
        return "expected 11 words";
    t.key = assay_draw_key(seed, path);
    for (size_t i = 0; i < sizeof TYPES / sizeof *TYPES; i++)
        if (strcmp(type, TYPES[i].name) == 0) known |= 1, t.type = (assay_draw_type)i;
    for (size_t i = 0; i < sizeof DISTRIBUTIONS / sizeof *DISTRIBUTIONS; i++)
        if (strcmp(distribution, DISTRIBUTIONS[i]) == 0) known |= 2, t.distribution = (assay_draw_distribution)i;
    if (known != 3 || count == 0 || t.row == 0) return "no such type or distribution, or no elements";
    const size_t size = count * TYPES[t.type].size;
    void *made = malloc(size), *device = NULL;
    cudaError_t error = made != NULL ? take(&device, size) : cudaErrorMemoryAllocation;
    if (error == cudaSuccess) {
        start_drawing(device, count, &t);
        error = finished();
    }
    if (error == cudaSuccess) error = copy(made, device, size, cudaMemcpyDeviceToHost);
    FILE *out = error == cudaSuccess ? fopen(file, "wb") : NULL;
    const bool written = out != NULL && fwrite(made, 1, size, out) == size;
    const bool closed = out != NULL && fclose(out) == 0;
    if (device != NULL) drop(device);
    free(made);
    return error != cudaSuccess ? cudaGetErrorString(error) : written && closed ? NULL : "the file cannot be written";
}

int main(void)
{
    static char line[2048];
    const char *wrong = no_device();
    while (wrong == NULL && fgets(line, sizeof line, stdin) != NULL) wrong = make(line);
    if (wrong != NULL) fprintf(stderr, "draw: %s: %.*s\n", wrong, (int)strcspn(line, "\n"), line);
    return wrong != NULL;
}

/* ---- the backend ---- */

/* Computes one result where the case asks for it. Rows of no group are 0. */
static void give(arena *a, const assay_backend_request *r, const char *path, job j, int64_t groups, int64_t most_rows, int64_t columns)
{
    for (int32_t i = 0; i < r->result_count; i++) {
        assay_backend_result *result = &r->results[i];
        if (strcmp(result->path, path) != 0) continue;
        const size_t size = elements(result->rank, result->dims) * sizeof(number);
        j.out = (number *)room(a, size);
        if (j.out == NULL) return;
        note(a, clear(j.out, size));
        start(&j, groups, most_rows, columns);
        note(a, finished());
        if (a->error == cudaSuccess) note(a, copy(result->data, j.out, size, cudaMemcpyDeviceToHost));
        result->type = ASSAY_BACKEND_BFLOAT16;
    }
}

extern "C" int assay_backend_run(const assay_backend_request *r)
{
    const assay_backend_tensor *lhs = tensor(r, "inputs/lhs"), *rhs = tensor(r, "weights/rhs");
    const assay_backend_tensor *sizes = tensor(r, "inputs/group_sizes"), *dy = tensor(r, "cotangents/y");
    if (lhs == NULL || rhs == NULL || sizes == NULL) return leave(r, ASSAY_BACKEND_UNSUPPORTED, "only gmm");
    if (lhs->type != ASSAY_BACKEND_BFLOAT16 || rhs->type != ASSAY_BACKEND_BFLOAT16)
        return leave(r, ASSAY_BACKEND_UNSUPPORTED, "only bfloat16");
    if (setting(r, "quant_recipe")[0] != '\0') return leave(r, ASSAY_BACKEND_UNSUPPORTED, "no quantisation");
    const char *why = no_device();
    if (why != NULL) return leave(r, ASSAY_BACKEND_UNSUPPORTED, why);

    arena a = {};
    job j = {FORWARD, (const int32_t *)upload(&a, sizes), rhs->dims[1], rhs->dims[2], upload(&a, lhs), upload(&a, rhs), upload(&a, dy), NULL};
    const int64_t groups = rhs->dims[0];
    int64_t most = 0;
    for (int64_t g = 0; g < groups; g++) {
        const int64_t size = ((const int32_t *)sizes->data)[g];
        most = size > most ? size : most;
    }
    if (a.error == cudaSuccess) {
        give(&a, r, "outputs/y", j, groups, most, j.n);
        j.form = TO_LHS;
        give(&a, r, "gradients/inputs/lhs", j, groups, most, j.k);
        j.form = TO_RHS;
        give(&a, r, "gradients/weights/rhs", j, groups, j.k, j.n);
    }
    while (a.count > 0) drop(a.buffers[--a.count]);
    return a.error == cudaSuccess ? ASSAY_BACKEND_DONE : leave(r, ASSAY_BACKEND_ERROR, cudaGetErrorString(a.error));
}
