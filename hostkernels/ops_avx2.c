/* ops_avx2.c: the small ops with 256-bit vectors. */
#define OPS_LEVEL avx2
#include "ops_lanes.h"
