/* matmul_avxvnni.c: quantised matmuls for AVX2 with the byte dot product of AVX-VNNI. */
#define MATMUL_VNNI
#include "matmul_avx2_lanes.h"

void hk_matmul_avxvnni(hk_kernels *kernels) { put_kernels(kernels); }
