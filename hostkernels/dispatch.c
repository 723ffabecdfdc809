/* dispatch.c: which kernels this process uses. Filled once, from the portable floor up; the
 * environment variable HOSTKERNELS_LEVEL names the highest level that may be taken.
 */
#include "internal.h"

#if defined(__GLIBC__)
#include <malloc.h>
#endif
#include <pthread.h>
#include <stdlib.h>

static hk_kernels chosen;
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Levels in ascending order; each takes what the one before left and puts its own kernels over it. */
enum level { PORTABLE, AVX2, AVX512VNNI, LEVELS };
static const char *const level_names[LEVELS] = {"portable", "avx2", "avx512vnni"};

/* An unknown name forces nothing; the Python side has refused it. */
static enum level highest_allowed(void)
{
    const char *name = getenv("HOSTKERNELS_LEVEL");
    for (int level = 0; name && level < LEVELS; level++)
        if (strcmp(name, level_names[level]) == 0)
            return (enum level)level;
    return LEVELS - 1;
}

static void choose(void)
{
    hk_ops_portable(&chosen);
    hk_matmul_portable(&chosen);
#if defined(HK_X86)
    const enum level highest = highest_allowed();
    __builtin_cpu_init();
    if (highest < AVX2 || !__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")
        || !__builtin_cpu_supports("f16c"))
        return;
    hk_ops_avx2(&chosen);
    hk_matmul_avx2(&chosen);
    if (__builtin_cpu_supports("avxvnni"))
        hk_matmul_avxvnni(&chosen);
    if (highest < AVX512VNNI || !__builtin_cpu_supports("avx512vnni") || !__builtin_cpu_supports("avx512bw")
        || !__builtin_cpu_supports("avx512vl") || !__builtin_cpu_supports("avx512dq"))
        return;
    hk_ops_avx512vnni(&chosen);
    hk_matmul_avx512vnni(&chosen);
    hk_attention_avx512vnni(&chosen);
#endif
}

const hk_kernels *hk_kernels_get(void)
{
    pthread_once(&once, choose);
    return &chosen;
}

const char *hk_level(void) { return hk_kernels_get()->level; }

void hk_trim(void)
{
#if defined(__GLIBC__)
    malloc_trim(0);
#endif
}

int hk_abi_version(void) { return HK_ABI_VERSION; }
