// Vectors of 8 floats: two or four registers on machines other than those with AVX2.
#define DIRECT_NAMESPACE avx2
#define DIRECT_FLOATS 8
#include "passes.h"
