/* Winograd's F(TILE x TILE, 3 x 3) for one instruction set: a tile has SIDE x SIDE input pixels, TILE x TILE output
 * pixels and PRODUCTS products.
 */

#define SIDE (TILE + 2)
#define PRODUCTS (SIDE * SIDE)

/* out = B' d: one dimension of the input transform. */
static inline void TILED(transform_line)(const Vector d[SIDE], Vector out[SIDE]) {
#if TILE == 2
    out[0] = SUB(d[0], d[2]);
    out[1] = ADD(d[1], d[2]);
    out[2] = SUB(d[2], d[1]);
    out[3] = SUB(d[1], d[3]);
#else
    Vector four = ALL(4), five = ALL(-5), two = ALL(2), minus_four = ALL(-4);
    Vector even = FMA(minus_four, d[2], d[4]), odd = FMA(minus_four, d[1], d[3]);
    Vector other = SUB(d[4], d[2]), twice = MULTIPLY(two, SUB(d[3], d[1]));
    out[0] = FMA(four, d[0], FMA(five, d[2], d[4]));
    out[1] = ADD(even, odd);
    out[2] = SUB(even, odd);
    out[3] = ADD(other, twice);
    out[4] = SUB(other, twice);
    out[5] = FMA(four, d[1], FMA(five, d[3], d[5]));
#endif
}

/* out = A' m: one dimension of the output transform. */
static inline void TILED(inverse_line)(const Vector m[SIDE], Vector out[TILE]) {
#if TILE == 2
    out[0] = ADD(m[0], ADD(m[1], m[2]));
    out[1] = SUB(SUB(m[1], m[2]), m[3]);
#else
    Vector sum = ADD(m[1], m[2]), difference = SUB(m[1], m[2]), far = ADD(m[3], m[4]), apart = SUB(m[3], m[4]);
    out[0] = ADD(m[0], ADD(sum, far));
    out[1] = FMA(ALL(2), apart, difference);
    out[2] = FMA(ALL(4), far, sum);
    out[3] = FMA(ALL(8), apart, ADD(difference, m[5]));
#endif
}

/* v[PRODUCTS][tiles][inputs] = B' d B of each tile; `step` is the distance between products. */
static inline __attribute__((always_inline)) void TILED(transform_tiles)(const int normalize, const Convolution *job,
                                                                         const Position *positions, long count,
                                                                         const float *zeros, float *v, ptrdiff_t step) {
    for (long tile = 0; tile < count; tile++) {
        Position position = positions[tile];
        const float *pixel[PRODUCTS], *shift[PRODUCTS]; /* outside of the image, both are 0 */
        for (int i = 0; i < PRODUCTS; i++) {
            long row = position.row + i / SIDE - 1, column = position.column + i % SIDE - 1;
            int outside = row < 0 || column < 0 || row >= job->height || column >= job->width;
            long index = (position.image * job->height + row) * job->width + column;
            pixel[i] = outside ? zeros : job->x + index * job->inputs;
            shift[i] = outside ? zeros : job->shift;
        }
        float *out = v + tile * job->inputs;
        for (long channel = 0; channel < job->inputs; channel += LANES) {
            Vector half[SIDE][SIDE], line[SIDE], result[SIDE];
            Vector zero = ALL(0), scale = normalize ? LOAD(job->scale + channel) : zero;
            for (int i = 0; i < SIDE; i++) {
                for (int j = 0; j < SIDE; j++) {
                    line[j] = LOAD(pixel[j * SIDE + i] + channel);
                    if (normalize) line[j] = MAX(zero, FMA(line[j], scale, LOAD(shift[j * SIDE + i] + channel)));
                }
                TILED(transform_line)(line, result);
                for (int j = 0; j < SIDE; j++) half[j][i] = result[j];
            }
            for (int i = 0; i < SIDE; i++) {
                TILED(transform_line)(half[i], result);
                for (int j = 0; j < SIDE; j++) STORE(out + channel + (i * SIDE + j) * step, result[j]);
            }
        }
    }
}

static __attribute__((noinline)) void TILED(transform)(const Convolution *job, const Position *positions, long count,
                                                       const float *zeros, float *v, ptrdiff_t step) {
    if (job->scale)
        TILED(transform_tiles)(1, job, positions, count, zeros, v, step);
    else
        TILED(transform_tiles)(0, job, positions, count, zeros, v, step);
}

/* y[...][channel : channel + COLUMNS] = A' m A of each tile. */
static __attribute__((noinline)) void TILED(inverse_transform)(const Convolution *job, const Position *positions,
                                                               long count, long channel, const float *m,
                                                               ptrdiff_t step) {
    for (long tile = 0; tile < count; tile++) {
        Position position = positions[tile];
        long index = (position.image * job->height + position.row) * job->width + position.column;
        float *out = job->y + index * job->outputs + channel;
        long down = job->height - position.row, across = job->width - position.column;
        if (down > TILE) down = TILE;
        if (across > TILE) across = TILE;
        for (int part = 0; part < COLUMNS; part += LANES) {
            const float *from = m + tile * COLUMNS + part;
            Vector half[TILE][SIDE], line[SIDE], result[TILE];
            Vector bias = job->bias ? LOAD(job->bias + channel + part) : ALL(0);
            for (int i = 0; i < SIDE; i++) {
                for (int j = 0; j < SIDE; j++) line[j] = LOAD(from + (j * SIDE + i) * step);
                TILED(inverse_line)(line, result);
                for (int j = 0; j < TILE; j++) half[j][i] = result[j];
            }
            for (long i = 0; i < down; i++) {
                TILED(inverse_line)(half[i], result);
                float *to = out + i * job->width * job->outputs + part;
                for (long j = 0; j < across; j++, to += job->outputs) {
                    Vector y = ADD(bias, result[j]);
                    if (job->shortcut) y = ADD(y, LOAD(job->shortcut + (to - job->y)));
                    NAME(put)(job->large, to, y);
                }
            }
        }
    }
}

static void TILED(convolve)(void *argument) {
    Convolution *job = argument;
    long inputs = job->inputs;
    /* The padding avoids blocks at a distance of a power of two, which map to the same cache lines. */
    ptrdiff_t v_step = job->block * inputs + 16, m_step = job->block * COLUMNS + 16;
    float *v = allocate(PRODUCTS * v_step), *m = allocate(GROUPS * PRODUCTS * m_step), *zeros = allocate(inputs);
    if (v && m && zeros) {
        memset(v, 0, (size_t)(PRODUCTS * v_step) * sizeof(float));
        memset(zeros, 0, (size_t)inputs * sizeof(float));
        FOR_EACH(block, &job->queue) {
            Position positions[LARGEST_BLOCK];
            long first = block * job->block, count = job->tiles - first, groups;
            if (count > job->block) count = job->block;
            find_positions(job, first, count, TILE, positions);
            TILED(transform)(job, positions, count, zeros, v, v_step);
            for (long channel = 0; channel < job->outputs; channel += groups * COLUMNS) {
                const float *u = job->u + channel * PRODUCTS * inputs;
                groups = channel + GROUPS * COLUMNS <= job->outputs ? GROUPS : 1;
                for (int i = 0; i < PRODUCTS; i++)
                    for (long tile = 0; tile < count; tile += ROWS)
                        NAME(multiply)(groups, v + i * v_step + tile * inputs, inputs, u + i * inputs * COLUMNS,
                                       PRODUCTS * inputs * COLUMNS, m + i * m_step + tile * COLUMNS, PRODUCTS * m_step);
                for (long group = 0; group < groups; group++)
                    TILED(inverse_transform)(job, positions, count, channel + group * COLUMNS,
                                             m + group * PRODUCTS * m_step, m_step);
            }
        }
    }
    _mm_sfence(); /* stores past the caches are complete before other threads read them */
    free(v), free(m), free(zeros);
}

static int TILED(run_convolution)(Parallel parallel, long threads, Convolution job, long images) {
    job.tiles = images * ((job.height + TILE - 1) / TILE) * ((job.width + TILE - 1) / TILE);
    long portion = ((job.tiles + threads - 1) / threads + ROWS - 1) / ROWS * ROWS;
    long most = TILE == 2 ? LARGEST_BLOCK : LARGEST_BLOCK / 2;
    job.block = portion < most ? portion : most;
    job.large = is_large(job.y, images * job.height * job.width * job.outputs);
    job.queue.count = (job.tiles + job.block - 1) / job.block;
    return run(parallel, threads, TILED(convolve), &job, &job.queue);
}

#undef SIDE
#undef PRODUCTS
