/* All kernels for one instruction set, which defines LANES, ROWS, GROUPS and the operations on vectors. */

#define Vector NAME(Vector)
#define VECTORS (COLUMNS / LANES)

/* Store a result; a large one past the caches, which then need not read the memory first. */
static inline void NAME(put)(int large, float *to, Vector value) {
    if (large)
        STREAM(to, value);
    else
        STORE(to, value);
}

/* out[ROWS][COLUMNS] = a[ROWS][depth] b[depth][COLUMNS] of each group of columns; the steps are between groups. */
static inline __attribute__((always_inline)) void NAME(multiply_groups)(const int groups, const float *restrict a,
                                                                        ptrdiff_t depth, const float *restrict b,
                                                                        ptrdiff_t b_step, float *restrict out,
                                                                        ptrdiff_t out_step) {
    Vector sums[GROUPS][ROWS][VECTORS];
    const float *base[ROWS / 3]; /* three rows have one base: a scaled index reaches them */
    UNROLL for (int group = 0; group < groups; group++)
        UNROLL for (int row = 0; row < ROWS; row++)
            UNROLL for (int i = 0; i < VECTORS; i++) sums[group][row][i] = ALL(0);
    UNROLL for (int i = 0; i < ROWS / 3; i++) base[i] = a + 3 * i * depth;
    for (ptrdiff_t left = depth; left > 0; left--, b += COLUMNS) {
        Vector right[GROUPS][VECTORS];
        UNROLL for (int group = 0; group < groups; group++)
            UNROLL for (int i = 0; i < VECTORS; i++) right[group][i] = LOAD(b + group * b_step + i * LANES);
        UNROLL for (int row = 0; row < ROWS; row++) {
            Vector one = ALL(base[row / 3][row % 3 * depth]);
            UNROLL for (int group = 0; group < groups; group++)
                UNROLL for (int i = 0; i < VECTORS; i++)
                    sums[group][row][i] = FMA(one, right[group][i], sums[group][row][i]);
        }
        UNROLL for (int i = 0; i < ROWS / 3; i++) base[i]++;
    }
    UNROLL for (int group = 0; group < groups; group++)
        UNROLL for (int row = 0; row < ROWS; row++)
            UNROLL for (int i = 0; i < VECTORS; i++)
                STORE(out + group * out_step + row * COLUMNS + i * LANES, sums[group][row][i]);
}

static void NAME(multiply)(long groups, const float *a, ptrdiff_t depth, const float *b, ptrdiff_t b_step, float *out,
                           ptrdiff_t out_step) {
    if (groups == GROUPS)
        NAME(multiply_groups)(GROUPS, a, depth, b, b_step, out, out_step);
    else
        NAME(multiply_groups)(1, a, depth, b, b_step, out, out_step);
}

#define TILE 4
#define TILED(name) NAME(name##_4)
#include "kernels_winograd.h"
#undef TILE
#undef TILED
#define TILE 2
#define TILED(name) NAME(name##_2)
#include "kernels_winograd.h"

/* Weight gradient, by F(2 x 2, 3 x 3). */

/* z[TAPS][tiles][outputs] = A g A' of each tile; `step` is the distance between products. */
static void NAME(transform_gradient)(const WeightGradient *job, const Position *positions, long count,
                                     const float *zeros, float *z, ptrdiff_t step) {
    const Convolution *of = &job->of;
    for (long tile = 0; tile < count; tile++) {
        Position position = positions[tile];
        const float *pixel[4];
        for (int i = 0; i < 4; i++) {
            long row = position.row + i / 2, column = position.column + i % 2;
            int outside = row >= of->height || column >= of->width;
            long index = (position.image * of->height + row) * of->width + column;
            pixel[i] = outside ? zeros : job->gradient + index * of->outputs;
        }
        for (long channel = 0; channel < of->outputs; channel += LANES) {
            float *out = z + tile * of->outputs + channel;
            Vector g0 = LOAD(pixel[0] + channel), g1 = LOAD(pixel[1] + channel);
            Vector g2 = LOAD(pixel[2] + channel), g3 = LOAD(pixel[3] + channel);
            Vector left[4] = {g0, ADD(g0, g2), SUB(g0, g2), SUB(ALL(0), g2)};
            Vector right[4] = {g1, ADD(g1, g3), SUB(g1, g3), SUB(ALL(0), g3)};
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
static inline void NAME(accumulate)(const float *restrict v, ptrdiff_t inputs, const float *restrict z,
                                    ptrdiff_t outputs, long tiles, float *restrict sums) {
    Vector total[INPUTS][VECTORS];
    UNROLL for (int input = 0; input < INPUTS; input++)
        UNROLL for (int i = 0; i < VECTORS; i++) total[input][i] = LOAD(sums + input * outputs + i * LANES);
    for (long tile = 0; tile < tiles; tile++, v += inputs, z += outputs) {
        Vector right[VECTORS];
        UNROLL for (int i = 0; i < VECTORS; i++) right[i] = LOAD(z + i * LANES);
        UNROLL for (int input = 0; input < INPUTS; input++) {
            Vector one = ALL(v[input]);
            UNROLL for (int i = 0; i < VECTORS; i++) total[input][i] = FMA(one, right[i], total[input][i]);
        }
    }
    UNROLL for (int input = 0; input < INPUTS; input++)
        UNROLL for (int i = 0; i < VECTORS; i++) STORE(sums + input * outputs + i * LANES, total[input][i]);
}

static void NAME(sum_weight_gradient)(void *argument) {
    WeightGradient *job = argument;
    const Convolution *of = &job->of;
    long inputs = of->inputs, outputs = of->outputs, widest = inputs > outputs ? inputs : outputs;
    ptrdiff_t v_step = of->block * inputs + 16, z_step = of->block * outputs + 16;
    float *v = allocate(TAPS * v_step), *z = allocate(TAPS * z_step), *zeros = allocate(widest);
    if (v && z && zeros) {
        memset(zeros, 0, (size_t)widest * sizeof(float));
        FOR_EACH(part, &job->of.queue) {
            long blocks = (of->tiles + of->block - 1) / of->block;
            float *sums = job->sums + part * TAPS * inputs * outputs;
            memset(sums, 0, (size_t)(TAPS * inputs * outputs) * sizeof(float));
            for (long block = part * blocks / PARTS; block < (part + 1) * blocks / PARTS; block++) {
                long first = block * of->block, count = of->tiles - first;
                if (count > of->block) count = of->block;
                Position positions[LARGEST_BLOCK];
                find_positions(of, first, count, TILE, positions);
                TILED(transform)(of, positions, count, zeros, v, v_step);
                NAME(transform_gradient)(job, positions, count, zeros, z, z_step);
                for (int i = 0; i < TAPS; i++)
                    for (long input = 0; input < inputs; input += INPUTS)
                        for (long output = 0; output < outputs; output += COLUMNS)
                            NAME(accumulate)(v + i * v_step + input, inputs, z + i * z_step + output, outputs, count,
                                             sums + (i * inputs + input) * outputs + output);
            }
        }
    }
    free(v), free(z), free(zeros);
}

#undef TILE
#undef TILED

/* BatchNorm, sum, and ReLU if the floor is 0; without ReLU it is minus infinity. */

/* Mean of each channel in each block, and the sum of squared deviations from it. */
static void NAME(sum_squares_of_block)(void *argument) {
    Norm *job = argument;
    long channels = job->channels;
    FOR_EACH(block, &job->queue) {
        long pixels = pixels_of(job, block);
        const float *x = job->x + block * job->block * channels;
        double *sums = sums_of(job, block);
        for (long channel = 0; channel < channels; channel += LANES) {
            Vector even = ALL(0), odd = ALL(0), squares = ALL(0), others = ALL(0);
            long i = 0;
            for (; i + 1 < pixels; i += 2) {
                even = ADD(even, LOAD(x + i * channels + channel));
                odd = ADD(odd, LOAD(x + (i + 1) * channels + channel));
            }
            if (i < pixels) even = ADD(even, LOAD(x + i * channels + channel));
            Vector mean = DIVIDE(ADD(even, odd), ALL((float)pixels));
            for (i = 0; i + 1 < pixels; i += 2) {
                Vector one = SUB(LOAD(x + i * channels + channel), mean);
                Vector other = SUB(LOAD(x + (i + 1) * channels + channel), mean);
                squares = FMA(one, one, squares);
                others = FMA(other, other, others);
            }
            if (i < pixels) {
                Vector one = SUB(LOAD(x + i * channels + channel), mean);
                squares = FMA(one, one, squares);
            }
            NAME(store_as_double)(sums + channel, mean);
            NAME(store_as_double)(sums + channels + channel, ADD(squares, others));
        }
    }
}

/* y = max(floor, x scale + shift + shortcut) */
static void NAME(scale_shift)(void *argument) {
    const Norm job = *(Norm *)argument; /* a copy, which no store to y can change */
    const long channels = job.channels;
    const Vector floor = ALL(job.floor);
    FOR_EACH(block, &((Norm *)argument)->queue) {
        long from = block * job.block * channels, pixels = pixels_of(&job, block);
        for (long i = 0; i < pixels; i++, from += channels)
            for (long channel = 0; channel < channels; channel += LANES) {
                Vector x = FMA(LOAD(job.x + from + channel), LOAD(job.scale + channel), LOAD(job.shift + channel));
                if (job.shortcut) x = ADD(x, LOAD(job.shortcut + from + channel));
                NAME(put)(job.large, job.y + from + channel, MAX(floor, x));
            }
    }
    _mm_sfence(); /* stores past the caches are complete before other threads read them */
}

/* The gradient before the ReLU at one place. */
static inline Vector NAME(masked_gradient)(const Norm *job, long at, Vector x, Vector scale, Vector shift) {
    Vector g = LOAD(job->gradient + at);
    if (job->other) g = ADD(g, LOAD(job->other + at));
    g = NAME(where_above)(ALL(job->floor), job->output ? LOAD(job->output + at) : FMA(x, scale, shift), g);
    if (job->masked) STORE(job->masked + at, g);
    return g;
}

/* Sums over each block of the gradient g before the ReLU, and of g (x - mean). */
static void NAME(sum_gradients_of_block)(void *argument) {
    const Norm job = *(Norm *)argument;
    const long channels = job.channels;
    FOR_EACH(block, &((Norm *)argument)->queue) {
        long from = block * job.block * channels, pixels = pixels_of(&job, block);
        double *sums = sums_of(&job, block);
        for (long channel = 0; channel < channels; channel += LANES) {
            const Vector mean = LOAD(job.mean + channel), scale = LOAD(job.scale + channel);
            const Vector shift = LOAD(job.shift + channel);
            Vector sum[2] = {ALL(0), ALL(0)}, product[2] = {ALL(0), ALL(0)}; /* of even and of odd pixels */
            long at = from + channel, end = at + pixels * channels;
            for (; at + channels < end; at += 2 * channels)
                UNROLL for (int odd = 0; odd < 2; odd++) {
                    Vector x = LOAD(job.x + at + odd * channels);
                    Vector g = NAME(masked_gradient)(&job, at + odd * channels, x, scale, shift);
                    sum[odd] = ADD(sum[odd], g);
                    product[odd] = FMA(g, SUB(x, mean), product[odd]);
                }
            if (at < end) {
                Vector x = LOAD(job.x + at), g = NAME(masked_gradient)(&job, at, x, scale, shift);
                sum[0] = ADD(sum[0], g);
                product[0] = FMA(g, SUB(x, mean), product[0]);
            }
            NAME(store_as_double)(sums + channel, ADD(sum[0], sum[1]));
            NAME(store_as_double)(sums + channels + channel, ADD(product[0], product[1]));
        }
    }
}

/* y = g scale + (x slope + offset), where g is the gradient before the ReLU; without the bracket if slope is NULL. */
static void NAME(input_gradient_of_block)(void *argument) {
    const Norm job = *(Norm *)argument;
    const long channels = job.channels;
    FOR_EACH(block, &((Norm *)argument)->queue) {
        long from = block * job.block * channels, pixels = pixels_of(&job, block);
        for (long i = 0; i < pixels; i++, from += channels)
            for (long channel = 0; channel < channels; channel += LANES) {
                Vector x = LOAD(job.x + from + channel), scale = LOAD(job.scale + channel), g;
                if (job.masked) /* by sum_gradients */
                    g = LOAD(job.masked + from + channel);
                else
                    g = NAME(masked_gradient)(&job, from + channel, x, scale, LOAD(job.shift + channel));
                Vector out = MULTIPLY(g, scale);
                if (job.slope)
                    out = FMA(g, scale, FMA(x, LOAD(job.slope + channel), LOAD(job.offset + channel)));
                STORE(job.y + from + channel, out);
            }
    }
}

static const Path NAME(path) = {
    NAME(run_convolution_2),
    NAME(run_convolution_4),
    NAME(sum_weight_gradient),
    NAME(sum_squares_of_block),
    NAME(scale_shift),
    NAME(sum_gradients_of_block),
    NAME(input_gradient_of_block),
};

#undef Vector
#undef VECTORS
#undef LANES
#undef ROWS
#undef GROUPS
#undef LOAD
#undef STORE
#undef STREAM
#undef ADD
#undef SUB
#undef MULTIPLY
#undef DIVIDE
#undef FMA
#undef ALL
#undef MAX
