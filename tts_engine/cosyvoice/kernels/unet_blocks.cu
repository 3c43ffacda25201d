// Stages of CosyVoice2's U-Net for one chunk of each row, in a single launch: a stage is a residual block of two
// convolutions, which may be left out, and BLOCKS transformer blocks. A cluster of CTAS thread blocks
// computes one row for the whole launch. Each block computes one head and an equal share of all other outputs. Partial
// sums are sent to the shared memory of the block that owns the line, which adds and normalises them and sends the line
// to all blocks.
//
// Products are mma.m16n8k16 with sixteen lines as its rows and eight outputs as its columns. The weights are in memory
// in the order of the instruction's registers (unet_blocks.pack), and are loaded while a block waits for others.
//
// Needs bf16.cuh and chunk_attention.cuh. Macros from the host: TILES (of sixteen lines), BLOCKS (transformer blocks of a
// stage), EPS (of the norms).

constexpr int WARPS = 8, CTAS = 8;
constexpr int DIM = 256, INNER = 1024, WIDTH = CTAS * HEAD;
constexpr int PAST = 2;                            // earlier frames that a convolution needs
constexpr int LINES = 16 * TILES, OWN = LINES / CTAS;
constexpr int OWN_TILES = 2 * TILES < PAGE_TILES ? 2 * TILES : PAGE_TILES;

// Rows of shared memory are odd multiples of 16 bytes, to avoid bank conflicts.
constexpr int X_STRIDE = DIM + 8, INNER_STRIDE = INNER / CTAS + 8;
constexpr int X_BYTES = (PAST + LINES) * X_STRIDE * 2;
constexpr int SENT_BYTES = CTAS * OWN * DIM * 2;   // each block's partial sums of each line
constexpr int QKV_BYTES = 3 * LINES * HEAD_STRIDE * 2;
constexpr int GROUPS = 2, BUFFERS = 2;             // groups of warps, each with every second page; pages in flight per group
constexpr int QKV_AT = X_BYTES + SENT_BYTES, PAGES_AT = QKV_AT + QKV_BYTES;
constexpr int NUMBERS_AT = PAGES_AT + GROUPS * BUFFERS * PAGE_BYTES;

// Numbers in the packed weights of one block of threads.
constexpr int QKV_W = 3 * HEAD * DIM, OUT_W = DIM * HEAD, UP_W = INNER / CTAS * DIM, DOWN_W = DIM * INNER / CTAS;
constexpr i64 BLOCK_W = QKV_W + OUT_W + UP_W + DOWN_W;
constexpr int CONV_W = DIM / CTAS * 3 * DIM, BESIDE_W = DIM / CTAS * DIM;
constexpr i64 STAGE_W = 2 * CONV_W + BESIDE_W;
// Numbers in the biases and norms of a transformer block, and of a residual block.
constexpr int BLOCK_V = 6 * DIM + INNER, STAGE_V = 7 * DIM;

static_assert(INNER_STRIDE <= 3 * HEAD_STRIDE, "the inner lines take the place of queries, keys and values");
static_assert(2 * 32 * 36 * 4 <= PAGE_BYTES / 2, "what two warps pass on takes the place of a page's keys");

// A split barrier of the cluster. After await, all blocks see what was sent before arrive.
__device__ __forceinline__ void arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ __forceinline__ void await_all() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

__device__ __forceinline__ u32 at_block(u32 address, u32 block) {
    u32 there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(block));
    return there;
}

__device__ __forceinline__ void send(u32 there, uint4 v) {
    asm volatile("st.shared::cluster.v4.u32 [%0], {%1, %2, %3, %4};"
                 :: "r"(there), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

__device__ __forceinline__ void send(u32 there, u32 v) {
    asm volatile("st.shared::cluster.u32 [%0], %1;" :: "r"(there), "r"(v) : "memory");
}

// -- products

template <int N, int STEPS>
__device__ __forceinline__ void load_tiles(uint4 (&w)[STEPS][N], const bf16* packed, int first, const Place& p) {
#pragma unroll
    for (int s = 0; s < STEPS; s++)
#pragma unroll
        for (int j = 0; j < N; j++) w[s][j] = load_weight(packed + (((first + j) * STEPS + s) * 32 + p.lane) * 8);
}

template <int M, int N>
__device__ __forceinline__ void clear(float (&d)[M][N][4]) {
#pragma unroll
    for (int i = 0; i < M; i++)
#pragma unroll
        for (int j = 0; j < N; j++) d[i][j][0] = d[i][j][1] = d[i][j][2] = d[i][j][3] = 0.0f;
}

// Where this thread reads the matrices of sixteen lines and sixteen inputs; x: first line and input.
__device__ __forceinline__ u32 line_address(u32 x, int stride, const Place& p) {
    return x + ((p.lane % 16) * stride + p.lane / 16 * 8) * 2;
}

// Add x @ w to d: M tiles of lines, the first at x and each STEP tiles after the previous one.
template <int M, int N, int STEPS, int STEP = 1>
__device__ __forceinline__ void product(
    float (&d)[M][N][4], const uint4 (&w)[STEPS][N], u32 x, int stride, int tiles = M) {
#pragma unroll
    for (int s = 0; s < STEPS; s++)
#pragma unroll
        for (int i = 0; i < M; i++) {
            if (i < tiles) {
                u32 a[4], b[4];
                load_matrices(a, x + (16 * STEP * i * stride + 32 * s) * 2);
                load_matrices(b, x + (16 * STEP * i * stride + 32 * s + 16) * 2);
#pragma unroll
                for (int j = 0; j < N; j++) {
                    mma(d[i][j], a, w[s][j].x, w[s][j].y);
                    mma(d[i][j], b, w[s][j].z, w[s][j].w);
                }
            }
        }
}

// Send this block's partial sums of all lines to the blocks that own the lines. A thread has eight neighbouring outputs of the
// 32 of its warp (unet_blocks.neighbours).
__device__ __forceinline__ void send_parts(u32 sent, const float (&d)[TILES][4][4], int n, const Place& p) {
#pragma unroll
    for (int i = 0; i < TILES; i++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int line = 16 * i + 8 * half + p.g, e = 2 * half;
            const u32 here = sent + ((p.rank * OWN + line % OWN) * DIM + 32 * p.warp + 8 * p.t) * 2;
            if (line < n)
                send(at_block(here, line / OWN), make_uint4(pair(d[i][0][e], d[i][0][e + 1]), pair(d[i][1][e], d[i][1][e + 1]),
                                                        pair(d[i][2][e], d[i][2][e + 1]), pair(d[i][3][e], d[i][3][e + 1])));
        }
}

// -- lines: each of the first OWN warps owns one, and its threads eight channels each

struct Eight { float v[8]; };

__device__ __forceinline__ Eight load_eight(const float* p, const Place& place) {
    Eight x;
    *(float4*)x.v = __ldg((const float4*)(p + 8 * place.lane));
    *(float4*)(x.v + 4) = __ldg((const float4*)(p + 8 * place.lane + 4));
    return x;
}

__device__ __forceinline__ Eight wide(uint4 x) {
    return {low(x.x), high(x.x), low(x.y), high(x.y), low(x.z), high(x.z), low(x.w), high(x.w)};
}

__device__ __forceinline__ uint4 narrow(const Eight& x) {
    return make_uint4(pair(x.v[0], x.v[1]), pair(x.v[2], x.v[3]), pair(x.v[4], x.v[5]), pair(x.v[6], x.v[7]));
}

__device__ __forceinline__ float over_warp(float x) {
#pragma unroll
    for (int other = 16; other; other /= 2) x += __shfl_xor_sync(~0u, x, other);
    return x;
}

__device__ __forceinline__ Eight normed(const Eight& x, const Eight& weight, const Eight& bias) {
    Eight y;
    float sum = 0.0f, squares = 0.0f;
#pragma unroll
    for (int e = 0; e < 8; e++) sum += x.v[e];
    const float mean = over_warp(sum) / DIM;
#pragma unroll
    for (int e = 0; e < 8; e++) {
        y.v[e] = x.v[e] - mean;
        squares += y.v[e] * y.v[e];
    }
    const float scale = rsqrtf(over_warp(squares) / DIM + EPS);
#pragma unroll
    for (int e = 0; e < 8; e++) y.v[e] = y.v[e] * scale * weight.v[e] + bias.v[e];
    return y;
}

// mish(x) = x tanh(softplus(x)), with e = exp(x): x (e^2 + 2e) / (e^2 + 2e + 2)
__device__ __forceinline__ void mish(Eight& x) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const float e = exp2_(fminf(x.v[i], 20.0f) * 1.4426950408889634f), f = e * (e + 2.0f);
        x.v[i] *= __fdividef(f, f + 2.0f);
    }
}

__device__ __forceinline__ void add(Eight& x, const Eight& y) {
#pragma unroll
    for (int e = 0; e < 8; e++) x.v[e] += y.v[e];
}

// Add all blocks' partial sums of the line that this warp owns.
__device__ __forceinline__ void add_parts(Eight& h, const char* sent, const Place& p) {
#pragma unroll
    for (int source = 0; source < CTAS; source++)
        add(h, wide(*(const uint4*)(sent + ((source * OWN + p.warp) * DIM + 8 * p.lane) * 2)));
}

// Send a line to all blocks of the cluster.
__device__ __forceinline__ void give(u32 x, const Eight& line, const Place& p) {
    const u32 here = x + ((PAST + p.rank * OWN + p.warp) * X_STRIDE + 8 * p.lane) * 2;
    const uint4 packed = narrow(line);
#pragma unroll
    for (int block = 0; block < CTAS; block++) send(at_block(here, block), packed);
}

// -- attention

// Start copies of the keys and values of this head in a page, with the 128 threads of a group; always commit.
__device__ __forceinline__ void ask_for_page(
    u32 buffer, const bf16* keys, i64 values_behind, const int* numbers, int page, int older, int thread) {
    if (page < older) {
        const bf16* source = keys + (i64)numbers[page] * PAGE * WIDTH;
        for (int i = thread; i < 2 * PAGE * 8; i += 128) {
            const int kind = i / (PAGE * 8), key = i / 8 % PAGE, part = i % 8;
            const u32 target = buffer + ((kind * KEYS + key) * HEAD_STRIDE + part * 8) * 2;
            const bf16* from = source + kind * values_behind + key * WIDTH + part * 8;
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(target), "l"(from) : "memory");
        }
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
}

__device__ __forceinline__ void group_barrier(int group) {
    asm volatile("bar.sync %0, 128;" :: "r"(group + 1) : "memory");
}

extern "C" __global__ void __cluster_dims__(CTAS, 1, 1) __launch_bounds__(32 * WARPS, 1) unet_blocks(
    float* h,                          // (rows, n, DIM), fp32, changed in place
    const bf16* __restrict__ weights,  // transformer blocks, from the first stage on: (stages * BLOCKS, CTAS, BLOCK_W)
    const float* __restrict__ values,  // (stages * BLOCKS, BLOCK_V): norm 1, out bias, norm 2, down bias, up bias
    const bf16* __restrict__ conv_weights,  // (stages, CTAS, STAGE_W)
    const float* __restrict__ conv_values,  // (stages, STAGE_V): bias and norm of both, bias of the 1x1 one
    const float* __restrict__ shifts,  // time shifts, from the first stage on: (rows, any), DIM for each stage
    bf16* keys,                        // of the first layer: (layers, 2, pages, PAGE, WIDTH)
    bf16* tails,                       // of the first convolution: (convolutions, slots, PAST, DIM)
    const i64* __restrict__ pages,     // (rows, pages_per_row)
    const i64* __restrict__ slots,     // (rows,)
    const i64* __restrict__ start,     // (rows,)
    const i64* __restrict__ length,    // (rows,)
    int n, int stages, int convolves, int pages_per_row, int pages_total, int slots_total, int shift_stride) {
    extern __shared__ __align__(128) char shared[];
    Place p;
    p.warp = threadIdx.x / 32;
    p.lane = threadIdx.x % 32;
    p.g = p.lane / 4;
    p.t = p.lane % 4;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(p.rank));
    const int thread = threadIdx.x;
    const i64 row = blockIdx.x / CTAS;
    const u32 x = shared_address(shared), sent = x + X_BYTES, qkv = x + QKV_AT;
    const char* sent_here = shared + X_BYTES;
    int* numbers = (int*)(shared + NUMBERS_AT);
    const u32 from_first = line_address(x, X_STRIDE, p);  // the first frame that a convolution reads
    const u32 from_now = from_first + PAST * X_STRIDE * 2;
    const int real = (int)length[row], older = (int)start[row] / PAGE;
    const int own_line = p.rank * OWN + p.warp;
    const bool owner = p.warp < OWN && own_line < n;
    const int group = p.warp / 4, in_group = thread % 128, tile = p.warp % 4;
    const u32 buffers = x + PAGES_AT + group * BUFFERS * PAGE_BYTES;
    const i64 values_behind = (i64)pages_total * PAGE * WIDTH;

    for (int i = thread; i < older; i += 32 * WARPS) numbers[i] = (int)pages[row * pages_per_row + i];
    const int own_page = (int)pages[row * pages_per_row + older];
    // A masked key has weight 0, and 0 times a stray NaN is NaN.
    for (int i = thread; i < NUMBERS_AT / 16; i += 32 * WARPS) *(uint4*)(shared + 16 * i) = make_uint4(0, 0, 0, 0);

    Eight own = {};
    if (owner) own = load_eight(h + (row * n + own_line) * DIM, p);
    arrive();  // all blocks of the cluster have started after this barrier
    await_all();

    // Weights of the next block's norm, prefetched.
    Eight scale, bias;
    for (int stage = 0; stage < stages; stage++) {
        if (convolves) {
            const bf16* conv_weight = conv_weights + ((i64)stage * CTAS + p.rank) * STAGE_W;
            const float* value = conv_values + stage * STAGE_V;
            const int j = p.warp % 4, half = p.warp / 4, tiles = (TILES - half + 1) / 2;
            Eight beside = {};
#pragma unroll 1
            for (int number = 0; number < 2; number++) {
                bf16* tail = tails + (((i64)stage * 2 + number) * slots_total + slots[row]) * PAST * DIM;
                if (owner && number == 0) give(x, own, p);
                if (thread < PAST * DIM / 8)
                    *(uint4*)(shared + (thread / 32 * X_STRIDE + thread % 32 * 8) * 2) = *(const uint4*)(tail + thread * 8);
                arrive();
                uint4 w[8][1];
                load_tiles(w, conv_weight, 3 * j, p);
                await_all();
                float d[2][1][4], one[2][1][4];
                clear(d);
                clear(one);
#pragma unroll
                for (int tap = 0; tap < 3; tap++) {
                    uint4 next[8][1];
                    if (tap < 2)
                        load_tiles(next, conv_weight, 3 * j + tap + 1, p);
                    else if (number == 0)
                        load_tiles(next, conv_weight + CONV_W, j, p);
                    product<2, 1, 8, 2>(d, w, from_first + (16 * half + tap) * X_STRIDE * 2, X_STRIDE, tiles);
                    if (tap == 2 && number == 0)
                        product<2, 1, 8, 2>(one, next, from_now + 16 * half * X_STRIDE * 2, X_STRIDE, tiles);
                    if (tap < 2)
#pragma unroll
                        for (int s = 0; s < 8; s++) w[s][0] = next[s][0];
                }
                const int column = 32 * p.rank + 8 * j + 2 * p.t;
#pragma unroll
                for (int i = 0; i < 2; i++)
#pragma unroll
                    for (int lower = 0; lower < 2; lower++)
                        if (const int line = 16 * (half + 2 * i) + 8 * lower + p.g; i < tiles && line < n) {
                            const int e = 2 * lower;
                            const u32 there = at_block(sent + (line % OWN * 2 * DIM + column) * 2, line / OWN);
                            send(there, pair(d[i][0][e], d[i][0][e + 1]));
                            if (number == 0) send(there + DIM * 2, pair(one[i][0][e], one[i][0][e + 1]));
                        }
                // The last frames before `real`, partly from the old tail if the feed is short. All threads have read the tail.
                uint4 last = make_uint4(0, 0, 0, 0);
                const bool keeps = p.rank == 0 && thread < PAST * DIM / 8;
                if (keeps) last = *(const uint4*)(shared + ((real + thread / 32) * X_STRIDE + thread % 32 * 8) * 2);
                arrive();
                const Eight conv_bias = load_eight(value, p), shift = load_eight(shifts + row * shift_stride + stage * DIM, p);
                scale = load_eight(value + DIM, p);
                bias = load_eight(value + 2 * DIM, p);
                await_all();
                if (keeps) *(uint4*)(tail + thread * 8) = last;
                if (owner) {
                    Eight y = wide(*(const uint4*)(sent_here + (p.warp * 2 * DIM + 8 * p.lane) * 2));
                    add(y, conv_bias);
                    y = normed(y, scale, bias);
                    mish(y);
                    if (number == 0) {
                        beside = wide(*(const uint4*)(sent_here + ((p.warp * 2 + 1) * DIM + 8 * p.lane) * 2));
                        add(beside, load_eight(value + 6 * DIM, p));
                        add(y, shift);
                        give(x, y, p);
                    } else {
                        own = y;
                        add(own, beside);
                    }
                }
                conv_weight += CONV_W + BESIDE_W;
                value += 3 * DIM;
            }
        }

        scale = load_eight(values + stage * BLOCKS * BLOCK_V, p);
        bias = load_eight(values + stage * BLOCKS * BLOCK_V + DIM, p);
#pragma unroll 1
        for (int block = stage * BLOCKS; block < (stage + 1) * BLOCKS; block++) {
            const bf16* weight = weights + ((i64)block * CTAS + p.rank) * BLOCK_W;
            const float* value = values + block * BLOCK_V;
            bf16* layer = keys + 2 * block * values_behind + p.rank * HEAD;
            ask_for_page(buffers, layer, values_behind, numbers, group, older, in_group);
            ask_for_page(buffers + PAGE_BYTES, layer, values_behind, numbers, group + GROUPS, older, in_group);

            // -- queries, keys, values
            if (owner) give(x, normed(own, scale, bias), p);
            arrive();
            {
                uint4 w[8][3];
                load_tiles(w, weight, 3 * p.warp, p);
                await_all();
                float d[TILES][3][4];
                clear(d);
                product<TILES, 3, 8>(d, w, from_now, X_STRIDE);
#pragma unroll
                for (int j = 0; j < 3; j++) {
                    const int number = 3 * p.warp + j;
                    bf16* target = (bf16*)(shared + QKV_AT) + number / 8 * LINES * HEAD_STRIDE + number % 8 * 8 + 2 * p.t;
#pragma unroll
                    for (int i = 0; i < TILES; i++) {
                        *(u32*)(target + (16 * i + p.g) * HEAD_STRIDE) = pair(d[i][j][0], d[i][j][1]);
                        *(u32*)(target + (16 * i + p.g + 8) * HEAD_STRIDE) = pair(d[i][j][2], d[i][j][3]);
                    }
                }
            }
            __syncthreads();
            for (int i = thread; i < real * 8; i += 32 * WARPS) {
                const int frame = i / 8, part = i % 8;
                bf16* target = layer + ((i64)own_page * PAGE + frame) * WIDTH + part * 8;
                const char* source = shared + QKV_AT + ((LINES + frame) * HEAD_STRIDE + part * 8) * 2;
                *(uint4*)target = *(const uint4*)source;
                *(uint4*)(target + values_behind) = *(const uint4*)(source + LINES * HEAD_STRIDE * 2);
            }

            // -- attention: four warps with sixteen queries each take every second page, the other four the rest
            Attended y = {};
            y.top[0] = y.top[1] = -1e30f;
            u32 q[4][4];
            if (tile < TILES)
#pragma unroll
                for (int s = 0; s < 4; s++)
                    load_matrices(q[s], line_address(qkv, HEAD_STRIDE, p) + (16 * tile * HEAD_STRIDE + 16 * s) * 2);
            if (tile < TILES && older % GROUPS == group)
                attend<OWN_TILES>(y, q, qkv + LINES * HEAD_STRIDE * 2, qkv + 2 * LINES * HEAD_STRIDE * 2, real, p);
            for (int page = group, buffer = 0; page < older; page += GROUPS, buffer = 1 - buffer) {
                asm volatile("cp.async.wait_group 1;" ::: "memory");
                group_barrier(group);
                const u32 k = buffers + buffer * PAGE_BYTES;
                if (tile < TILES) attend<PAGE_TILES>(y, q, k, k + PAGE_BYTES / 2, PAGE, p);
                group_barrier(group);
                ask_for_page(k, layer, values_behind, numbers, page + GROUPS * BUFFERS, older, in_group);
            }
            asm volatile("cp.async.wait_group 0;" ::: "memory");
#pragma unroll
            for (int r = 0; r < 2; r++) {
                y.sum[r] += __shfl_xor_sync(~0u, y.sum[r], 1);
                y.sum[r] += __shfl_xor_sync(~0u, y.sum[r], 2);
            }
            // The first group adds the second group's result, which overwrites keys that have been read.
            float* other = (float*)(shared + PAGES_AT + (BUFFERS + tile / 2) * PAGE_BYTES) + tile % 2 * 32 * 36 + p.lane;
            if (group == 1 && tile < TILES) {
#pragma unroll
                for (int i = 0; i < 32; i++) other[32 * i] = y.mix[i / 4][i % 4];
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    other[32 * (32 + r)] = y.top[r];
                    other[32 * (34 + r)] = y.sum[r];
                }
            }
            uint4 out_w[2][4];
            load_tiles(out_w, weight + QKV_W, 4 * p.warp, p);
            __syncthreads();
            if (group == 0 && tile < TILES) {
                float mine[2], theirs[2];
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    const float top = other[32 * (32 + r)], most = fmaxf(top, y.top[r]);
                    mine[r] = exp2_(y.top[r] - most);
                    theirs[r] = exp2_(top - most);
                    const float sum = y.sum[r] * mine[r] + other[32 * (34 + r)] * theirs[r];
                    mine[r] /= fmaxf(sum, 1e-30f);
                    theirs[r] /= fmaxf(sum, 1e-30f);
                }
                // Overwrites the queries, which these warps have in registers.
                bf16* target = (bf16*)(shared + QKV_AT) + (16 * tile + p.g) * HEAD_STRIDE + 2 * p.t;
#pragma unroll
                for (int c = 0; c < 8; c++) {
                    float v[4];
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        v[e] = y.mix[c][e] * mine[e / 2] + other[32 * (4 * c + e)] * theirs[e / 2];
                    *(u32*)(target + 8 * c) = pair(v[0], v[1]);
                    *(u32*)(target + 8 * HEAD_STRIDE + 8 * c) = pair(v[2], v[3]);
                }
            }
            __syncthreads();
            {
                float d[TILES][4][4];
                clear(d);
                product<TILES, 4, 2>(d, out_w, line_address(qkv, HEAD_STRIDE, p), HEAD_STRIDE);
                send_parts(sent, d, n, p);
            }
            arrive();
            uint4 up_w[8][2];
            load_tiles(up_w, weight + QKV_W + OUT_W, 2 * p.warp, p);
            const Eight out_bias = load_eight(value + 2 * DIM, p);
            scale = load_eight(value + 3 * DIM, p);
            bias = load_eight(value + 4 * DIM, p);
            await_all();

            // -- feed-forward
            if (owner) {
                add_parts(own, sent_here, p);
                add(own, out_bias);
                give(x, normed(own, scale, bias), p);
            }
            arrive();
            uint4 down_w[4][4];
            load_tiles(down_w, weight + QKV_W + OUT_W + UP_W, 4 * p.warp, p);
            await_all();
            {
                float d[TILES][2][4];
                clear(d);
                product<TILES, 2, 8>(d, up_w, from_now, X_STRIDE);
#pragma unroll
                for (int j = 0; j < 2; j++) {
                    const int column = 16 * p.warp + 8 * j + 2 * p.t;
                    const float2 bias = __ldg((const float2*)(value + 6 * DIM + p.rank * (INNER / CTAS) + column));
                    bf16* target = (bf16*)(shared + QKV_AT) + column;
#pragma unroll
                    for (int i = 0; i < TILES; i++) {
                        float v[4];
#pragma unroll
                        for (int e = 0; e < 4; e++) {
                            // gelu(x) = x sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3))
                            const float a = d[i][j][e] + (e % 2 ? bias.y : bias.x);
                            v[e] = __fdividef(a, 1.0f + exp2_(-2.302208198f * (a + 0.044715f * a * a * a)));
                        }
                        *(u32*)(target + (16 * i + p.g) * INNER_STRIDE) = pair(v[0], v[1]);
                        *(u32*)(target + (16 * i + p.g + 8) * INNER_STRIDE) = pair(v[2], v[3]);
                    }
                }
            }
            __syncthreads();
            {
                float d[TILES][4][4];
                clear(d);
                product<TILES, 4, 4>(d, down_w, line_address(qkv, INNER_STRIDE, p), INNER_STRIDE);
                send_parts(sent, d, n, p);
            }
            arrive();
            const Eight down_bias = load_eight(value + 5 * DIM, p);
            if (block + 1 < (stage + 1) * BLOCKS) {
                scale = load_eight(value + BLOCK_V, p);
                bias = load_eight(value + BLOCK_V + DIM, p);
            }
            await_all();
            if (owner) {
                add_parts(own, sent_here, p);
                add(own, down_bias);
            }
        }
    }
    if (owner) {
        float4* target = (float4*)(h + (row * n + own_line) * DIM + 8 * p.lane);
        target[0] = *(const float4*)own.v;
        target[1] = *(const float4*)(own.v + 4);
    }
}
