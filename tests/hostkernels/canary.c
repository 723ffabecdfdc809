/* canary.c: deliberate faults, built with the flags of the sanitised kernels and loaded the same way.
 * A test demands that each is reported; else the sanitised run of the kernel tests would prove nothing.
 */
#include <limits.h>
#include <stdlib.h>

#define EXPORTED __attribute__((visibility("default")))

/* Writes one byte past a heap block. The pointer is volatile so that the compiler cannot know how large
 * the block is: the fault is AddressSanitizer's to find, not UndefinedBehaviorSanitizer's. */
EXPORTED int overflow_heap(int size)
{
    char *volatile block = malloc((size_t)size);
    if (block == NULL)
        return -1;
    block[size] = 1;
    int value = block[size];
    free(block);
    return value;
}

/* Adds one to the largest int. */
EXPORTED int overflow_int(int value)
{
    volatile int largest = INT_MAX;
    return largest + value;
}
