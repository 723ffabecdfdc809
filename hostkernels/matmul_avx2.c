/* matmul_avx2.c: quantised matmuls for AVX2 without a byte dot product. */
#include "matmul_avx2_lanes.h"

void hk_matmul_avx2(hk_kernels *kernels) { put_kernels(kernels); }
