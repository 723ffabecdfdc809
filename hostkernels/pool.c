/* pool.c: a fixed set of threads that run one task together.
 *
 * A worker spins on the generation for a few tens of microseconds, which covers the gap between two
 * steps of a busy engine, then sleeps on a condition variable, so that an idle daemon uses no CPU.
 */
#include "internal.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

enum { SPINS = 1000 };

struct hk_pool {
    int threads; /* the caller among them */
    hk_task task;
    void *context;
    atomic_uint generation; /* grows with every task */
    atomic_int unfinished;  /* workers still in the task */
    atomic_int sleepers;
    atomic_bool closing;
    atomic_int arrived;     /* threads waiting at the barrier */
    atomic_uint phase;      /* grows with every barrier passed */
    pthread_mutex_t lock;
    pthread_cond_t work;
    pthread_t *handles;
};

typedef struct worker_start {
    hk_pool *pool;
    int part;
} worker_start;

static void relax(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void spin(int *spins)
{
    if (++*spins < SPINS)
        relax();
    else
        sched_yield();
}

/* Return once the generation has moved on from `seen`. */
static void wait_for_work(hk_pool *pool, unsigned seen)
{
    for (int i = 0; i < SPINS; i++) {
        if (atomic_load_explicit(&pool->generation, memory_order_acquire) != seen)
            return;
        relax();
    }
    pthread_mutex_lock(&pool->lock);
    atomic_fetch_add(&pool->sleepers, 1);
    while (atomic_load(&pool->generation) == seen)
        pthread_cond_wait(&pool->work, &pool->lock);
    atomic_fetch_sub(&pool->sleepers, 1);
    pthread_mutex_unlock(&pool->lock);
}

static void *worker(void *argument)
{
    worker_start *start = argument;
    hk_pool *pool = start->pool;
    const int part = start->part;
    free(start);
    for (unsigned seen = 0;; seen++) {
        wait_for_work(pool, seen);
        if (atomic_load(&pool->closing))
            return NULL;
        pool->task(pool->context, part, pool->threads);
        atomic_fetch_sub_explicit(&pool->unfinished, 1, memory_order_release);
    }
}

static void announce(hk_pool *pool)
{
    atomic_fetch_add(&pool->generation, 1);
    if (atomic_load(&pool->sleepers) > 0) {
        pthread_mutex_lock(&pool->lock);
        pthread_cond_broadcast(&pool->work);
        pthread_mutex_unlock(&pool->lock);
    }
}

hk_pool *hk_pool_create(int threads)
{
    hk_pool *pool = calloc(1, sizeof *pool);
    if (!pool)
        return NULL;
    pool->threads = 1;
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->work, NULL);
    pool->handles = calloc((size_t)threads, sizeof *pool->handles);
    for (int part = 1; pool->handles && part < threads; part++) {
        worker_start *start = malloc(sizeof *start);
        if (!start)
            break;
        *start = (worker_start){pool, part};
        if (pthread_create(&pool->handles[part], NULL, worker, start) != 0) {
            free(start);
            break;
        }
        pool->threads = part + 1;
    }
    if (pool->threads != threads) {
        hk_pool_destroy(pool);
        return NULL;
    }
    return pool;
}

void hk_pool_destroy(hk_pool *pool)
{
    if (!pool)
        return;
    atomic_store(&pool->closing, true);
    announce(pool);
    for (int part = 1; part < pool->threads; part++)
        pthread_join(pool->handles[part], NULL);
    pthread_cond_destroy(&pool->work);
    pthread_mutex_destroy(&pool->lock);
    free(pool->handles);
    free(pool);
}

int hk_pool_threads(const hk_pool *pool) { return pool->threads; }

void hk_pool_run(hk_pool *pool, hk_task task, void *context)
{
    pool->task = task;
    pool->context = context;
    atomic_store(&pool->unfinished, pool->threads - 1);
    announce(pool);
    task(context, 0, pool->threads);
    for (int spins = 0; atomic_load_explicit(&pool->unfinished, memory_order_acquire) > 0;)
        spin(&spins);
}

void hk_pool_barrier(hk_pool *pool)
{
    const unsigned phase = atomic_load_explicit(&pool->phase, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&pool->arrived, 1, memory_order_acq_rel) == pool->threads - 1) {
        atomic_store_explicit(&pool->arrived, 0, memory_order_relaxed);
        atomic_fetch_add_explicit(&pool->phase, 1, memory_order_release);
        return;
    }
    for (int spins = 0; atomic_load_explicit(&pool->phase, memory_order_acquire) == phase;)
        spin(&spins);
}
