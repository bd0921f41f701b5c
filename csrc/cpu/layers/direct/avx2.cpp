// Vectors of 8 floats: two or four registers on machines other than those with AVX2.
#define VECTORS avx2
#define FLOATS_OF_A_VECTOR 8
#include "passes.h"
