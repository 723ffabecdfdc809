/* ops_avx512vnni.c: the small ops with 512-bit vectors. */
#define OPS_LEVEL avx512vnni
#include "ops_lanes.h"
