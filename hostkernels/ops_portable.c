/* ops_portable.c: the small ops for any machine. */
#define OPS_LEVEL portable
#include "ops_lanes.h"
