/* pages.c: where rows of K and V lie, and how they come and go as bytes. */
#include "pages.h"

#include <stdlib.h>
#include <sys/mman.h>

static int64_t store_bytes(const hk_store *spec, int codec)
{
    return 2 * HK_PAGE * spec->heads * hk_codec_bytes(codec, spec->head_size);
}

int64_t hk_page_bytes(const hk_store *stores, int32_t store_count, int codec)
{
    int64_t bytes = 0;
    for (int i = 0; i < store_count; i++)
        bytes += store_bytes(&stores[i], codec);
    return hk_round_up(bytes, 64);
}

bool hk_pages_create(hk_pages *self, const hk_model_spec *spec)
{
    self->codec = spec->codec;
    self->page_bytes = hk_page_bytes(spec->stores, spec->store_count, spec->codec);
    self->stores = calloc((size_t)spec->store_count + 1, sizeof *self->stores);
    if (!self->stores)
        return false;
    int64_t offset = 0;
    for (; self->store_count < spec->store_count; self->store_count++) {
        const hk_store *from = &spec->stores[self->store_count];
        self->stores[self->store_count] =
            (hk_page_store){from->heads, from->head_size, hk_codec_bytes(spec->codec, from->head_size),
                            offset,      from->key_scale, from->key_feedback};
        offset += store_bytes(from, spec->codec);
    }
    const int64_t bytes = self->page_bytes * spec->pages;
    if (bytes == 0)
        return true;
    void *base = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1,
                      0);
    if (base == MAP_FAILED)
        return false;
    self->base = base;
    self->bytes = bytes;
    return true;
}

void hk_pages_destroy(hk_pages *self)
{
    if (self->base)
        munmap(self->base, (size_t)self->bytes);
    free(self->stores);
}

void hk_pages_copy(const hk_pages *self, int32_t source, int32_t target, int64_t positions)
{
    for (int i = 0; i < self->store_count; i++) {
        const hk_page_store *store = &self->stores[i];
        const int64_t values = hk_page_values(store), strips = positions / HK_LANES * HK_LANES * store->row_bytes;
        for (int64_t head = 0; head < store->heads; head++) {
            const uint8_t *from = hk_page_keys(self, store, source, head);
            uint8_t *to = hk_page_keys(self, store, target, head);
            memcpy(to, from, (size_t)strips);
            if (positions % HK_LANES > 0)
                hk_strip_copy(self->codec, from + strips, store->head_size, (int)(positions % HK_LANES), to + strips);
            memcpy(to + values, from + values, (size_t)(positions * store->row_bytes));
        }
    }
}

void hk_pages_read(const hk_pages *self, int32_t store, const int32_t *pages, int64_t start, int64_t stop,
                   uint8_t *rows)
{
    const hk_page_store *of = &self->stores[store];
    const int64_t bytes = of->row_bytes;
    for (int64_t position = start; position < stop; position++, rows += 2 * of->heads * bytes) {
        const int64_t inside = position % HK_PAGE;
        for (int64_t head = 0; head < of->heads; head++) {
            uint8_t *keys = hk_page_keys(self, of, pages[position / HK_PAGE], head);
            hk_strip_get(self->codec, hk_page_strip(of, keys, inside), of->head_size, (int)(inside % HK_LANES),
                         rows + head * bytes);
            memcpy(rows + (of->heads + head) * bytes, keys + hk_page_values(of) + inside * bytes, (size_t)bytes);
        }
    }
}

void hk_pages_write(const hk_pages *self, int32_t store, const int32_t *pages, int64_t start, int64_t stop,
                    const uint8_t *rows)
{
    const hk_page_store *of = &self->stores[store];
    const int64_t bytes = of->row_bytes;
    for (int64_t position = start; position < stop; position++, rows += 2 * of->heads * bytes) {
        const int64_t inside = position % HK_PAGE;
        for (int64_t head = 0; head < of->heads; head++) {
            uint8_t *keys = hk_page_keys(self, of, pages[position / HK_PAGE], head);
            hk_strip_put(self->codec, rows + head * bytes, of->head_size, (int)(inside % HK_LANES),
                         hk_page_strip(of, keys, inside));
            memcpy(keys + hk_page_values(of) + inside * bytes, rows + (of->heads + head) * bytes, (size_t)bytes);
        }
    }
}
