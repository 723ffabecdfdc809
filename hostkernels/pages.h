/* pages.h: K and V of a model, in pages of HK_PAGE positions. Not part of the ABI.
 *
 * A page holds store after store: the keys of each head, then the values of each head. A head's keys lie in
 * strips of HK_LANES positions (hk_strip_put), its values row by row.
 */
#ifndef HK_PAGES_H
#define HK_PAGES_H

#include "internal.h"

typedef struct hk_page_store {
    int heads;
    int head_size;
    int64_t row_bytes; /* of one head */
    int64_t offset;    /* of the keys inside a page */
    const float *key_scale;
    const float *key_feedback;
} hk_page_store;

typedef struct hk_pages {
    int codec;
    hk_page_store *stores;
    int store_count;
    int64_t page_bytes;
    uint8_t *base;
    int64_t bytes;
} hk_pages;

/* Makes room for spec->pages pages; a page costs memory once a row is stored in it. False when memory is out. */
bool hk_pages_create(hk_pages *self, const hk_model_spec *spec);
void hk_pages_destroy(hk_pages *self);

/* See hk_model_copy_rows, hk_model_read_rows and hk_model_write_rows. */
void hk_pages_copy(const hk_pages *self, int32_t source, int32_t target, int64_t positions);
void hk_pages_read(const hk_pages *self, int32_t store, const int32_t *pages, int64_t start, int64_t stop,
                   uint8_t *rows);
void hk_pages_write(const hk_pages *self, int32_t store, const int32_t *pages, int64_t start, int64_t stop,
                    const uint8_t *rows);

/* Where a head's keys begin in a page. */
static inline uint8_t *hk_page_keys(const hk_pages *self, const hk_page_store *store, int64_t page, int64_t head)
{
    return self->base + page * self->page_bytes + store->offset + head * HK_PAGE * store->row_bytes;
}

/* Bytes from a head's keys to its values. */
static inline int64_t hk_page_values(const hk_page_store *store)
{
    return store->heads * HK_PAGE * store->row_bytes;
}

/* The strip of a head's keys that has a position of the page. */
static inline uint8_t *hk_page_strip(const hk_page_store *store, uint8_t *keys, int64_t position)
{
    return keys + position / HK_LANES * HK_LANES * store->row_bytes;
}

#endif
