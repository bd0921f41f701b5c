// Vectors of 16 floats, called only where the CPU has AVX-512.
#if defined(__x86_64__)
#pragma GCC target("avx512f,avx512vl,avx512dq,avx512bw,prefer-vector-width=512")
#define NORM_NAMESPACE avx512
#define NORM_FLOATS 16
#include "passes.h"
#endif
