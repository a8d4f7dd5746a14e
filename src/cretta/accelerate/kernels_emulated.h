/* Sixteen lanes as two halves of eight: runs the code of kernels_avx512.h's width on processors with AVX2, for tests. */

#define LANES 16
#define ROWS 12
#define GROUPS 2

typedef struct {
    __m256 low, high;
} NAME(Vector);

typedef NAME(Vector) Pair;

static inline Pair NAME(load)(const float *from) { return (Pair){_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}; }
static inline void NAME(store)(float *to, Pair a) { _mm256_storeu_ps(to, a.low), _mm256_storeu_ps(to + 8, a.high); }
static inline Pair NAME(all)(float a) { return (Pair){_mm256_set1_ps(a), _mm256_set1_ps(a)}; }
static inline Pair NAME(fma)(Pair a, Pair b, Pair c) {
    return (Pair){_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
#define BOTH(name, operation) \
    static inline Pair NAME(name)(Pair a, Pair b) { return (Pair){operation(a.low, b.low), operation(a.high, b.high)}; }
BOTH(add, _mm256_add_ps)
BOTH(sub, _mm256_sub_ps)
BOTH(multiply_lanes, _mm256_mul_ps)
BOTH(divide, _mm256_div_ps)
BOTH(max, _mm256_max_ps)
#undef BOTH

static inline Pair NAME(where_above)(Pair floor, Pair condition, Pair value) {
    return (Pair){where_above_avx2(floor.low, condition.low, value.low),
                  where_above_avx2(floor.high, condition.high, value.high)};
}

static inline void NAME(store_as_double)(double *out, Pair values) {
    store_as_double_avx2(out, values.low);
    store_as_double_avx2(out + 8, values.high);
}

#define LOAD NAME(load)
#define STORE NAME(store)
#define STREAM STORE
#define ADD NAME(add)
#define SUB NAME(sub)
#define MULTIPLY NAME(multiply_lanes)
#define DIVIDE NAME(divide)
#define FMA NAME(fma)
#define ALL NAME(all)
#define MAX NAME(max)
