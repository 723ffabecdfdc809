/* hostkernels.h: the ABI of tierd's CPU kernels.
 *
 * One header, one plain shared library, no Python in it. The Python side reads the declarations
 * between the two cffi marks, so they use nothing but plain C declarations and enum constants.
 *
 * The caller has checked every shape, extent and id before a call (daemon/tierd/backends/host.py);
 * the kernels trust it. Functions that can run out of memory return NULL or HK_NO_MEMORY.
 *
 * One numeric definition (every level keeps it, so that a row's result depends on its own history
 * only, never on the other rows, the chunk size or the number of threads):
 *   - Activations are quantised per block of 32 values to 8 bits: scale = max|x| / 127.
 *   - A block's dot product is an exact integer; its term is
 *         x_scale * (w_scale * dot + w_min * x_sum),  x_sum the exact sum of the quantised x,
 *     or the sum of two such halves where a layout scales 16 values at a time.
 *   - The blocks of a row are cut into HK_SEGMENTS contiguous segments; terms are added left to
 *     right inside a segment, then the segments' sums left to right.
 *   - Float weights multiply the float activations, each term added in the order of the columns.
 *   - Attention handles tiles of HK_PAGE positions, aligned to absolute positions. Each tile has its
 *     own maximum, sum and weighted values; tiles are combined in ascending order within spans of
 *     HK_SPAN positions, aligned as well, and then spans in ascending order. At avx512vnni, with the
 *     codecs f16 and q8_0, queries, keys, values and weights are 16-bit integers with a scale: of a
 *     key or a value for its position alone, of weights for a tile. Sums inside a tile are exact there.
 *   - Keys and values are always read back through the codec.
 */
#ifndef HOSTKERNELS_H
#define HOSTKERNELS_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#pragma GCC visibility push(default)
#endif

/* cffi: begin */
enum { HK_ABI_VERSION = 10 }; /* the Python side refuses a library of another */

enum {
    HK_BLOCK = 32,   /* columns quantised together */
    HK_LANES = 16,   /* weight rows interleaved in a packed layout */
    HK_SEGMENTS = 4, /* contiguous parts of a row whose sums are added separately */
    HK_PAGE = 64,    /* positions in one page of K/V, and in one attention tile */
    HK_SPAN = 512    /* positions whose tiles are combined by themselves */
};

enum { HK_OK = 0, HK_NO_MEMORY = 1 };

/* Formats of a file's tensors: the ids of GGML. */
enum hk_format {
    HK_F32 = 0, HK_F16 = 1, HK_Q4_0 = 2, HK_Q4_1 = 3, HK_Q5_0 = 6, HK_Q5_1 = 7, HK_Q8_0 = 8,
    HK_Q2_K = 10, HK_Q3_K = 11, HK_Q4_K = 12, HK_Q5_K = 13, HK_Q6_K = 14, HK_BF16 = 30
};

/* Packed layouts: what kernels read. Rows are interleaved by HK_LANES, columns cut into HK_BLOCKs;
 * both are padded with zeros. See layouts.c for the bytes. */
enum hk_layout {
    HK_LAYOUT_F32X16 = 0,  /* float */
    HK_LAYOUT_F16X16 = 1,
    HK_LAYOUT_BF16X16 = 2,
    HK_LAYOUT_Q8X16 = 3,   /* signed 8 bits, scale per 32 */
    HK_LAYOUT_Q4X16 = 4,   /* unsigned 4 bits, scale and min per 32 */
    HK_LAYOUT_Q5X16 = 5,   /* unsigned 5 bits, scale and min per 32 */
    HK_LAYOUT_Q6X16 = 6,   /* signed 6 bits, scale per 16 */
    HK_LAYOUT_Q3X16 = 7,   /* signed 3 bits, scale per 16 */
    HK_LAYOUT_Q2X16 = 8,   /* unsigned 2 bits, scale and min per 16 */
    HK_LAYOUT_Q4SX16 = 9,  /* 4 bits less 8, scale per 32 */
    HK_LAYOUT_Q5SX16 = 10, /* 5 bits less 16, scale per 32 */
    HK_LAYOUTS = 11
};

/* K/V codecs. q8_0 and tq4 keep a row rotated (signs, orthonormal Walsh-Hadamard transform), in 34 and 18 bytes
 * per 32 values; see codecs.c for both and for what may shape tq4's errors. */
enum hk_codec { HK_KV_F32 = 0, HK_KV_F16 = 1, HK_KV_Q8_0 = 2, HK_KV_TQ4 = 3 };

int hk_abi_version(void);

/* The level chosen once for this process: "portable", "avx2" or "avx512vnni". HOSTKERNELS_LEVEL can only force
 * it down. */
const char *hk_level(void);

/* Give memory that is free in the heap back to the system, where the C library can. */
void hk_trim(void);

/* ---- Weights ---------------------------------------------------------------------------------- */

/* count values of a format, starting at a block's edge, to floats. */
void hk_dequantise(int format, const void *src, int64_t count, float *dst);

/* The layout that weights of this format are packed into; -1 for an unknown format. */
int hk_layout_of(int format);

/* Bytes of a packed (rows, columns) matrix; a multiple of 64. */
int64_t hk_packed_bytes(int layout, int64_t rows, int64_t columns);

typedef struct hk_pool hk_pool;

/* A pool of `threads` threads, the caller of a step among them. They spin briefly for work, then sleep. */
hk_pool *hk_pool_create(int threads);
void hk_pool_destroy(hk_pool *pool);
int hk_pool_threads(const hk_pool *pool);

/* Pack a (rows, columns) matrix of a file into dst (hk_packed_bytes, 64-byte aligned), on all threads. */
void hk_pack(hk_pool *pool, int format, const void *src, int64_t rows, int64_t columns, void *dst);

/* One row of a packed matrix as floats. */
void hk_unpack_row(int layout, const void *packed, int64_t columns, int64_t row, float *dst);

/* ---- Weights on a device ---------------------------------------------------------------------- */

/* A device's layout has the number of the host's: the same quants, scales and mins, placed in three planes
 * for lanes that each take a row. See device_layouts.c for the bytes. */
enum {
    HK_DEVICE_LAYOUT_VERSION = 1, /* grows when those bytes change: packed matrices are kept on disk */
    HK_DEVICE_ROWS = 32           /* rows of a group, side by side */
};

enum hk_device_plane { HK_PLANE_QUANTS = 0, HK_PLANE_HIGH = 1, HK_PLANE_SCALES = 2, HK_PLANES = 3 };

/* "q4" for HK_LAYOUT_Q4X16, and so on. */
const char *hk_device_layout_name(int layout);

/* Bytes of one plane of a (rows, columns) matrix, a multiple of 64; 0 where the layout lacks it. */
int64_t hk_device_plane_bytes(int layout, int64_t rows, int64_t columns, int plane);

/* Pack a (rows, columns) matrix of a file on all threads, as the rows from first_row on of the matrix in the
 * planes; planes that the layout lacks may be NULL. first_row is a multiple of HK_DEVICE_ROWS, so matrices of
 * one format and width make one when all but the last have such a number of rows. */
void hk_device_pack(hk_pool *pool, int format, const void *src, int64_t rows, int64_t columns,
                    int64_t first_row, void *quants, void *high, void *scales);

/* One row of a matrix in planes as floats. */
void hk_device_unpack_row(int layout, const void *quants, const void *high, const void *scales,
                          int64_t columns, int64_t row, float *dst);

/* The one layout of weights on a device that knows 32-bit words alone: see rails_layout.c for the words. */
enum { HK_RAILS_ROWS = 64 }; /* rows of a group, side by side */

/* Scales of a row's block of 32 columns: 1, or 2 where a scale covers 16; 0 for a layout of floats. */
int hk_rails_scales(int layout);

/* Words of a (rows, columns) matrix, a multiple of 16: of its values, and of its scales and mins. */
int64_t hk_rails_value_words(int layout, int64_t rows, int64_t columns);
int64_t hk_rails_scale_words(int layout, int64_t rows, int64_t columns);

/* Lay a packed (rows, columns) matrix out anew, on all threads. scales may be NULL where there are none. */
void hk_rails_pack(hk_pool *pool, int layout, const void *packed, int64_t rows, int64_t columns, uint32_t *values,
                   uint32_t *scales);

/* Copy bytes on all threads. */
void hk_copy(hk_pool *pool, void *dst, const void *src, int64_t bytes);

/* ---- Products --------------------------------------------------------------------------------- */

/* out (rows, outputs) = x (rows, columns) times the packed (outputs, columns) matrix, transposed.
 * Both dense. Allocates its scratch: for tests and benches, a step runs the same kernels. */
int hk_matmul(hk_pool *pool, int layout, const void *packed, int64_t outputs, int64_t columns,
              const float *x, int64_t rows, float *out);

/* ---- K/V rows --------------------------------------------------------------------------------- */

int64_t hk_codec_bytes(int codec, int64_t head_size);
/* In place, to the basis in which a codec stores a head, scales aside. */
void hk_codec_rotate(int codec, float *head, int64_t head_size);
/* scale: (head_size), above zero, and feedback: (head_size * (head_size - 1) / 2) of tq4, each may be NULL. */
void hk_codec_encode(int codec, const float *src, int64_t head_size, const float *scale, const float *feedback,
                     void *dst);
/* The inverse of encode, back in the original basis. */
void hk_codec_decode(int codec, const void *src, int64_t head_size, const float *scale, float *dst);

/* ---- A model: a compiled plan ----------------------------------------------------------------- */

enum hk_op_kind {
    HK_OP_EMBED = 0,      /* out = scale * weight[token] */
    HK_OP_NORM = 1,       /* RMS norm of `heads` parts of a row: src, vector -> out (float, or quantised
                             where there is one head); eps */
    HK_OP_QUANTISE = 2,   /* src (float) -> out (quantised) */
    HK_OP_MATMUL = 3,     /* src (quantised, or float for float layouts), weight, vector: bias or -1, src2:
                             what to add, or -1 */
    HK_OP_ROPE_TABLE = 4, /* cos and sin of every pair at each row's position -> out; rope */
    HK_OP_ROPE = 5,       /* turn out in place by the table; heads, head_size, rope */
    HK_OP_STORE = 6,      /* src (K, turned first in place where there is a rope) and src2 (V) into the pages
                             of `store` */
    HK_OP_ATTENTION = 7,  /* src (Q) -> out over `store`; heads, head_size, scale, window */
    HK_OP_GATE = 8,       /* out (float or quantised) = activation(src) * src2 */
    HK_OP_ADD = 9,        /* out = src + src2 */
    HK_OP_SELECT = 10     /* out = the selected rows of src */
};

enum hk_activation { HK_SILU = 0, HK_GELU = 1 };

enum hk_buffer_kind {
    HK_BUFFER_FLOAT = 0,
    HK_BUFFER_QUANTISED = 1,
    HK_BUFFER_LOGITS = 2,    /* the step's own `logits`, dense */
    HK_BUFFER_HIDDEN = 3     /* the step's own `hidden` */
};

typedef struct hk_op {
    int32_t kind;
    int32_t wait;       /* nonzero: starts only when every thread has finished the ops before */
    int32_t selected;   /* nonzero: works on the selected rows, not on all rows of the batch */
    int32_t scored;     /* nonzero: only on those of them whose logits are wanted */
    int32_t src;        /* buffers, weights, vectors, ropes and stores are indices, or -1 */
    int32_t src2;
    int32_t out;
    int32_t weight;
    int32_t vector;
    int32_t rope;
    int32_t table;      /* the buffer that ROPE_TABLE has written for the rope */
    int32_t store;
    int32_t heads;
    int32_t head_size;
    int32_t window;
    int32_t activation;
    float scale;
    float eps;
} hk_op;

typedef struct hk_buffer {
    int32_t kind;
    int32_t width;
} hk_buffer;

typedef struct hk_weight {
    int32_t layout;
    int64_t rows;
    int64_t columns;
    const void *data; /* hk_packed_bytes, 64-byte aligned, kept by the caller */
} hk_weight;

typedef struct hk_rope {
    int32_t pairs;
    int32_t interleaved;
    float magnitude;
    const double *frequencies; /* radians per position, one per pair; copied */
} hk_rope;

typedef struct hk_store {
    int32_t heads;
    int32_t head_size;
    const float *key_scale;    /* of tq4, one for each head: see hk_codec_encode; kept by the caller */
    const float *key_feedback;
} hk_store;

typedef struct hk_model_spec {
    const hk_op *ops;          /* all arrays are copied */
    int32_t op_count;
    const hk_buffer *buffers;
    int32_t buffer_count;
    const hk_weight *weights;
    int32_t weight_count;
    const float *const *vectors; /* norm weights and biases, kept by the caller */
    int32_t vector_count;
    const hk_rope *ropes;
    int32_t rope_count;
    const hk_store *stores;
    int32_t store_count;
    int32_t codec;
    int32_t pages;             /* pages of K/V, each HK_PAGE positions of every store */
    int32_t max_rows;          /* most rows of one step */
} hk_model_spec;

/* One step: rows of several sequences at once. Rows of a sequence stand together, in order. */
typedef struct hk_step {
    int32_t rows;
    const int32_t *tokens;       /* (rows) */
    const int32_t *positions;    /* (rows) */
    const int32_t *sequences;    /* (rows) row of `pages` */
    const int32_t *pages;        /* (sequences, page_columns) page ids */
    int32_t page_columns;
    int32_t selected;            /* rows whose logits or hidden states are wanted */
    int32_t scored;              /* the first of them: those whose logits are */
    const int32_t *selection;    /* (selected) row indices */
    float *hidden;               /* (selected, whole blocks of HK_BLOCK); zeros behind its width, 64-byte aligned */
    float *logits;               /* (scored, vocabulary) */
} hk_step;

typedef struct hk_model hk_model;

/* NULL when memory runs out. The pool must outlive the model. */
hk_model *hk_model_create(const hk_model_spec *spec, hk_pool *pool);
void hk_model_destroy(hk_model *model);

/* Bytes of one page of K/V over all stores. */
int64_t hk_page_bytes(const hk_store *stores, int32_t store_count, int codec);

/* Run the whole plan for every row of the step. */
void hk_model_step(hk_model *model, const hk_step *step);

/* A part of a step: ops first to last - 1. The first `brought` of them are matmuls whose products somebody else
 * has computed: products[i] is that of op first + i, dense, bias and sum aside. At the end the rows of buffer
 * `put` are copied, unless it is -1: values (rows, whole blocks of HK_BLOCK) of 1 byte where it is quantised, with
 * scales (rows, blocks), else floats. */
typedef struct hk_segment {
    int32_t first;
    int32_t last;
    int32_t brought;
    const float *const *products;
    int32_t put;
    void *values;
    float *scales;
} hk_segment;

/* Run a segment; those of a step come one after the other and cover all its ops. */
void hk_model_run(hk_model *model, const hk_step *step, const hk_segment *segment);

/* What one thread spent on one op, in nanoseconds: waiting for the others first, then on its share. */
typedef struct hk_op_time {
    int64_t wait;
    int64_t work;
} hk_op_time;

/* As hk_model_step; the times of all ops on all threads go to times (threads, ops). Returns the nanoseconds
 * of the whole step: more than any thread's times together, by what starting and joining the threads takes. */
int64_t hk_model_profile(hk_model *model, const hk_step *step, hk_op_time *times);

/* Copy the first `positions` positions (at most HK_PAGE) of page `source` into page `target`, another
 * one, in every store. No step may be running. */
void hk_model_copy_rows(hk_model *model, int32_t source, int32_t target, int32_t positions);

/* The rows of positions start to stop - 1 of one store, as bytes (stop - start, 2, heads, hk_codec_bytes): K of all
 * heads, then V. pages: the page ids of a sequence, one for each HK_PAGE positions. No step may be running. */
void hk_model_read_rows(const hk_model *model, int32_t store, const int32_t *pages, int64_t start, int64_t stop,
                        uint8_t *rows);
void hk_model_write_rows(hk_model *model, int32_t store, const int32_t *pages, int64_t start, int64_t stop,
                         const uint8_t *rows);

/* ---- Sampling --------------------------------------------------------------------------------- */

/* The most likely id; the lowest on a tie. NaN is never picked unless all are. */
int64_t hk_argmax(const float *logits, int64_t count);

/* The best ids of a row, the lower one on a tie, are its head. */
enum { HK_HEAD = 64 };

/* Draw an id. `draw` is uniform in [0, 1). Along that range lie first the ids of the head that are kept, best
 * first, then all others that are kept in ascending order, each as wide as it is likely. So a draw within the
 * head's share is decided by the head and the sum of all alone. The chain: temperature (above 0), top_k (0:
 * off), top_p (1: off), min_p (at most 1; 0: off); each on the distribution the one before left, the best first;
 * beside the head, equally likely ids in ascending order. What is e^87 times less likely than the best is never
 * drawn.
 * scratch: 12 * count + 1024 bytes, 8-byte aligned. */
int64_t hk_sample(const float *logits, int64_t count, float temperature, int64_t top_k, float top_p,
                  float min_p, double draw, void *scratch);

/* What a logit becomes before a draw: `plus` is added; then a positive one is divided by `repeat`, another
 * multiplied by it (Keskar et al., "CTRL", 2019); then `minus` is taken off. */
typedef struct hk_adjustment {
    uint32_t id;
    float plus, repeat, minus;
} hk_adjustment;

/* Adjust logits in place, each id once. */
void hk_adjust(float *logits, const hk_adjustment *adjustments, int64_t count);

/* Put the ids that may be drawn and their logits side by side, in ascending order; return how many there are.
 * allowed: a bit for each id, the lowest id first. ids, values: room for `count` of each. */
int64_t hk_select(const float *logits, int64_t count, const uint32_t *allowed, int32_t *ids, float *values);

/* The logarithm of the sum of e^logit: a logit less it is a log-probability. NaN counts as nothing. */
double hk_log_sum_exp(const float *logits, int64_t count);

/* The `wanted` (at least 1) most likely ids, best first, equally likely ones in ascending order; NaN is left
 * out. Returns how many there are. Quick for few: it takes up to wanted * count steps. */
int64_t hk_top(const float *logits, int64_t count, int64_t wanted, int64_t *ids);

/* Philox4x32-10 (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", 2011). */
void hk_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

/* A number in [0, 1) with 53 bits, a function of (seed, position) alone. */
double hk_uniform(uint64_t seed, uint64_t position);
/* cffi: end */

#if defined(__GNUC__)
#pragma GCC visibility pop
#endif

#endif
