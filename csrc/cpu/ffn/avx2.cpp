// Vectors of 8 floats: two or four registers on machines other than those with AVX2.
#define FFN_NAMESPACE avx2
#define FFN_FLOATS 8
#include "passes.h"
