/* Custom CPU kernels for x86-64 processors with AVX2 and FMA: 3 x 3 convolutions by Winograd's F(2 x 2, 3 x 3), which
 * needs 16 products where direct convolution needs 36, and BatchNorm (batch or running statistics) with the ReLU after
 * it. Both have a forward and a backward kernel with few passes over memory.
 *
 * Images are float32 and channels-last: pixel after pixel, all channels of a pixel together. Results do not depend on
 * the number of threads. On other processors this file compiles to a library whose cretta_ready returns 0.
 *
 * The caller passes GOMP_parallel, so that the work runs in PyTorch's threads. A second pool of threads would compete
 * with them for the cores.
 */

/* Checksum of this file: the loader rejects a library that was compiled from another version. */
unsigned cretta_interface(void) { return INTERFACE; }

#if !(defined(__x86_64__) && defined(__GNUC__))

int cretta_ready(void) { return 0; }

#else

#include <immintrin.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* 0: the processor lacks AVX2 or FMA; 1: it has AVX-512, where PyTorch's convolutions are twice as wide; 2: AVX2. */
int cretta_ready(void) {
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 0;
    return __builtin_cpu_supports("avx512f") ? 1 : 2;
}

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC target("avx2,fma")
#endif

typedef __m256 Eight;
#define LOAD _mm256_loadu_ps
#define STORE _mm256_storeu_ps
#define ADD _mm256_add_ps
#define SUB _mm256_sub_ps
#define FMA _mm256_fmadd_ps
#define ALL _mm256_set1_ps

/* Threads. */

typedef void (*Parallel)(void (*)(void *), void *, unsigned, unsigned);

typedef struct {
    long next, count;
} Queue;

static long next_block(Queue *queue) { return __atomic_fetch_add(&queue->next, 1, __ATOMIC_RELAXED); }

#define FOR_EACH(block, queue) for (long block; (block = next_block(queue)) < (queue)->count;)

/* Run `work` in the threads until the queue is empty. Return 1 if it is not: threads stop when memory runs out. */
static int run(Parallel parallel, long threads, void (*work)(void *), void *job, Queue *queue) {
    queue->next = 0;
    if (queue->count < threads) threads = queue->count;
    if (threads > 1)
        parallel(work, job, (unsigned)threads, 0);
    else
        work(job);
    return queue->next < queue->count;
}

static float *allocate(long count) { return aligned_alloc(64, ((size_t)count * sizeof(float) + 63) / 64 * 64); }

/* Convolution. */

#define SIDE 16 /* products of a tile, 4 x 4 */
#define ROWS 6  /* tiles multiplied at once */
#define COLUMNS 16
#define LARGEST_BLOCK 48 /* tiles per block, so that their products fit in the cache; a multiple of ROWS */

typedef struct {
    Queue queue;
    const float *x, *u, *bias;
    float *y;
    long height, width, inputs, outputs, tiles, block;
} Convolution;

/* out[ROWS][COLUMNS] = a[ROWS][depth] b[depth][COLUMNS] */
static inline void multiply(const float *restrict a, ptrdiff_t depth, const float *restrict b, float *restrict out) {
    Eight s00 = {0}, s01 = {0}, s10 = {0}, s11 = {0}, s20 = {0}, s21 = {0};
    Eight s30 = {0}, s31 = {0}, s40 = {0}, s41 = {0}, s50 = {0}, s51 = {0};
    const float *late = a + 3 * depth;
#define ROW(row, from)                            \
    {                                             \
        Eight one = _mm256_broadcast_ss(from);    \
        s##row##0 = FMA(one, left, s##row##0);    \
        s##row##1 = FMA(one, right, s##row##1);   \
    }
    for (ptrdiff_t i = 0; i < depth; i++, a++, late++, b += COLUMNS) {
        Eight left = LOAD(b), right = LOAD(b + 8);
        ROW(0, a)
        ROW(1, a + depth)
        ROW(2, a + 2 * depth)
        ROW(3, late)
        ROW(4, late + depth)
        ROW(5, late + 2 * depth)
    }
#define STORE_ROW(row) STORE(out + COLUMNS * row, s##row##0), STORE(out + COLUMNS * row + 8, s##row##1);
    STORE_ROW(0) STORE_ROW(1) STORE_ROW(2) STORE_ROW(3) STORE_ROW(4) STORE_ROW(5)
}

typedef struct {
    long image, row, column; /* of the tile's first pixel */
} Position;

static Position position_of(const Convolution *job, long tile) {
    long across = (job->width + 1) / 2, down = (job->height + 1) / 2, rest = tile % (across * down);
    return (Position){tile / (across * down), rest / across * 2, rest % across * 2};
}

/* v[SIDE][tiles][inputs] = B' d B of each tile; `step` is the distance between products. */
static void transform(const Convolution *job, long first, long count, const float *zeros, float *v, ptrdiff_t step) {
    for (long tile = 0; tile < count; tile++) {
        Position position = position_of(job, first + tile);
        const float *pixel[SIDE];
        for (int i = 0; i < SIDE; i++) {
            long row = position.row + i / 4 - 1, column = position.column + i % 4 - 1;
            int outside = row < 0 || column < 0 || row >= job->height || column >= job->width;
            long index = (position.image * job->height + row) * job->width + column;
            pixel[i] = outside ? zeros : job->x + index * job->inputs;
        }
        float *out = v + tile * job->inputs;
        for (long channel = 0; channel < job->inputs; channel += 8) {
            Eight half[SIDE];
            for (int i = 0; i < 4; i++) {
                Eight d0 = LOAD(pixel[i] + channel), d1 = LOAD(pixel[4 + i] + channel);
                Eight d2 = LOAD(pixel[8 + i] + channel), d3 = LOAD(pixel[12 + i] + channel);
                half[i] = SUB(d0, d2);
                half[4 + i] = ADD(d1, d2);
                half[8 + i] = SUB(d2, d1);
                half[12 + i] = SUB(d1, d3);
            }
            for (int i = 0; i < 4; i++) {
                Eight d0 = half[4 * i], d1 = half[4 * i + 1], d2 = half[4 * i + 2], d3 = half[4 * i + 3];
                float *at_row = out + channel + 4 * i * step;
                STORE(at_row, SUB(d0, d2));
                STORE(at_row + step, ADD(d1, d2));
                STORE(at_row + 2 * step, SUB(d2, d1));
                STORE(at_row + 3 * step, SUB(d1, d3));
            }
        }
    }
}

/* y[...][channel : channel + COLUMNS] = A' m A of each tile. */
static void inverse_transform(const Convolution *job, long first, long count, long channel, const float *m,
                              ptrdiff_t step) {
    for (long tile = 0; tile < count; tile++) {
        Position position = position_of(job, first + tile);
        long index = (position.image * job->height + position.row) * job->width + position.column;
        float *out = job->y + index * job->outputs + channel;
        long down = position.row + 1 < job->height ? 2 : 1, across = position.column + 1 < job->width ? 2 : 1;
        for (int part = 0; part < COLUMNS; part += 8) {
            const float *from = m + tile * COLUMNS + part;
            Eight half[8], bias = job->bias ? LOAD(job->bias + channel + part) : ALL(0);
            for (int i = 0; i < 4; i++) {
                Eight m0 = LOAD(from + i * step), m1 = LOAD(from + (4 + i) * step);
                Eight m2 = LOAD(from + (8 + i) * step), m3 = LOAD(from + (12 + i) * step);
                half[i] = ADD(m0, ADD(m1, m2));
                half[4 + i] = SUB(SUB(m1, m2), m3);
            }
            for (long i = 0; i < down; i++) {
                Eight *h = half + 4 * i;
                float *to = out + i * job->width * job->outputs + part;
                STORE(to, ADD(bias, ADD(h[0], ADD(h[1], h[2]))));
                if (across > 1) STORE(to + job->outputs, ADD(bias, SUB(SUB(h[1], h[2]), h[3])));
            }
        }
    }
}

static void convolve(void *argument) {
    Convolution *job = argument;
    long inputs = job->inputs;
    /* The padding avoids sixteen blocks at a distance of a power of two, which map to the same cache lines. */
    ptrdiff_t v_step = job->block * inputs + 16, m_step = job->block * COLUMNS + 16;
    float *v = allocate(SIDE * v_step), *m = allocate(SIDE * m_step), *zeros = allocate(inputs);
    if (v && m && zeros) {
        memset(v, 0, (size_t)(SIDE * v_step) * sizeof(float));
        memset(zeros, 0, (size_t)inputs * sizeof(float));
        FOR_EACH(block, &job->queue) {
            long first = block * job->block, count = job->tiles - first;
            if (count > job->block) count = job->block;
            transform(job, first, count, zeros, v, v_step);
            for (long channel = 0; channel < job->outputs; channel += COLUMNS) {
                const float *u = job->u + channel * SIDE * inputs;
                for (int i = 0; i < SIDE; i++)
                    for (long tile = 0; tile < count; tile += ROWS)
                        multiply(v + i * v_step + tile * inputs, inputs, u + i * inputs * COLUMNS,
                                 m + i * m_step + tile * COLUMNS);
                inverse_transform(job, first, count, channel, m, m_step);
            }
        }
    }
    free(v), free(m), free(zeros);
}

/* y[images][height][width][outputs] = x[images][height][width][inputs] * weight (+ bias), padded by one pixel.
 *
 * u[outputs / COLUMNS][SIDE][inputs][COLUMNS] is G w G' of the weight; `inputs` is a multiple of 8, `outputs` of
 * COLUMNS. Like all exported functions, return 1 if memory ran out, else 0.
 */
int cretta_convolve(Parallel parallel, long threads, const float *x, const float *u, const float *bias, float *y,
                    long images, long height, long width, long inputs, long outputs) {
    long tiles = images * ((height + 1) / 2) * ((width + 1) / 2);
    long portion = ((tiles + threads - 1) / threads + ROWS - 1) / ROWS * ROWS;
    long block = portion < LARGEST_BLOCK ? portion : LARGEST_BLOCK;
    Convolution job = {{0, (tiles + block - 1) / block}, x, u, bias, y, height, width, inputs, outputs, tiles, block};
    return run(parallel, threads, convolve, &job, &job.queue);
}

/* Weight gradient: A g A' times B' d B of each tile, summed over tiles; the caller applies G' . G. */

#define PARTS 8   /* partial sums; their number is fixed so that the result does not depend on the threads */
#define INPUTS 4  /* inputs multiplied with COLUMNS outputs at once */

typedef struct {
    Convolution of; /* x, geometry, tiles per block; the queue holds the parts */
    const float *gradient;
    float *sums; /* [PARTS][SIDE][inputs][outputs] */
} WeightGradient;

/* z[SIDE][tiles][outputs] = A g A' of each tile; `step` is the distance between products. */
static void transform_gradient(const WeightGradient *job, long first, long count, const float *zeros, float *z,
                               ptrdiff_t step) {
    const Convolution *of = &job->of;
    for (long tile = 0; tile < count; tile++) {
        Position position = position_of(of, first + tile);
        const float *pixel[4];
        for (int i = 0; i < 4; i++) {
            long row = position.row + i / 2, column = position.column + i % 2;
            int outside = row >= of->height || column >= of->width;
            long index = (position.image * of->height + row) * of->width + column;
            pixel[i] = outside ? zeros : job->gradient + index * of->outputs;
        }
        for (long channel = 0; channel < of->outputs; channel += 8) {
            float *out = z + tile * of->outputs + channel;
            Eight g0 = LOAD(pixel[0] + channel), g1 = LOAD(pixel[1] + channel);
            Eight g2 = LOAD(pixel[2] + channel), g3 = LOAD(pixel[3] + channel);
            Eight left[4] = {g0, ADD(g0, g2), SUB(g0, g2), SUB(ALL(0), g2)};
            Eight right[4] = {g1, ADD(g1, g3), SUB(g1, g3), SUB(ALL(0), g3)};
            for (int i = 0; i < 4; i++, out += 4 * step) {
                STORE(out, left[i]);
                STORE(out + step, ADD(left[i], right[i]));
                STORE(out + 2 * step, SUB(left[i], right[i]));
                STORE(out + 3 * step, SUB(ALL(0), right[i]));
            }
        }
    }
}

/* sums[INPUTS][COLUMNS] += v[tiles][INPUTS]' z[tiles][COLUMNS] */
static inline void accumulate(const float *restrict v, ptrdiff_t inputs, const float *restrict z, ptrdiff_t outputs,
                              long tiles, float *restrict sums) {
    Eight s00 = LOAD(sums), s01 = LOAD(sums + 8);
    Eight s10 = LOAD(sums + outputs), s11 = LOAD(sums + outputs + 8);
    Eight s20 = LOAD(sums + 2 * outputs), s21 = LOAD(sums + 2 * outputs + 8);
    Eight s30 = LOAD(sums + 3 * outputs), s31 = LOAD(sums + 3 * outputs + 8);
    for (long tile = 0; tile < tiles; tile++, v += inputs, z += outputs) {
        Eight left = LOAD(z), right = LOAD(z + 8);
        ROW(0, v)
        ROW(1, v + 1)
        ROW(2, v + 2)
        ROW(3, v + 3)
    }
    STORE(sums, s00), STORE(sums + 8, s01);
    STORE(sums + outputs, s10), STORE(sums + outputs + 8, s11);
    STORE(sums + 2 * outputs, s20), STORE(sums + 2 * outputs + 8, s21);
    STORE(sums + 3 * outputs, s30), STORE(sums + 3 * outputs + 8, s31);
}

static void sum_weight_gradient(void *argument) {
    WeightGradient *job = argument;
    const Convolution *of = &job->of;
    long inputs = of->inputs, outputs = of->outputs, widest = inputs > outputs ? inputs : outputs;
    ptrdiff_t v_step = of->block * inputs + 16, z_step = of->block * outputs + 16;
    float *v = allocate(SIDE * v_step), *z = allocate(SIDE * z_step), *zeros = allocate(widest);
    if (v && z && zeros) {
        memset(zeros, 0, (size_t)widest * sizeof(float));
        FOR_EACH(part, &job->of.queue) {
            long blocks = (of->tiles + of->block - 1) / of->block;
            float *sums = job->sums + part * SIDE * inputs * outputs;
            memset(sums, 0, (size_t)(SIDE * inputs * outputs) * sizeof(float));
            for (long block = part * blocks / PARTS; block < (part + 1) * blocks / PARTS; block++) {
                long first = block * of->block, count = of->tiles - first;
                if (count > of->block) count = of->block;
                transform(of, first, count, zeros, v, v_step);
                transform_gradient(job, first, count, zeros, z, z_step);
                for (int i = 0; i < SIDE; i++)
                    for (long input = 0; input < inputs; input += INPUTS)
                        for (long output = 0; output < outputs; output += COLUMNS)
                            accumulate(v + i * v_step + input, inputs, z + i * z_step + output, outputs, count,
                                       sums + (i * inputs + input) * outputs + output);
            }
        }
    }
    free(v), free(z), free(zeros);
}

/* sums[PARTS][SIDE][inputs][outputs] for x and a gradient of the convolution's output; the weight's gradient is
 * G' s G of their sum over the parts.
 */
int cretta_convolve_weight(Parallel parallel, long threads, const float *x, const float *gradient, float *sums,
                           long images, long height, long width, long inputs, long outputs) {
    long tiles = images * ((height + 1) / 2) * ((width + 1) / 2), block = 24;
    Convolution of = {{0, PARTS}, x, NULL, NULL, NULL, height, width, inputs, outputs, tiles, block};
    WeightGradient job = {of, gradient, sums};
    return run(parallel, threads, sum_weight_gradient, &job, &job.of.queue);
}

/* BatchNorm and ReLU. */

#define BLOCK 8192 /* numbers that fit in the level-1 cache */

typedef struct {
    Queue queue;
    const float *x, *mean, *scale, *shift, *gradient, *slope, *offset;
    float *y;
    double *sums; /* two per block and channel, then two totals per channel */
    long pixels, channels, block;
} Norm;

static Norm norm(long pixels, long channels) {
    long block = BLOCK / channels > 8 ? BLOCK / channels : 8;
    Norm job = {.pixels = pixels, .channels = channels, .block = block};
    job.queue.count = (pixels + block - 1) / block;
    return job;
}

/* First sum of a block; the totals follow the last block. */
static double *sums_of(const Norm *job, long block) { return job->sums + block * 2 * job->channels; }

static int make_sums(Norm *job) {
    job->sums = calloc((size_t)((job->queue.count + 1) * 2 * job->channels), sizeof(double));
    return job->sums != NULL;
}

static void store_as_double(double *out, Eight values) {
    _mm256_storeu_pd(out, _mm256_cvtps_pd(_mm256_castps256_ps128(values)));
    _mm256_storeu_pd(out + 4, _mm256_cvtps_pd(_mm256_extractf128_ps(values, 1)));
}

static long pixels_of(const Norm *job, long block) {
    long rest = job->pixels - block * job->block;
    return rest < job->block ? rest : job->block;
}

/* Mean of each channel in each block, and the sum of squared deviations from it. */
static void sum_squares_of_block(void *argument) {
    Norm *job = argument;
    long channels = job->channels;
    FOR_EACH(block, &job->queue) {
        long pixels = pixels_of(job, block);
        const float *x = job->x + block * job->block * channels;
        double *sums = sums_of(job, block);
        for (long channel = 0; channel < channels; channel += 8) {
            Eight even = ALL(0), odd = ALL(0), squares = ALL(0), others = ALL(0);
            long i = 0;
            for (; i + 1 < pixels; i += 2) {
                even = ADD(even, LOAD(x + i * channels + channel));
                odd = ADD(odd, LOAD(x + (i + 1) * channels + channel));
            }
            if (i < pixels) even = ADD(even, LOAD(x + i * channels + channel));
            Eight mean = _mm256_div_ps(ADD(even, odd), ALL((float)pixels));
            for (i = 0; i + 1 < pixels; i += 2) {
                Eight one = SUB(LOAD(x + i * channels + channel), mean);
                Eight other = SUB(LOAD(x + (i + 1) * channels + channel), mean);
                squares = FMA(one, one, squares);
                others = FMA(other, other, others);
            }
            if (i < pixels) {
                Eight one = SUB(LOAD(x + i * channels + channel), mean);
                squares = FMA(one, one, squares);
            }
            store_as_double(sums + channel, mean);
            store_as_double(sums + channels + channel, ADD(squares, others));
        }
    }
}

/* y = relu(x scale + shift) */
static void scale_shift_relu(void *argument) {
    Norm *job = argument;
    long channels = job->channels;
    const Eight zero = ALL(0);
    FOR_EACH(block, &job->queue) {
        long from = block * job->block * channels, pixels = pixels_of(job, block);
        for (long i = 0; i < pixels; i++, from += channels)
            for (long channel = 0; channel < channels; channel += 8) {
                Eight x = FMA(LOAD(job->x + from + channel), LOAD(job->scale + channel), LOAD(job->shift + channel));
                STORE(job->y + from + channel, _mm256_max_ps(zero, x)); /* returns the second operand if one is NaN */
            }
    }
}

/* Gradient of ReLU(x scale + shift) with respect to the ReLU's input, where `x` is BatchNorm's input. */
static inline Eight relu_gradient(Eight gradient, Eight x, Eight scale, Eight shift) {
    Eight closed = _mm256_cmp_ps(FMA(x, scale, shift), ALL(0), _CMP_LE_OQ);
    return _mm256_andnot_ps(closed, gradient);
}

/* Sums over each block of the gradient g, and of g (x - mean). */
static void sum_gradients_of_block(void *argument) {
    Norm *job = argument;
    long channels = job->channels;
    FOR_EACH(block, &job->queue) {
        long from = block * job->block * channels, pixels = pixels_of(job, block);
        double *sums = sums_of(job, block);
        for (long channel = 0; channel < channels; channel += 8) {
            Eight mean = LOAD(job->mean + channel), scale = LOAD(job->scale + channel);
            Eight shift = LOAD(job->shift + channel), sum = ALL(0), product = ALL(0);
            const float *x = job->x + from + channel, *gradient = job->gradient + from + channel;
            for (long i = 0; i < pixels; i++, x += channels, gradient += channels) {
                Eight value = LOAD(x), g = relu_gradient(LOAD(gradient), value, scale, shift);
                sum = ADD(sum, g);
                product = FMA(g, SUB(value, mean), product);
            }
            store_as_double(sums + channel, sum);
            store_as_double(sums + channels + channel, product);
        }
    }
}

/* y = g scale + (x slope + offset), where g is the gradient after the ReLU; without the bracket if slope is NULL. */
static void input_gradient_of_block(void *argument) {
    Norm *job = argument;
    long channels = job->channels;
    FOR_EACH(block, &job->queue) {
        long from = block * job->block * channels, pixels = pixels_of(job, block);
        for (long i = 0; i < pixels; i++, from += channels)
            for (long channel = 0; channel < channels; channel += 8) {
                Eight x = LOAD(job->x + from + channel), scale = LOAD(job->scale + channel);
                Eight g = relu_gradient(LOAD(job->gradient + from + channel), x, scale, LOAD(job->shift + channel));
                Eight out = _mm256_mul_ps(g, scale);
                if (job->slope)
                    out = FMA(g, scale, FMA(x, LOAD(job->slope + channel), LOAD(job->offset + channel)));
                STORE(job->y + from + channel, out);
            }
    }
}

/* Mean and inverse standard deviation of each channel. */
static int batch_statistics(Parallel parallel, long threads, const float *x, double eps, float *mean, float *deviation,
                   long pixels, long channels) {
    Norm job = norm(pixels, channels);
    long blocks = job.queue.count;
    job.x = x;
    if (!make_sums(&job)) return 1;
    run(parallel, threads, sum_squares_of_block, &job, &job.queue);
    double *total = sums_of(&job, blocks), *squares = total + channels;
    for (long i = 0; i < blocks; i++) {
        const double *of = sums_of(&job, i), count = (double)pixels_of(&job, i);
        for (long channel = 0; channel < channels; channel++) total[channel] += of[channel] * count;
    }
    for (long channel = 0; channel < channels; channel++) total[channel] /= (double)pixels;
    for (long i = 0; i < blocks; i++) {
        const double *of = sums_of(&job, i), count = (double)pixels_of(&job, i);
        for (long channel = 0; channel < channels; channel++) {
            double off = of[channel] - total[channel];
            squares[channel] += of[channels + channel] + off * off * count;
        }
    }
    for (long channel = 0; channel < channels; channel++) {
        mean[channel] = (float)total[channel];
        deviation[channel] = (float)(1 / sqrt(squares[channel] / (double)pixels + eps));
    }
    free(job.sums);
    return 0;
}

/* y = relu((x - mean) deviation weight + bias) = relu(x scale + shift).
 *
 * `statistics` has four rows of one value per channel: mean, inverse deviation, scale, shift. If `fixed`, the first two
 * are input, else they are computed from the batch; the last two are output. `channels` is a multiple of 8.
 */
int cretta_batch_norm_relu(Parallel parallel, long threads, const float *x, const float *weight, const float *bias,
                           double eps, float *y, float *statistics, long pixels, long channels, long fixed) {
    float *mean = statistics, *deviation = mean + channels, *scale = deviation + channels, *shift = scale + channels;
    if (!fixed && batch_statistics(parallel, threads, x, eps, mean, deviation, pixels, channels)) return 1;
    for (long channel = 0; channel < channels; channel++) {
        double factor = (double)deviation[channel] * weight[channel];
        scale[channel] = (float)factor;
        shift[channel] = (float)(bias[channel] - mean[channel] * factor);
    }
    Norm job = norm(pixels, channels);
    job.x = x, job.y = y, job.scale = scale, job.shift = shift;
    return run(parallel, threads, scale_shift_relu, &job, &job.queue);
}

/* Backward: write the gradient of x to y, unless y is NULL, and those of weight and bias to `parameter_gradients`. */
int cretta_batch_norm_relu_backward(Parallel parallel, long threads, const float *x, const float *gradient,
                                    const float *statistics, float *y, float *parameter_gradients, long pixels,
                                    long channels, long fixed) {
    const float *mean = statistics, *deviation = mean + channels;
    const float *scale = deviation + channels, *shift = scale + channels;
    float *of_weight = parameter_gradients, *of_bias = parameter_gradients + channels;
    Norm job = norm(pixels, channels);
    long blocks = job.queue.count;
    float *slope = allocate(channels), *offset = allocate(channels);
    if (!make_sums(&job) || !slope || !offset) {
        free(job.sums), free(slope), free(offset);
        return 1;
    }
    job.x = x, job.y = y, job.gradient = gradient, job.mean = mean, job.scale = scale, job.shift = shift;
    if (!fixed) job.slope = slope, job.offset = offset; /* batch statistics depend on x */
    run(parallel, threads, sum_gradients_of_block, &job, &job.queue);
    double *total = sums_of(&job, blocks);
    for (long i = 0; i < blocks; i++) {
        const double *of = sums_of(&job, i);
        for (long j = 0; j < 2 * channels; j++) total[j] += of[j];
    }
    for (long channel = 0; channel < channels; channel++) {
        double sum = total[channel], product = total[channels + channel], inverse = deviation[channel];
        of_bias[channel] = (float)sum;
        of_weight[channel] = (float)(product * inverse);
        /* scale (g - mean(g) - (x - mean) inverse^2 mean(g (x - mean))) */
        double portion = scale[channel] / (double)pixels, factor = -portion * inverse * inverse * product;
        slope[channel] = (float)factor;
        offset[channel] = (float)(-portion * sum - factor * mean[channel]);
    }
    free(job.sums);
    if (y) run(parallel, threads, input_gradient_of_block, &job, &job.queue);
    free(slope), free(offset);
    return 0;
}

#ifdef __clang__
#pragma clang attribute pop
#endif

#endif
