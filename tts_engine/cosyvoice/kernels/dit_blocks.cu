// The transformer blocks of CosyVoice3's estimator for a short chunk of one clause, in a single launch. The lines of the
// second branch follow those of the first. BLOCKS thread blocks share the outputs of each product, sixteen neighbouring
// ones each, and synchronise between the parts of a transformer block. After queries, keys and values, only the four
// blocks that share a head synchronise. Each block prefetches its next weights before it waits.
//
// Products are mma.m16n8k16 with sixteen outputs of the weight as its rows and eight lines as its columns; each warp has
// an eighth of the inputs. The weights are in memory in the order of the instruction's registers
// (dit_blocks.pack).
//
// Needs bf16.cuh, waiting_blocks.cuh and chunk_attention.cuh. Macros from the host: LAYERS, EPS (of the norms).

constexpr int WARPS = 8, THREADS = 32 * WARPS;
constexpr int BLOCKS = 64, HEADS = 16, DIM = HEADS * HEAD, INNER = 2 * DIM;
constexpr int GROUP = BLOCKS / HEADS;              // blocks that share a head: two for each row, with sixteen queries each
constexpr int ROWS = 2, TILES = 6, LINES = 8 * TILES;
constexpr int STEPS = DIM / 16 / WARPS;            // steps of sixteen inputs per warp
constexpr i64 TILE = 16 * DIM;                     // numbers in sixteen outputs of a product over DIM
constexpr i64 QKV_W = 3LL * DIM * DIM, OUT_W = (i64)DIM * DIM, UP_W = (i64)INNER * DIM;
constexpr i64 LAYER_W = QKV_W + OUT_W + 2 * UP_W;
constexpr int LAYER_V = 3 * DIM + DIM + INNER + DIM;  // biases
constexpr int OWN = LINES / (THREADS / 16);        // lines of a thread's outputs
constexpr int WARP_LINES = LINES / WARPS;          // lines normalised by a warp
constexpr int X_STRIDE = DIM + 8;                  // an odd multiple of 16 bytes, without bank conflicts
constexpr int SUM_STRIDE = 20;                     // of sixteen outputs

// Shared memory: normalised lines, or sums and weights of the last product; weights of the others; shift and scale. Or
// pages and the warps' partial results.
constexpr int X_BYTES = LINES * X_STRIDE * 2, W_AT = X_BYTES, TILE_BYTES = (int)TILE * 2;
constexpr int DOWN_AT = WARPS * LINES * SUM_STRIDE * 4;
constexpr int TABLE_AT = W_AT + 3 * TILE_BYTES;
constexpr int BUFFERS = 8, PARTS_AT = BUFFERS * PAGE_BYTES;
constexpr int NUMBERS_AT = TABLE_AT + 2 * DIM * 4;

static_assert(DOWN_AT + 2 * TILE_BYTES <= X_BYTES, "the last product's weights lie behind its sums");
static_assert(3 * WARPS * LINES * SUM_STRIDE * 4 <= X_BYTES, "sums take the place of the lines they are made of");
static_assert(PARTS_AT + WARPS * 36 * 32 * 4 <= TABLE_AT, "what is kept during attention lies behind what is not");

// load_fresh_pair for eight numbers.
__device__ __forceinline__ uint4 load_fresh(const bf16* p) {
    uint4 v;
    asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}

__device__ __forceinline__ void mma(float (&d)[4], const uint4& a, u32 b0, u32 b1) {
    const u32 registers[4] = {a.x, a.y, a.z, a.w};
    mma(d, registers, b0, b1);
}

__device__ __forceinline__ void copy(char* target, const void* source) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(target)), "l"(source) : "memory");
}

__device__ __forceinline__ void await_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Arrive; afterwards asynchronous copies may overwrite the shared memory that this block has used.
__device__ __forceinline__ void arrive_for_copies(u32* arrived) {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    arrive(arrived);
}

// -- products

// A barrier for asynchronous copies of weights, used once in each layer.
struct Weights {
    u32 barrier, at;

    __device__ __forceinline__ void init() const {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
    }

    // Start copies of T tiles of sixteen outputs, each `step` numbers after the previous one.
    template <int T>
    __device__ __forceinline__ void ask(const bf16* weight, i64 step) const {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(T * TILE_BYTES) : "memory");
#pragma unroll
        for (int i = 0; i < T; i++)
            asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                         ::"r"(at + i * TILE_BYTES), "l"(weight + i * step), "r"(TILE_BYTES), "r"(barrier) : "memory");
    }

    __device__ __forceinline__ void await(int layer) const {
        asm volatile("{\n.reg .pred there;\nAGAIN:\nmbarrier.try_wait.parity.shared::cta.b64 there, [%0], %1;\n"
                     "@there bra THERE;\nbra AGAIN;\nTHERE:\n}" ::"r"(barrier), "r"(layer & 1) : "memory");
    }
};

// A thread's part of sixteen outputs and sixteen inputs, `step` of this warp's.
__device__ __forceinline__ uint4 weight_at(const char* tiles, int tile, int step, const Place& p) {
    return *(const uint4*)(tiles + ((tile * WARPS + p.warp) * STEPS + step) * 512 + p.lane * 16);
}

template <int T>
__device__ __forceinline__ void clear(float (&d)[TILES][T][4]) {
#pragma unroll
    for (int j = 0; j < TILES; j++)
#pragma unroll
        for (int i = 0; i < T; i++) d[j][i][0] = d[j][i][1] = d[j][i][2] = d[j][i][3] = 0.0f;
}

// Multiply the normalised lines with the copied tiles.
template <int T>
__device__ __forceinline__ void product(float (&d)[TILES][T][4], const char* shared, const Place& p) {
    clear(d);
    const u32 x = shared_address(shared) + ((p.lane % 8) * X_STRIDE + p.lane / 8 * 8 + p.warp * 16 * STEPS) * 2;
#pragma unroll
    for (int s = 0; s < STEPS; s += 2) {
        uint4 a[2][T];
#pragma unroll
        for (int i = 0; i < T; i++) {
            a[0][i] = weight_at(shared + W_AT, i, s, p);
            a[1][i] = weight_at(shared + W_AT, i, s + 1, p);
        }
#pragma unroll
        for (int j = 0; j < TILES; j++) {
            u32 b[4];
            load_matrices(b, x + (8 * j * X_STRIDE + 16 * s) * 2);
#pragma unroll
            for (int i = 0; i < T; i++) mma(d[j][i], a[0][i], b[0], b[1]);
#pragma unroll
            for (int i = 0; i < T; i++) mma(d[j][i], a[1][i], b[2], b[3]);
        }
    }
}

// Multiply lines of HALVES * DIM inputs from global memory. A thread has eight neighbours of each 32 inputs, in both
// factors.
template <int HALVES>
__device__ __forceinline__ void product_from_memory(
    float (&d)[TILES][1][4], const char* weights, const bf16* lines, const Place& p) {
    constexpr int WIDTH = HALVES * DIM;
    clear(d);
    const bf16* x = lines + p.g * WIDTH + p.warp * 16 * STEPS + 8 * p.t;
    uint4 v[TILES][STEPS / 2];
#pragma unroll
    for (int s = 0; s < STEPS / 2; s++)
#pragma unroll
        for (int j = 0; j < TILES; j++) v[j][s] = load_fresh(x + 8 * j * WIDTH + 32 * s);
#pragma unroll
    for (int half = 0; half < HALVES; half++)
#pragma unroll
        for (int s = 0; s < STEPS / 2; s++) {
            const uint4 a = weight_at(weights, half, 2 * s, p), b = weight_at(weights, half, 2 * s + 1, p);
#pragma unroll
            for (int j = 0; j < TILES; j++) {
                mma(d[j][0], a, v[j][s].x, v[j][s].y);
                mma(d[j][0], b, v[j][s].z, v[j][s].w);
                if (half + 1 < HALVES) v[j][s] = load_fresh(x + 8 * j * WIDTH + (half + 1) * DIM + 32 * s);
            }
        }
}

// Write this warp's partial sums of T tiles of outputs to shared memory.
template <int T>
__device__ __forceinline__ void put(float* sums, const float (&d)[TILES][T][4], const Place& p) {
#pragma unroll
    for (int i = 0; i < T; i++)
#pragma unroll
        for (int j = 0; j < TILES; j++) {
            float* line = sums + ((i * WARPS + p.warp) * LINES + 8 * j + 2 * p.t) * SUM_STRIDE + p.g;
            line[0] = d[j][i][0];
            line[SUM_STRIDE] = d[j][i][1];
            line[8] = d[j][i][2];
            line[SUM_STRIDE + 8] = d[j][i][3];
        }
}

__device__ __forceinline__ float total(const float* sums, int tile, int line) {
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; w++) sum += sums[((tile * WARPS + w) * LINES + line) * SUM_STRIDE + threadIdx.x % 16];
    return sum;
}

// -- norms

__device__ __forceinline__ float over_warp(float x) {
#pragma unroll
    for (int other = 16; other; other /= 2) x += __shfl_xor_sync(~0u, x, other);
    return x;
}

__device__ __forceinline__ void widen(float (&y)[8], const uint4& x) {
    y[0] = low(x.x), y[1] = high(x.x), y[2] = low(x.y), y[3] = high(x.y);
    y[4] = low(x.z), y[5] = high(x.z), y[6] = low(x.w), y[7] = high(x.w);
}

// Write a norm's modulation to shared memory: shift, then 1 + scale.
__device__ __forceinline__ void put_table(char* shared, const float* shift) {
    float4* table = (float4*)(shared + TABLE_AT);
    const float4 b = __ldg((const float4*)shift + threadIdx.x);
    float4 a = __ldg((const float4*)(shift + DIM) + threadIdx.x);
    a.x += 1.0f, a.y += 1.0f, a.z += 1.0f, a.w += 1.0f;
    table[threadIdx.x] = b;
    table[DIM / 4 + threadIdx.x] = a;
}

// Normalise, scale and shift all lines into shared memory. A thread has 32 channels of a line.
__device__ __forceinline__ void put_normed(char* shared, const bf16* lines, const Place& p) {
    uint4 v[WARP_LINES][4];
    float sum[WARP_LINES], squares[WARP_LINES], y[8];
#pragma unroll
    for (int i = 0; i < WARP_LINES; i++)
#pragma unroll
        for (int c = 0; c < 4; c++) v[i][c] = load_fresh(lines + (p.warp + i * WARPS) * DIM + 256 * c + 8 * p.lane);
#pragma unroll
    for (int i = 0; i < WARP_LINES; i++) {
        sum[i] = squares[i] = 0.0f;
#pragma unroll
        for (int c = 0; c < 4; c++) {
            widen(y, v[i][c]);
#pragma unroll
            for (int e = 0; e < 8; e++) {
                sum[i] += y[e];
                squares[i] += y[e] * y[e];
            }
        }
    }
#pragma unroll
    for (int i = 0; i < WARP_LINES; i++) {
        const float mean = over_warp(sum[i]) / DIM;
        squares[i] = rsqrtf(fmaxf(over_warp(squares[i]) / DIM - mean * mean, 0.0f) + EPS);
        sum[i] = -mean * squares[i];
    }
#pragma unroll
    for (int c = 0; c < 4; c++) {
        const float* table = (const float*)(shared + TABLE_AT) + 256 * c + 8 * p.lane;
        float a[8], b[8];
#pragma unroll
        for (int e = 0; e < 8; e += 4) {
            *(float4*)(b + e) = *(const float4*)(table + e);
            *(float4*)(a + e) = *(const float4*)(table + DIM + e);
        }
#pragma unroll
        for (int i = 0; i < WARP_LINES; i++) {
            widen(y, v[i][c]);
#pragma unroll
            for (int e = 0; e < 8; e++) y[e] = (y[e] * squares[i] + sum[i]) * a[e] + b[e];
            *(uint4*)(shared + ((p.warp + i * WARPS) * X_STRIDE + 256 * c + 8 * p.lane) * 2) =
                make_uint4(pair(y[0], y[1]), pair(y[2], y[3]), pair(y[4], y[5]), pair(y[6], y[7]));
        }
    }
}

// -- attention

// Start copies of the first `count` keys and values of this head in a page. A masked key has weight 0, and 0 times a stray NaN is
// NaN, so the other values are zeros.
__device__ __forceinline__ void ask_for_page(char* shared, int page, const bf16* head_keys, i64 values_behind, int count) {
    char* buffer = shared + page % BUFFERS * PAGE_BYTES;
    const bf16* source = head_keys + (i64)((const int*)(shared + NUMBERS_AT))[page] * PAGE * DIM;
#pragma unroll
    for (int i = 0; i < 2 * KEYS * 8 / THREADS; i++) {
        const int place = i * THREADS + threadIdx.x, kind = place / (KEYS * 8), key = place / 8 % KEYS, part = place % 8;
        char* target = buffer + ((kind * KEYS + key) * HEAD_STRIDE + part * 8) * 2;
        if (key < count)
            copy(target, source + kind * values_behind + key * DIM + part * 8);
        else if (kind)
            *(uint4*)target = make_uint4(0, 0, 0, 0);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) dit_blocks(
    float* h,                               // (ROWS, n, DIM): residuals, changed in place
    const bf16* __restrict__ weights,       // LAYERS times LAYER_W
    const float* __restrict__ biases,       // LAYERS times LAYER_V
    const float* __restrict__ modulations,  // (steps, any): of each layer shift, scale, gate, shift, scale, gate
    const i64* __restrict__ step,           // (1,)
    const float* __restrict__ cosines,      // (positions, HEAD / 2)
    const float* __restrict__ sines,
    bf16* keys,                             // (LAYERS, 2, pages, PAGE, DIM)
    const i64* __restrict__ pages,          // (ROWS, pages_per_row)
    const i64* __restrict__ start,          // (ROWS,), the same for both
    const i64* __restrict__ length,         // (ROWS,), the same for both
    bf16* lines,                            // (LINES, DIM): residuals
    bf16* queries,                          // (LINES, DIM)
    bf16* mixed,                            // (LINES, DIM): attention output
    bf16* inner,                            // (LINES, INNER)
    u32* arrived,                           // (1 + HEADS, 32) of 0 before the launch
    int n, int pages_per_row, int pages_total, int modulation_stride) {
    extern __shared__ __align__(128) char shared[];
    __shared__ u64 barriers[4];
    float* sums = (float*)shared;
    const u32 x = shared_address(shared);
    const int thread = threadIdx.x, block = blockIdx.x, count = ROWS * n;
    const int head = block / GROUP, row = block % GROUP / 2, first_query = block % 2 * 16;  // of this block's attention
    const Place p{thread / 32, thread % 32, thread % 32 / 4, thread % 4, 0};
    const i64 values_behind = (i64)pages_total * PAGE * DIM;
    const int real = (int)length[0], past = (int)start[0], older = past / PAGE;
    const float* table = modulations + step[0] * modulation_stride;
    u32* arrived_head = arrived + 32 * (1 + head);
    u32 goal = 0, head_goal = 0;
    const u32 barrier = shared_address(barriers);
    const Weights qkv{barrier, x + W_AT}, up{barrier + 8, x + W_AT}, out{barrier + 16, x + W_AT + 2 * TILE_BYTES};
    const Weights down{barrier + 24, x + DOWN_AT};
    const bool asks = thread == 32;  // starts weight copies; another warp waits for other blocks
    if (asks) {
        qkv.init(), up.init(), out.init(), down.init();
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        qkv.ask<3>(weights + block * TILE, BLOCKS * TILE);
    }

    for (int i = thread; i <= older; i += THREADS)
        ((int*)(shared + NUMBERS_AT))[i] = (int)pages[row * pages_per_row + i];

    // The lines of which this thread has one output of each product into DIM. It keeps their residuals.
    const int channel = block * 16 + thread % 16;
    float own[OWN], cosine[OWN], sine[OWN];
    int kept_at[OWN];  // frame to which the keys of such a line are written; -1: none
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        const int line = thread / 16 + 16 * i, frame = line < n ? line : line - n;
        kept_at[i] = -1;
        cosine[i] = 1.0f, sine[i] = 0.0f;
        if (line < count) {
            own[i] = h[line * DIM + channel];
            lines[line * DIM + channel] = narrow(own[i]);
            if (frame < real) kept_at[i] = (int)pages[(line >= n) * pages_per_row + older] * PAGE + frame;
            if (head == 0) {
                cosine[i] = cosines[(past + frame) * (HEAD / 2) + channel / 2];
                sine[i] = sines[(past + frame) * (HEAD / 2) + channel / 2] * (channel % 2 ? 1.0f : -1.0f);
            }
        }
    }

#pragma unroll 1
    for (int layer = 0; layer < LAYERS; layer++, table += 6 * DIM) {
        const bf16* weight = weights + layer * LAYER_W + block * TILE;
        const float* bias = biases + layer * LAYER_V + channel;
        bf16* layer_keys = keys + 2 * layer * values_behind;
        const bf16* head_keys = layer_keys + head * HEAD;
        arrive_for_copies(arrived);
        put_table(shared, table);
        float three[3];
#pragma unroll
        for (int kind = 0; kind < 3; kind++) three[kind] = __ldg(bias + kind * DIM);
        await(arrived, goal += BLOCKS);

        // -- queries, keys, values
        put_normed(shared, lines, p);
        __syncthreads();
        qkv.await(layer);
        {
            float d[TILES][3][4];
            product(d, shared, p);
            __syncthreads();
            put(sums, d, p);
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < OWN; i++) {
            const int line = thread / 16 + 16 * i;
            float y[3];
#pragma unroll
            for (int kind = 0; kind < 3; kind++) y[kind] = total(sums, kind, line) + three[kind];
            if (head == 0)
#pragma unroll
                for (int kind = 0; kind < 2; kind++)
                    y[kind] = y[kind] * cosine[i] + __shfl_xor_sync(~0u, y[kind], 1) * sine[i];
            if (line < count) queries[line * DIM + channel] = narrow(y[0]);
            if (kept_at[i] >= 0) {
                bf16* target = layer_keys + (i64)kept_at[i] * DIM + channel;
                target[0] = narrow(y[1]);
                target[values_behind] = narrow(y[2]);
            }
        }
        arrive_for_copies(arrived_head);
        for (int page = 0; page < min(older, BUFFERS); page++) ask_for_page(shared, page, head_keys, values_behind, PAGE);
        await(arrived_head, head_goal += GROUP);

        // -- attention: sixteen queries of a row; each warp takes every eighth page
        Attended y = {};
        y.top[0] = y.top[1] = -1e30f;
        if (older < BUFFERS) ask_for_page(shared, older, head_keys, values_behind, real);
        {
            u32 q[4][4];
            const bf16* query = queries + row * n * DIM + head * HEAD + 2 * p.t;
            const int upper = min(first_query + p.g, n - 1) * DIM, lower = min(first_query + p.g + 8, n - 1) * DIM;
#pragma unroll
            for (int s = 0; s < 4; s++)
#pragma unroll
                for (int e = 0; e < 4; e++) q[s][e] = load_fresh_pair(query + (e % 2 ? lower : upper) + 16 * s + 8 * (e / 2));
            for (int first = 0; first <= older; first += WARPS) {
                await_copies();
                __syncthreads();
                const int page = first + p.warp;
                const u32 k = x + p.warp * PAGE_BYTES;
                if (page <= older) attend<PAGE_TILES>(y, q, k, k + PAGE_BYTES / 2, page < older ? PAGE : real, p);
                if (first + WARPS <= older) {
                    __syncthreads();
                    for (int next = first + WARPS; next < min(first + 2 * WARPS, older + 1); next++)
                        ask_for_page(shared, next, head_keys, values_behind, next < older ? PAGE : real);
                }
            }
        }
#pragma unroll
        for (int r = 0; r < 2; r++) {
            y.sum[r] += __shfl_xor_sync(~0u, y.sum[r], 1);
            y.sum[r] += __shfl_xor_sync(~0u, y.sum[r], 2);
        }
        // A warp's partial result: 32 numbers per thread, then the maxima and sums of its two lines.
        float* parts = (float*)(shared + PARTS_AT) + p.lane;
#pragma unroll
        for (int i = 0; i < 32; i++) parts[(p.warp * 36 + i) * 32] = y.mix[i / 4][i % 4];
#pragma unroll
        for (int r = 0; r < 2; r++) {
            parts[(p.warp * 36 + 32 + r) * 32] = y.top[r];
            parts[(p.warp * 36 + 34 + r) * 32] = y.sum[r];
        }
        __syncthreads();
        // Each warp adds eight channels of all partial results.
#pragma unroll
        for (int r = 0; r < 2; r++) {
            float top = -1e30f, sum = 0.0f, v[2] = {0.0f, 0.0f};
#pragma unroll
            for (int w = 0; w < WARPS; w++) top = fmaxf(top, parts[(w * 36 + 32 + r) * 32]);
#pragma unroll
            for (int w = 0; w < WARPS; w++) {
                const float* part = parts + w * 36 * 32;
                const float fade = exp2_(part[32 * (32 + r)] - top);
                sum += part[32 * (34 + r)] * fade;
                v[0] += part[32 * (4 * p.warp + 2 * r)] * fade;
                v[1] += part[32 * (4 * p.warp + 2 * r + 1)] * fade;
            }
            const int frame = first_query + 8 * r + p.g;
            const float scale = 1.0f / fmaxf(sum, 1e-30f);
            if (frame < n)
                *(u32*)(mixed + (row * n + frame) * DIM + head * HEAD + 8 * p.warp + 2 * p.t) =
                    pair(v[0] * scale, v[1] * scale);
        }
        arrive_for_copies(arrived);
        if (asks) {
            out.ask<1>(weight + QKV_W, 0);
            up.ask<2>(weight + QKV_W + OUT_W, BLOCKS * TILE);
        }
        const float out_gate = __ldg(table + 2 * DIM + channel), out_bias = __ldg(bias + 3 * DIM);
        put_table(shared, table + 3 * DIM);
        await(arrived, goal += BLOCKS);

        // -- attention's output projection
        {
            float d[TILES][1][4];
            out.await(layer);
            product_from_memory<1>(d, shared + W_AT + 2 * TILE_BYTES, mixed, p);
            put(sums, d, p);
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < OWN; i++)
            if (const int line = thread / 16 + 16 * i; line < count) {
                own[i] += out_gate * (total(sums, 0, line) + out_bias);
                lines[line * DIM + channel] = narrow(own[i]);
            }
        arrive_for_copies(arrived);
        const float up_bias[2] = {__ldg(bias + 4 * DIM), __ldg(bias + 5 * DIM)};
        await(arrived, goal += BLOCKS);

        // -- feed-forward
        put_normed(shared, lines, p);
        __syncthreads();
        up.await(layer);
        {
            float d[TILES][2][4];
            product(d, shared, p);
            __syncthreads();
            if (asks && layer + 1 < LAYERS) qkv.ask<3>(weight + LAYER_W, BLOCKS * TILE);
            put(sums, d, p);
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < OWN; i++)
            if (const int line = thread / 16 + 16 * i; line < count) {
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    // gelu(x) = x sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3))
                    const float a = total(sums, half, line) + up_bias[half];
                    const float v = __fdividef(a, 1.0f + exp2_(-2.302208198f * (a + 0.044715f * a * a * a)));
                    inner[line * INNER + half * DIM + channel] = narrow(v);
                }
            }
        arrive_for_copies(arrived);
        if (asks) down.ask<2>(weight + block * TILE + QKV_W + OUT_W + UP_W, TILE);
        const float down_gate = __ldg(table + 5 * DIM + channel), down_bias = __ldg(bias + 4 * DIM + INNER);
        await(arrived, goal += BLOCKS);
        {
            float d[TILES][1][4];
            down.await(layer);
            product_from_memory<2>(d, shared + DOWN_AT, inner, p);
            put(sums, d, p);
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < OWN; i++)
            if (const int line = thread / 16 + 16 * i; line < count) {
                own[i] += down_gate * (total(sums, 0, line) + down_bias);
                lines[line * DIM + channel] = narrow(own[i]);
            }
    }
#pragma unroll
    for (int i = 0; i < OWN; i++)
        if (const int line = thread / 16 + 16 * i; line < count) h[line * DIM + channel] = own[i];
}
