/* dispatch.c: which kernels this process uses. Filled once, from the portable floor up; the
 * environment variable HOSTKERNELS_LEVEL names the highest level that may be taken. */
#include "internal.h"

#include <pthread.h>

static hk_kernels chosen;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void choose(void) { hk_kernels_portable(&chosen); }

const hk_kernels *hk_kernels_get(void)
{
    pthread_once(&once, choose);
    return &chosen;
}

const char *hk_level(void) { return hk_kernels_get()->level; }

int hk_abi_version(void) { return HK_ABI_VERSION; }
