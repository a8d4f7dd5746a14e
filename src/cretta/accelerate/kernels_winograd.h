/* Winograd's F(TILE x TILE, 3 x 3) for one instruction set: a tile has SIDE x SIDE input pixels, TILE x TILE output
 * pixels and PRODUCTS products.
 */

#define SIDE (TILE + 2)
#define PRODUCTS (SIDE * SIDE)
#if TILE == 2
#define LARGEST_BLOCK 48 /* tiles per block, so that their products fit in the cache; a multiple of ROWS */
#else
#define LARGEST_BLOCK 24
#endif

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
static void TILED(transform)(const Convolution *job, long first, long count, const float *zeros, float *v,
                             ptrdiff_t step) {
    for (long tile = 0; tile < count; tile++) {
        Position position = position_of(job, first + tile, TILE);
        const float *pixel[PRODUCTS];
        for (int i = 0; i < PRODUCTS; i++) {
            long row = position.row + i / SIDE - 1, column = position.column + i % SIDE - 1;
            int outside = row < 0 || column < 0 || row >= job->height || column >= job->width;
            long index = (position.image * job->height + row) * job->width + column;
            pixel[i] = outside ? zeros : job->x + index * job->inputs;
        }
        float *out = v + tile * job->inputs;
        for (long channel = 0; channel < job->inputs; channel += LANES) {
            Vector half[SIDE][SIDE], line[SIDE], result[SIDE];
            for (int i = 0; i < SIDE; i++) {
                for (int j = 0; j < SIDE; j++) line[j] = LOAD(pixel[j * SIDE + i] + channel);
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

/* y[...][channel : channel + COLUMNS] = A' m A of each tile. */
static void TILED(inverse_transform)(const Convolution *job, long first, long count, long channel, const float *m,
                                     ptrdiff_t step) {
    for (long tile = 0; tile < count; tile++) {
        Position position = position_of(job, first + tile, TILE);
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
                if (across == TILE)
                    for (long j = 0; j < TILE; j++) STORE(to + j * job->outputs, ADD(bias, result[j]));
                else
                    for (long j = 0; j < across; j++) STORE(to + j * job->outputs, ADD(bias, result[j]));
            }
        }
    }
}

static void TILED(convolve)(void *argument) {
    Convolution *job = argument;
    long inputs = job->inputs;
    /* The padding avoids blocks at a distance of a power of two, which map to the same cache lines. */
    ptrdiff_t v_step = job->block * inputs + 16, m_step = job->block * COLUMNS + 16;
    float *v = allocate(PRODUCTS * v_step), *m = allocate(PRODUCTS * m_step), *zeros = allocate(inputs);
    if (v && m && zeros) {
        memset(v, 0, (size_t)(PRODUCTS * v_step) * sizeof(float));
        memset(zeros, 0, (size_t)inputs * sizeof(float));
        FOR_EACH(block, &job->queue) {
            long first = block * job->block, count = job->tiles - first;
            if (count > job->block) count = job->block;
            TILED(transform)(job, first, count, zeros, v, v_step);
            for (long channel = 0; channel < job->outputs; channel += COLUMNS) {
                const float *u = job->u + channel * PRODUCTS * inputs;
                for (int i = 0; i < PRODUCTS; i++)
                    for (long tile = 0; tile < count; tile += ROWS)
                        NAME(multiply)(v + i * v_step + tile * inputs, inputs, u + i * inputs * COLUMNS,
                                       m + i * m_step + tile * COLUMNS);
                TILED(inverse_transform)(job, first, count, channel, m, m_step);
            }
        }
    }
    free(v), free(m), free(zeros);
}

static int TILED(run_convolution)(Parallel parallel, long threads, Convolution job, long images) {
    job.tiles = images * ((job.height + TILE - 1) / TILE) * ((job.width + TILE - 1) / TILE);
    long portion = ((job.tiles + threads - 1) / threads + ROWS - 1) / ROWS * ROWS;
    job.block = portion < LARGEST_BLOCK ? portion : LARGEST_BLOCK;
    job.queue.count = (job.tiles + job.block - 1) / job.block;
    return run(parallel, threads, TILED(convolve), &job, &job.queue);
}

#undef SIDE
#undef PRODUCTS
#undef LARGEST_BLOCK
