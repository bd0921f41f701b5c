// Vectors of eight floats: AVX2 on x86, whatever the compiler makes of them elsewhere.
#define NORM_NAMESPACE avx2
#define NORM_FLOATS 8
#include "passes.h"
