/* attention.h: what a step asks of attention.c. */
#ifndef HK_ATTENTION_H
#define HK_ATTENTION_H

#include "internal.h"

/* Query rows of one sequence against its stored rows, one K/V head. */
typedef struct hk_attention_job {
    const float *q;           /* row 0, first query head of the K/V head */
    int64_t q_stride;
    float *out;
    int64_t out_stride;
    const int32_t *positions; /* of the rows, ascending by one */
    int rows;                 /* at most HK_QUERY_TILE */
    int heads;                /* query heads that share the K/V head */
    int head_size;
    int window;
    float scale;
    int codec;
    const float *key_scale;   /* (head_size) or NULL */
    const uint8_t *base;      /* first byte of page 0 */
    int64_t page_bytes;
    int64_t k_offset;         /* of the head's rows inside a page */
    int64_t v_offset;
    int64_t row_bytes;
    const int32_t *pages;     /* the sequence's page table */
} hk_attention_job;

/* Floats of scratch that one job needs. */
int64_t hk_attention_scratch(int heads, int head_size);

void hk_attention(const hk_attention_job *job, float *scratch);

/* A row by itself may be attended to by spans of what it sees, by several threads: each gathers into its own part of
 * `gathered`, which has so many floats a span, and who is last joins them. */
int hk_attention_spans(int64_t position, int window);
int64_t hk_attention_gathered(int heads, int head_size);
void hk_attention_gather(const hk_attention_job *job, int span, float *gathered, float *scratch);
void hk_attention_join(const hk_attention_job *job, float *gathered);

#endif
