/* Eight lanes: AVX2 and FMA. */

#define LANES 8
#define ROWS 6 /* tiles that are multiplied at once: with two vectors per row, twelve of sixteen registers are sums */
#define GROUPS 1

typedef __m256 NAME(Vector);

#define LOAD _mm256_loadu_ps
#define STORE _mm256_storeu_ps
#define STREAM STORE /* past the caches was not measured to be faster */
#define ADD _mm256_add_ps
#define SUB _mm256_sub_ps
#define MULTIPLY _mm256_mul_ps
#define DIVIDE _mm256_div_ps
#define FMA _mm256_fmadd_ps
#define ALL _mm256_set1_ps
#define MAX _mm256_max_ps /* the second operand if one is NaN */

/* `value` where `condition` is above `floor` or NaN, else 0. */
static inline __m256 NAME(where_above)(__m256 floor, __m256 condition, __m256 value) {
    return _mm256_andnot_ps(_mm256_cmp_ps(condition, floor, _CMP_LE_OQ), value);
}

static inline void NAME(store_as_double)(double *out, __m256 values) {
    _mm256_storeu_pd(out, _mm256_cvtps_pd(_mm256_castps256_ps128(values)));
    _mm256_storeu_pd(out + 4, _mm256_cvtps_pd(_mm256_extractf128_ps(values, 1)));
}
