/* Custom CPU kernels for x86-64: 3 x 3 convolutions by Winograd's F(2 x 2, 3 x 3), which needs 16 products where direct
 * convolution needs 36, or F(4 x 4, 3 x 3), which needs 36 instead of 144 but rounds worse, and BatchNorm (batch or
 * running statistics) with the sum and the ReLU after it, if there are such. They have a forward and a backward kernel
 * with few passes over memory.
 *
 * Images are float32 and channels-last: pixel after pixel, all channels of a pixel together. Results do not depend on
 * the number of threads. The same code (kernels_lanes.h) is compiled once per path: AVX2, AVX-512, and sixteen lanes
 * emulated by AVX2. The caller chooses a path that cretta_paths names. On other processors this file compiles to a
 * library without any path.
 *
 * The caller passes GOMP_parallel, so that the work runs in PyTorch's threads. A second pool of threads would compete
 * with them for the cores. NULL: one thread.
 */

/* Checksum of the C files: the loader rejects a library that was compiled from another version. */
unsigned cretta_interface(void) { return INTERFACE; }

#if !(defined(__x86_64__) && defined(__GNUC__))

unsigned cretta_paths(void) { return 0; }

#else

#include <immintrin.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum { AVX2, AVX512, EMULATED };

/* The paths that this processor can run, one bit each. The check by __builtin_cpu_supports includes that the operating
 * system saves the wide registers.
 */
unsigned cretta_paths(void) {
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 0;
    return 1u << AVX2 | 1u << EMULATED | (__builtin_cpu_supports("avx512f") ? 1u << AVX512 : 0);
}

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
    if (threads > 1 && parallel)
        parallel(work, job, (unsigned)threads, 0);
    else
        work(job);
    return queue->next < queue->count;
}

static float *allocate(long count) { return aligned_alloc(64, ((size_t)count * sizeof(float) + 63) / 64 * 64); }

/* Whether a result is too large to be still in the cache when it is read, and aligned as all of PyTorch's are. */
static int is_large(const float *y, long count) { return count > 1 << 20 && (size_t)y % 64 == 0; }

#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16") /* early enough for arrays of vectors to become registers */
#endif

/* Convolution. */

#define COLUMNS 16       /* output channels in one group of a weight */
#define LARGEST_BLOCK 48 /* tiles in a block, so that their products fit in the cache; a multiple of all ROWS */

typedef struct {
    Queue queue;
    const float *x, *u, *bias;
    const float *scale, *shift; /* of each input channel: x is relu(x scale + shift); or NULL */
    const float *shortcut; /* added to y, or NULL */
    float *y;
    long height, width, inputs, outputs, tiles, block;
    int large;
} Convolution;

typedef struct {
    long image, row, column; /* of the tile's first output pixel */
} Position;

/* The positions of `count` tiles, the first of which has the number `first`. */
static void find_positions(const Convolution *job, long first, long count, long side, Position *positions) {
    long across = (job->width + side - 1) / side, down = (job->height + side - 1) / side, rest = first % (across * down);
    Position position = {first / (across * down), rest / across * side, rest % across * side};
    for (long i = 0; i < count; i++) {
        positions[i] = position;
        position.column += side;
        if (position.column >= job->width) position.column = 0, position.row += side;
        if (position.row >= job->height) position.row = 0, position.image++;
    }
}

/* Weight gradient: A g A' times B' d B of each tile, summed over tiles; the caller applies G' . G. */

#define TAPS 16  /* products of a tile */
#define PARTS 8  /* partial sums; their number is fixed so that the result does not depend on the threads */
#define INPUTS 4 /* inputs multiplied with COLUMNS outputs at once */

typedef struct {
    Convolution of; /* x, geometry, tiles per block; the queue holds the parts */
    const float *gradient;
    float *sums; /* [PARTS][TAPS][inputs][outputs] */
} WeightGradient;

/* BatchNorm, a sum and ReLU. */

#define BLOCK 4096 /* numbers of one tensor, read twice for the statistics: they fit in the level-1 cache */

typedef struct {
    Queue queue;
    const float *x, *mean, *scale, *shift, *slope, *offset;
    const float *shortcut; /* added before the ReLU, or NULL */
    const float *gradient, *other; /* of the output, from its two uses; the second one may be NULL */
    const float *output; /* of the ReLU, which shows its mask; if NULL, the mask is computed from x */
    float *y, *masked; /* masked: the gradient before the ReLU, or NULL */
    double *sums; /* two per block and channel, then two totals per channel */
    long pixels, channels, block;
    float floor; /* the least output */
    int large;
} Norm;

static Norm norm(long pixels, long channels, long relu) {
    long block = BLOCK / channels > 8 ? BLOCK / channels : 8;
    Norm job = {.pixels = pixels, .channels = channels, .block = block, .floor = relu ? 0 : -INFINITY};
    job.queue.count = (pixels + block - 1) / block;
    return job;
}

/* First sum of a block; the totals follow the last block. */
static double *sums_of(const Norm *job, long block) { return job->sums + block * 2 * job->channels; }

static int make_sums(Norm *job) {
    job->sums = calloc((size_t)((job->queue.count + 1) * 2 * job->channels), sizeof(double));
    return job->sums != NULL;
}

static long pixels_of(const Norm *job, long block) {
    long rest = job->pixels - block * job->block;
    return rest < job->block ? rest : job->block;
}

/* What differs between instruction sets. */

typedef struct {
    int (*convolve_2)(Parallel, long, Convolution, long), (*convolve_4)(Parallel, long, Convolution, long);
    void (*sum_weight_gradient)(void *), (*sum_squares)(void *), (*scale_shift)(void *);
    void (*sum_gradients)(void *), (*input_gradient)(void *);
} Path;

#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif
#define NAME(name) name##_avx2
#include "kernels_avx2.h"
#include "kernels_lanes.h"
#undef NAME
#define NAME(name) name##_emulated
#include "kernels_emulated.h"
#include "kernels_lanes.h"
#undef NAME
#ifdef __clang__
#pragma clang attribute pop
#pragma clang attribute push(__attribute__((target("avx2,fma,avx512f"))), apply_to = function)
#else
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx2,fma,avx512f")
#endif
#define NAME(name) name##_avx512
#include "kernels_avx512.h"
#include "kernels_lanes.h"
#ifdef __clang__
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

static const Path *const paths[] = {&path_avx2, &path_avx512, &path_emulated};

/* y[images][height][width][outputs] = x[images][height][width][inputs] * weight (+ bias), padded by one pixel.
 *
 * u[outputs / COLUMNS][products][inputs][COLUMNS] is G w G' of the weight for tiles of `tile` x `tile` pixels, 2 or 4;
 * `inputs` and `outputs` are multiples of COLUMNS. If `statistics` are not NULL, those of cretta_batch_norm_relu, x is
 * relu(x scale + shift). `shortcut`, unless NULL, is added to y. Like all exported functions, return 1 if memory ran out, else 0.
 */
int cretta_convolve(Parallel parallel, long threads, long path, long tile, const float *x, const float *statistics,
                    const float *u, const float *bias, const float *shortcut, float *y, long images, long height,
                    long width, long inputs, long outputs) {
    Convolution job = {.x = x, .u = u, .bias = bias, .shortcut = shortcut, .y = y, .height = height, .width = width};
    job.inputs = inputs, job.outputs = outputs;
    if (statistics) job.scale = statistics + 2 * inputs, job.shift = statistics + 3 * inputs;
    return (tile == 2 ? paths[path]->convolve_2 : paths[path]->convolve_4)(parallel, threads, job, images);
}

/* sums[PARTS][TAPS][inputs][outputs] for x and a gradient of the convolution's output; the weight's gradient is
 * G' s G of their sum over the parts.
 */
int cretta_convolve_weight(Parallel parallel, long threads, long path, const float *x, const float *gradient,
                           float *sums, long images, long height, long width, long inputs, long outputs) {
    long tiles = images * ((height + 1) / 2) * ((width + 1) / 2), block = 24;
    Convolution of = {.queue = {0, PARTS}, .x = x, .height = height, .width = width, .tiles = tiles, .block = block};
    of.inputs = inputs, of.outputs = outputs;
    WeightGradient job = {of, gradient, sums};
    return run(parallel, threads, paths[path]->sum_weight_gradient, &job, &job.of.queue);
}

/* Mean and inverse standard deviation of each channel. */
static int batch_statistics(Parallel parallel, long threads, const Path *path, const float *x, double eps, float *mean,
                            float *deviation, long pixels, long channels) {
    Norm job = norm(pixels, channels, 0);
    long blocks = job.queue.count;
    job.x = x;
    if (!make_sums(&job)) return 1;
    run(parallel, threads, path->sum_squares, &job, &job.queue);
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

/* y = relu((x - mean) deviation weight + bias + shortcut) = relu(x scale + shift + shortcut).
 *
 * Without ReLU if `relu` is 0, without sum if `shortcut` is NULL.
 * `statistics` has four rows of one value per channel: mean, inverse deviation, scale, shift. If `fixed`, the first two
 * are input, else they are computed from the batch; the last two are output. If y is NULL, only statistics are computed.
 * `channels` is a multiple of the path's lanes.
 */
int cretta_batch_norm_relu(Parallel parallel, long threads, long path, const float *x, const float *weight,
                           const float *bias, double eps, const float *shortcut, float *y, float *statistics,
                           long pixels, long channels, long fixed, long relu) {
    float *mean = statistics, *deviation = mean + channels, *scale = deviation + channels, *shift = scale + channels;
    if (!fixed && batch_statistics(parallel, threads, paths[path], x, eps, mean, deviation, pixels, channels)) return 1;
    for (long channel = 0; channel < channels; channel++) {
        double factor = (double)deviation[channel] * weight[channel];
        scale[channel] = (float)factor;
        shift[channel] = (float)(bias[channel] - mean[channel] * factor);
    }
    if (!y) return 0;
    Norm job = norm(pixels, channels, relu);
    job.x = x, job.y = y, job.scale = scale, job.shift = shift, job.shortcut = shortcut;
    job.large = channels % 16 == 0 && is_large(y, pixels * channels);
    return run(parallel, threads, paths[path]->scale_shift, &job, &job.queue);
}

/* Backward: write the gradient of x to y, unless y is NULL, and those of weight and bias to `parameter_gradients`.
 *
 * With a sum before the ReLU, `output` is the ReLU's, and its masked gradient, which is that of the shortcut, is written
 * to `masked`; `other`, unless NULL, is added to `gradient` first. Without a sum, these three are NULL. y or masked may be
 * the memory of `gradient`.
 */
int cretta_batch_norm_relu_backward(Parallel parallel, long threads, long path, const float *x,
                                    const float *gradient, const float *other, const float *output,
                                    const float *statistics, float *masked, float *y, float *parameter_gradients,
                                    long pixels, long channels, long fixed, long relu) {
    const float *mean = statistics, *deviation = mean + channels;
    const float *scale = deviation + channels, *shift = scale + channels;
    float *of_weight = parameter_gradients, *of_bias = parameter_gradients + channels;
    Norm job = norm(pixels, channels, relu);
    long blocks = job.queue.count;
    float *slope = allocate(channels), *offset = allocate(channels);
    if (!make_sums(&job) || !slope || !offset) {
        free(job.sums), free(slope), free(offset);
        return 1;
    }
    job.x = x, job.y = y, job.mean = mean, job.scale = scale, job.shift = shift;
    job.gradient = gradient, job.other = other, job.output = output, job.masked = masked;
    if (!fixed) job.slope = slope, job.offset = offset; /* batch statistics depend on x */
    run(parallel, threads, paths[path]->sum_gradients, &job, &job.queue);
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
    if (y) run(parallel, threads, paths[path]->input_gradient, &job, &job.queue);
    free(slope), free(offset);
    return 0;
}

#endif
