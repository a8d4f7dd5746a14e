/* Sixteen lanes: AVX-512F. */

#define LANES 16
#define ROWS 12 /* tiles that are multiplied at once, and groups of COLUMNS: 24 of 32 registers are sums */
#define GROUPS 2

typedef __m512 NAME(Vector);

#define LOAD _mm512_loadu_ps
#define STORE _mm512_storeu_ps
#define STREAM _mm512_stream_ps /* past the caches */
#define ADD _mm512_add_ps
#define SUB _mm512_sub_ps
#define MULTIPLY _mm512_mul_ps
#define DIVIDE _mm512_div_ps
#define FMA _mm512_fmadd_ps
#define ALL _mm512_set1_ps
#define MAX _mm512_max_ps /* the second operand if one is NaN */

/* `value` where `condition` is above `floor` or NaN, else 0. */
static inline __m512 NAME(where_above)(__m512 floor, __m512 condition, __m512 value) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(condition, floor, _CMP_NLE_UQ), value);
}

static inline void NAME(store_as_double)(double *out, __m512 values) {
    _mm512_storeu_pd(out, _mm512_cvtps_pd(_mm512_castps512_ps256(values)));
    __m256 upper = _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(values), 1));
    _mm512_storeu_pd(out + 8, _mm512_cvtps_pd(upper));
}
