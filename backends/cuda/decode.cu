/* A backend to copy: attention of a few tokens over a cache in pages, forward, in bfloat16 with sums in float32. MLA (absorbed) and grouped queries.
 *
 *     nvcc -O3 -arch=sm_90 -fmad=false -shared -Xcompiler -fPIC -I include backends/cuda/decode.cu -o libdecode_cuda.so
 *     assay run mla_decode/splits gqa_decode/small --backend ./libdecode_cuda.so --precision bf16
 *
 * Put your kernel in the place of attend(), which gives the state of one split, and of merge(). With -DON_HOST no GPU is asked for: blocks, threads
 * and what lies between two barriers are walked by loops on the processor, so that a wrong index shows; a missing barrier does not. */
#include <math.h>

#include "call.cuh"

enum { THREADS = 128, KEYS = THREADS, WIDEST = 512, DEFAULT_SPLITS = 3 };

/* Rows of a head: page, row and head are strides in elements. */
typedef struct cache {
    const number *data;
    int64_t page, row, head;
} cache;

typedef struct job {
    int64_t batch, tokens, heads, kv_heads, width, value_width; /* of a key, of a value */
    int64_t splits, page_rows, table_columns; /* page_rows: keys of a page; of a sequence without pages */
    int64_t window;                           /* 0: none */
    float scale, cap;                         /* cap 0: none */
    const number *query, *sinks;              /* [B,S,N,width], [N] or NULL */
    const int32_t *lengths, *table;           /* [B], [B,table_columns] or NULL */
    cache key, value;
    float *partial_out,
        *partial_lse; /* [splits,B,S,N,value_width], [splits,B,N,S]; natural, -inf where there is no key */
    number *out;      /* [B,S,N,value_width] */
    float *lse;       /* [B,N,S] */
} job;

/* A block's: one split of one token and head. */
typedef struct state {
    float score[KEYS], p[KEYS];
    const number *value[KEYS]; /* NULL: this key is not seen, and nothing of it is read */
    float out[WIDEST];
    float largest, sum, next; /* of the keys so far; `next` is the largest with those of this tile */
} state;

typedef struct place {
    int64_t split, head, token, sequence, first, end; /* its keys */
} place;

static __host__ __device__ int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Equal numbers of pages for each split; of keys without pages. */
static __host__ __device__ place place_of(const job *j, int64_t split, int64_t head, int64_t row)
{
    const int64_t sequence = row / j->tokens, length = j->lengths[sequence], unit = j->table != NULL ? j->page_rows : 1;
    const int64_t pages = (length + unit - 1) / unit, each = (pages + j->splits - 1) / j->splits * unit;
    const place p = {
        split, head, row % j->tokens, sequence, least(split * each, length), least((split + 1) * each, length)};
    return p;
}

static __host__ __device__ int64_t offset_of(const job *j, const cache *c, int64_t sequence, int64_t head, int64_t k)
{
    const int64_t page = j->table != NULL ? j->table[sequence * j->table_columns + k / j->page_rows] : sequence;
    return page * c->page + (j->table != NULL ? k % j->page_rows : k) * c->row + head * c->head;
}

/* ---- attention: what stands between two barriers is a function ---- */

/* Key `thread` of the tile. */
static __host__ __device__ void score(const job *j, const place *at, state *s, int64_t tile, int thread)
{
    const int64_t k = tile + thread, last = j->lengths[at->sequence] - j->tokens + at->token,
                  head = at->head / (j->heads / j->kv_heads);
    const bool seen = k < at->end && k <= last && (j->window == 0 || k > last - j->window);
    s->score[thread] = -INFINITY;
    s->value[thread] = NULL;
    if (!seen) return;
    const number *query = j->query + ((at->sequence * j->tokens + at->token) * j->heads + at->head) * j->width;
    const number *key = j->key.data + offset_of(j, &j->key, at->sequence, head, k);
    float sum = 0;
    for (int64_t i = 0; i < j->width; i++) sum += __bfloat162float(query[i]) * __bfloat162float(key[i]);
    sum *= j->scale;
    s->score[thread] = j->cap > 0 ? j->cap * tanhf(sum / j->cap) : sum;
    s->value[thread] = j->value.data + offset_of(j, &j->value, at->sequence, head, k);
}

static __host__ __device__ void weigh(state *s, int thread)
{
    float largest = s->largest;
    for (int k = 0; k < KEYS; k++) largest = fmaxf(largest, s->score[k]);
    s->p[thread] = s->value[thread] != NULL ? expf(s->score[thread] - largest) : 0;
    if (thread == 0) s->next = largest;
}

/* What there was before has a smaller weight now. */
static __host__ __device__ float shrink(const state *s)
{
    return s->largest > -INFINITY ? expf(s->largest - s->next) : 0;
}

static __host__ __device__ void add(const job *j, state *s, int thread)
{
    for (int64_t i = thread; i < j->value_width; i += THREADS) {
        float sum = s->out[i] * shrink(s);
        for (int k = 0; k < KEYS; k++)
            if (s->value[k] != NULL) sum += s->p[k] * __bfloat162float(s->value[k][i]);
        s->out[i] = sum;
    }
}

static __host__ __device__ void keep(state *s)
{
    s->sum *= shrink(s);
    for (int k = 0; k < KEYS; k++) s->sum += s->p[k];
    s->largest = s->next;
}

static __host__ __device__ void begin(const job *j, state *s, int thread)
{
    for (int64_t i = thread; i < j->value_width; i += THREADS) s->out[i] = 0;
    if (thread == 0) s->largest = -INFINITY, s->sum = 0;
}

static __host__ __device__ void give_partial(const job *j, const place *at, const state *s, int thread)
{
    const int64_t row = ((at->split * j->batch + at->sequence) * j->tokens + at->token) * j->heads + at->head;
    for (int64_t i = thread; i < j->value_width; i += THREADS)
        j->partial_out[row * j->value_width + i] = s->sum > 0 ? s->out[i] / s->sum : 0;
    const int64_t lse = ((at->split * j->batch + at->sequence) * j->heads + at->head) * j->tokens + at->token;
    if (thread == 0) j->partial_lse[lse] = s->sum > 0 ? s->largest + logf(s->sum) : -INFINITY;
}

/* ---- the merge of splits: an element of out is a thread's ---- */

static __host__ __device__ void merge_one(const job *j, int64_t head, int64_t row, int thread)
{
    const int64_t sequence = row / j->tokens, token = row % j->tokens, rows = j->batch * j->tokens * j->heads;
    const int64_t of_out = row * j->heads + head, of_lse = (sequence * j->heads + head) * j->tokens + token;
    float largest = -INFINITY, sum = 0;
    for (int64_t k = 0; k < j->splits; k++) largest = fmaxf(largest, j->partial_lse[k * rows + of_lse]);
    for (int64_t k = 0; k < j->splits && largest > -INFINITY; k++)
        sum += expf(j->partial_lse[k * rows + of_lse] - largest);
    const float lse = sum > 0 ? largest + logf(sum) : -INFINITY;
    const float gate = j->sinks != NULL ? 1 / (1 + expf(__bfloat162float(j->sinks[head]) - lse)) : 1;
    for (int64_t i = thread; i < j->value_width; i += THREADS) {
        float out = 0;
        for (int64_t k = 0; k < j->splits; k++) {
            const float part = j->partial_lse[k * rows + of_lse]; /* of a split without keys nothing is taken */
            if (part > -INFINITY)
                out += expf(part - largest) * j->partial_out[(k * rows + of_out) * j->value_width + i];
        }
        j->out[of_out * j->value_width + i] = __float2bfloat16_rn(sum > 0 ? out / sum * gate : 0);
    }
    if (thread == 0) j->lse[of_lse] = lse;
}

#ifdef ON_HOST
#define EACH_THREAD for (int thread = 0; thread < THREADS; thread++)
static void attend(const job *j, int64_t split, int64_t head, int64_t row)
{
    static state s;
    const place at = place_of(j, split, head, row);
    EACH_THREAD begin(j, &s, thread);
    for (int64_t tile = at.first; tile < at.end; tile += KEYS) {
        EACH_THREAD score(j, &at, &s, tile, thread);
        EACH_THREAD weigh(&s, thread);
        EACH_THREAD add(j, &s, thread);
        keep(&s);
    }
    EACH_THREAD give_partial(j, &at, &s, thread);
}

static void start(const job *j)
{
    for (int64_t row = 0; row < j->batch * j->tokens; row++)
        for (int64_t head = 0; head < j->heads; head++) {
            for (int64_t split = 0; split < j->splits; split++) attend(j, split, head, row);
            EACH_THREAD merge_one(j, head, row, thread);
        }
}
#else
static __global__ void attend(job j)
{
    __shared__ state s;
    const place at = place_of(&j, blockIdx.z, blockIdx.y, blockIdx.x);
    const int thread = (int)threadIdx.x;
    begin(&j, &s, thread);
    for (int64_t tile = at.first; tile < at.end; tile += KEYS) {
        score(&j, &at, &s, tile, thread);
        __syncthreads();
        weigh(&s, thread);
        __syncthreads();
        add(&j, &s, thread);
        __syncthreads();
        if (thread == 0) keep(&s); /* the barrier behind the next scores comes before anyone reads it */
    }
    __syncthreads();
    give_partial(&j, &at, &s, thread);
}

static __global__ void merge(job j)
{
    merge_one(&j, blockIdx.y, blockIdx.x, (int)threadIdx.x);
}

static void start(const job *j)
{
    const unsigned rows = (unsigned)(j->batch * j->tokens), heads = (unsigned)j->heads;
    attend<<<dim3(rows, heads, (unsigned)j->splits), THREADS>>>(*j);
    merge<<<dim3(rows, heads), THREADS>>>(*j);
}
#endif

/* ---- the backend ---- */

static double number_of(const assay_backend_request *r, const char *key)
{
    return atof(setting(r, key));
}
static bool is(const assay_backend_request *r, const char *key, const char *value)
{
    return strcmp(setting(r, key), value) == 0;
}

/* Of the unabsorbed key, with YaRN's factor; or as the case says. */
static float scale_of(const assay_backend_request *r, bool latent, int64_t width)
{
    const double given = number_of(r, "query_pre_attn_scalar");
    if (given != 0 || !latent) return (float)(given != 0 ? given : 1 / sqrt((double)width));
    const double m = number_of(r, "max_position_embeddings") > number_of(r, "original_max_position_embeddings")
                         ? 0.1 * number_of(r, "mscale") * log(number_of(r, "rope_factor")) + 1
                         : 1;
    return (float)(m * m / sqrt(number_of(r, "qk_nope_head_dim") + number_of(r, "qk_rope_head_dim")));
}

/* In the convention of the case: base, layout, and what a row without keys has. */
static void give_lse(const assay_backend_request *r, float *to, const float *from, int64_t batch, int64_t heads,
                     int64_t tokens, bool by_token)
{
    const float unit = is(r, "lse_base", "2") ? logf(2) : 1, empty = is(r, "empty_row", "inf") ? INFINITY : -INFINITY;
    for (int64_t i = 0; i < batch * heads * tokens; i++) {
        const int64_t b = i / (heads * tokens), n = i / tokens % heads, t = i % tokens;
        to[by_token ? (b * tokens + t) * heads + n : i] = from[i] > -INFINITY ? from[i] / unit : empty;
    }
}

static void give_results(arena *a, const assay_backend_request *r, const job *j)
{
    for (int32_t i = 0; i < r->result_count && a->error == cudaSuccess; i++) {
        assay_backend_result *result = &r->results[i];
        const size_t count = elements(result->rank, result->dims);
        const bool partial = strcmp(result->path, "checkpoints/partial_lse") == 0;
        if (strcmp(result->path, "outputs/attention_out") == 0) {
            note(a, copy(result->data, j->out, count * sizeof(number), cudaMemcpyDeviceToHost));
            result->type = ASSAY_BACKEND_BFLOAT16;
        } else if (strcmp(result->path, "checkpoints/partial_out") == 0) {
            note(a, copy(result->data, j->partial_out, count * sizeof(float), cudaMemcpyDeviceToHost));
        } else if (partial || strcmp(result->path, "outputs/lse") == 0) {
            float *natural = (float *)malloc(count * sizeof(float) + 1);
            note(a, natural == NULL ? cudaErrorMemoryAllocation
                                    : copy(natural, partial ? j->partial_lse : j->lse, count * sizeof(float),
                                           cudaMemcpyDeviceToHost));
            if (a->error == cudaSuccess)
                give_lse(r, (float *)result->data, natural, (partial ? j->splits : 1) * j->batch, j->heads, j->tokens,
                         !partial && is(r, "lse_layout", "BSN"));
            free(natural);
        }
    }
}

extern "C" int assay_backend_run(const assay_backend_request *r)
{
    const assay_backend_tensor *query = tensor(r, "inputs/query"), *lengths = tensor(r, "inputs/cache_seqlens"),
                               *table = tensor(r, "inputs/block_table");
    const assay_backend_tensor *latent = tensor(r, "inputs/kv_cache"),
                               *key = latent != NULL ? latent : tensor(r, "inputs/key_cache");
    const assay_backend_tensor *value = latent != NULL ? latent : tensor(r, "inputs/value_cache");
    if (query == NULL || lengths == NULL || key == NULL || value == NULL)
        return leave(r, ASSAY_BACKEND_UNSUPPORTED, "only mla_decode, absorbed, and gqa_decode");
    if (query->type != ASSAY_BACKEND_BFLOAT16 || key->type != ASSAY_BACKEND_BFLOAT16)
        return leave(r, ASSAY_BACKEND_UNSUPPORTED, "only bfloat16");
    if (is(r, "use_chunked_prefill", "true")) return leave(r, ASSAY_BACKEND_UNSUPPORTED, "no chunks of the context");
    const int32_t known = 3 + (latent == NULL) + (table != NULL) + (tensor(r, "weights/sinks") != NULL);
    if (r->tensor_count != known) return leave(r, ASSAY_BACKEND_UNSUPPORTED, "a tensor that is not known here");
    const char *why = no_device();
    if (why != NULL) return leave(r, ASSAY_BACKEND_UNSUPPORTED, why);

    job j = {};
    j.batch = query->dims[0], j.tokens = query->dims[1], j.heads = query->dims[2], j.width = query->dims[3];
    j.value_width = latent != NULL ? (int64_t)number_of(r, "kv_lora_rank") : j.width;
    if (j.value_width > WIDEST) return leave(r, ASSAY_BACKEND_UNSUPPORTED, "no values of more than 512 numbers");
    const bool hnd = is(r, "kv_layout", "HND");
    j.kv_heads = latent != NULL ? 1 : key->dims[hnd ? 1 : 2];
    const int64_t rows = key->dims[hnd ? 2 : 1];
    j.page_rows = table != NULL ? (int64_t)number_of(r, "pagedattn_tokens_per_page") : rows;
    j.table_columns = table != NULL ? table->dims[1] : 0;
    const int64_t named = (int64_t)number_of(r, "num_kv_splits");
    j.splits = named > 0 ? named : (int64_t)DEFAULT_SPLITS;
    j.window = is(r, "attention_type", "global") ? 0 : (int64_t)number_of(r, "sliding_window_size");
    j.scale = scale_of(r, latent != NULL, j.width);
    j.cap = (float)number_of(r, "attn_logits_soft_cap");

    arena a = {};
    const size_t states = (size_t)(j.splits * j.batch * j.tokens * j.heads);
    j.query = upload(&a, query), j.sinks = upload(&a, tensor(r, "weights/sinks"));
    j.lengths = (const int32_t *)upload(&a, lengths), j.table = (const int32_t *)upload(&a, table);
    const cache keys = {upload(&a, key), j.kv_heads * rows * j.width, (hnd ? 1 : j.kv_heads) * j.width,
                        (hnd ? rows : 1) * j.width};
    j.key = j.value = keys;
    if (latent == NULL) j.value.data = upload(&a, value);
    j.partial_out = (float *)room(&a, states * (size_t)j.value_width * sizeof(float));
    j.partial_lse = (float *)room(&a, states * sizeof(float));
    j.out = (number *)room(&a, states * (size_t)j.value_width * sizeof(number)),
    j.lse = (float *)room(&a, states * sizeof(float));
    if (a.error == cudaSuccess) {
        start(&j);
        note(&a, finished());
    }
    give_results(&a, r, &j);
    while (a.count > 0) drop(a.buffers[--a.count]);
    return a.error == cudaSuccess ? ASSAY_BACKEND_DONE : leave(r, ASSAY_BACKEND_ERROR, cudaGetErrorString(a.error));
}
