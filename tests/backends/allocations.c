/* allocations.c: preloaded, counts what asks for memory while a call of the kernels runs.
 *
 * It stands in front of the C library's own functions for the whole process; only what any thread asks for
 * between the beginning and the end of a counted call is counted. Needs glibc.
 */
#define _GNU_SOURCE

#include "hostkernels.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);

static atomic_bool counting;
static atomic_long count;

static void note(void)
{
    if (atomic_load(&counting))
        atomic_fetch_add(&count, 1);
}

void *malloc(size_t bytes)
{
    note();
    return __libc_malloc(bytes);
}

void *calloc(size_t items, size_t bytes)
{
    note();
    return __libc_calloc(items, bytes);
}

void *realloc(void *memory, size_t bytes)
{
    note();
    return __libc_realloc(memory, bytes);
}

void *memalign(size_t alignment, size_t bytes)
{
    note();
    return __libc_memalign(alignment, bytes);
}

void *aligned_alloc(size_t alignment, size_t bytes)
{
    note();
    return __libc_memalign(alignment, bytes);
}

int posix_memalign(void **memory, size_t alignment, size_t bytes)
{
    note();
    *memory = __libc_memalign(alignment, bytes);
    return *memory ? 0 : ENOMEM;
}

void *mmap(void *address, size_t bytes, int protection, int flags, int file, off_t offset)
{
    note();
    return (void *)syscall(SYS_mmap, address, bytes, protection, flags, file, offset);
}

void *mmap64(void *address, size_t bytes, int protection, int flags, int file, off_t offset)
{
    note();
    return (void *)syscall(SYS_mmap, address, bytes, protection, flags, file, offset);
}

static void begin(void)
{
    atomic_store(&count, 0);
    atomic_store(&counting, true);
}

static long end(void)
{
    atomic_store(&counting, false);
    return atomic_load(&count);
}

long count_step(void (*step)(hk_model *, const hk_step *), hk_model *model, const hk_step *argument)
{
    begin();
    step(model, argument);
    return end();
}

long count_create(hk_model *(*create)(const hk_model_spec *, hk_pool *), const hk_model_spec *spec, hk_pool *pool,
                  hk_model **model)
{
    begin();
    *model = create(spec, pool);
    return end();
}
