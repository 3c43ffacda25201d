// One decode step of the language model for up to ROWS sequences in a single launch, from the embedding to the logits.
// Blocks of 256 threads share the outputs of each product and synchronise between the parts of a layer. Each block
// prefetches its next weights before it waits.
//
// Products are mma.m16n8k16 with sixteen outputs of the weight as its rows and eight sequences as its columns. The
// weights are in memory in the order of the instruction's registers (decode_step.pack). A thread has four neighbouring
// inputs of each sixteen, so activations stay row-major.
//
// Needs bf16.cuh and waiting_blocks.cuh. Macros from the host: ROWS, HIDDEN, INTER, HEADS, KV_HEADS, LAYERS, VOCAB
// (padded to 16), EPS (of the norms).

#define NOTHING __int_as_float(0xff800000)  // minus infinity

constexpr int WARPS = 8;
constexpr int HEAD = 64;
constexpr int NT = ROWS / 8;                       // tiles of eight sequences
constexpr int PER = HEADS / KV_HEADS;              // query heads per key head
constexpr int QKV = (HEADS + 2 * KV_HEADS) * HEAD;
constexpr int K_HIDDEN = HIDDEN / 16 / WARPS;      // steps of sixteen inputs per warp
constexpr int K_INTER = INTER / 16 / WARPS;
constexpr i64 TILE = 16 * HIDDEN;                  // numbers in sixteen outputs of a product over HIDDEN
constexpr i64 LAYER = (i64)QKV * HIDDEN + (i64)HIDDEN * HIDDEN + 3LL * INTER * HIDDEN;
constexpr int STRIDE = 20;                         // stride of sixteen outputs in shared memory, without bank conflicts
constexpr int PARTIAL = WARPS * ROWS * STRIDE;
constexpr int FOR_PRODUCTS = 2 * PARTIAL + WARPS * ROWS, FOR_ATTENTION = 1216 + WARPS * PER * HEAD;
constexpr int SHARED = FOR_PRODUCTS > FOR_ATTENTION ? FOR_PRODUCTS : FOR_ATTENTION;
constexpr int OWN = ROWS < 16 ? 1 : ROWS / 16;     // residuals that a thread keeps
constexpr int AHEAD = 19 < K_INTER ? 19 : K_INTER; // weights prefetched in the product over INTER
constexpr int AHEAD_X = ROWS == 8 ? 8 : ROWS == 16 ? 6 : 4;

static_assert(HIDDEN == HEADS * HEAD && HIDDEN % 128 == 0 && INTER % 128 == 0 && VOCAB % 16 == 0, "sizes");
static_assert(PER <= 8 && (ROWS == 8 || ROWS == 16 || ROWS == 32), "sizes");

// g and t: a thread's place in the instruction's registers, as the PTX ISA names them groupID and threadID_in_group.
struct Place { int warp, g, t, lane; };

// load_fresh_pair for four numbers.
__device__ __forceinline__ uint2 load_fresh(const bf16* p) {
    uint2 v;
    asm volatile("ld.global.cg.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p));
    return v;
}

__device__ __forceinline__ void mma(float (&d)[4], const uint4& a, u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void load_tile(uint4 (&a)[K_HIDDEN], const bf16* tile, const Place& p) {
#pragma unroll
    for (int s = 0; s < K_HIDDEN; s++) a[s] = load_weight(tile + ((p.warp * K_HIDDEN + s) * 32 + p.lane) * 8);
}

__device__ __forceinline__ void load_rows(uint2 (&x)[K_HIDDEN][NT], const bf16* rows, const Place& p) {
#pragma unroll
    for (int s = 0; s < K_HIDDEN; s++)
#pragma unroll
        for (int j = 0; j < NT; j++)
            x[s][j] = load_fresh(rows + (8 * j + p.g) * HIDDEN + (p.warp * K_HIDDEN + s) * 16 + 4 * p.t);
}

__device__ __forceinline__ void product(float (&d)[NT][4], const uint4 (&a)[K_HIDDEN], const uint2 (&x)[K_HIDDEN][NT]) {
#pragma unroll
    for (int j = 0; j < NT; j++) d[j][0] = d[j][1] = d[j][2] = d[j][3] = 0.0f;
#pragma unroll
    for (int s = 0; s < K_HIDDEN; s++)
#pragma unroll
        for (int j = 0; j < NT; j++) mma(d[j], a[s], x[s][j].x, x[s][j].y);
}

// This warp's share of each row's sum of squares, for the norm, which is applied after the product.
__device__ __forceinline__ void put_squares(float* squares, const uint2 (&x)[K_HIDDEN][NT], const Place& p) {
#pragma unroll
    for (int j = 0; j < NT; j++) {
        float q = 0.0f;
#pragma unroll
        for (int s = 0; s < K_HIDDEN; s++) {
            const float a = low(x[s][j].x), b = high(x[s][j].x), c = low(x[s][j].y), d = high(x[s][j].y);
            q += a * a + b * b + c * c + d * d;
        }
        q += __shfl_xor_sync(~0u, q, 1);
        q += __shfl_xor_sync(~0u, q, 2);
        if (p.t == 0) squares[p.warp * ROWS + 8 * j + p.g] = q;
    }
}

__device__ __forceinline__ void put(float* partial, const float (&d)[NT][4], const Place& p) {
#pragma unroll
    for (int j = 0; j < NT; j++) {
        float* line = partial + (p.warp * ROWS + 8 * j + 2 * p.t) * STRIDE + p.g;
        line[0] = d[j][0];
        line[STRIDE] = d[j][1];
        line[8] = d[j][2];
        line[STRIDE + 8] = d[j][3];
    }
}

__device__ __forceinline__ float total(const float* partial, int row, int column) {
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; w++) sum += partial[(w * ROWS + row) * STRIDE + column];
    return sum;
}

__device__ __forceinline__ float norm(const float* squares, int row) {
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < WARPS; w++) sum += squares[w * ROWS + row];
    return rsqrtf(sum / HIDDEN + EPS);
}

extern "C" __global__ void __launch_bounds__(32 * WARPS, 1) decode_step(
    const bf16* __restrict__ table,        // (ids, HIDDEN)
    const i64* __restrict__ last,          // (slots,): the id that each slot is fed
    const i64* __restrict__ slots,         // (count,)
    const i64* __restrict__ positions,     // (slots,)
    bf16* cache,                           // (LAYERS, 2, slots, KV_HEADS, max_length, HEAD)
    const float* __restrict__ cosines,     // (max_length, HEAD / 2)
    const float* __restrict__ sines,
    const bf16* __restrict__ weights,      // LAYERS times LAYER
    const float* __restrict__ qkv_bias,    // (LAYERS, QKV)
    const bf16* __restrict__ head,         // VOCAB * HIDDEN
    const float* __restrict__ head_bias,   // (VOCAB,)
    bf16* rows,                            // (ROWS, HIDDEN): residuals
    bf16* queries,                         // (ROWS, HIDDEN)
    bf16* mixed,                           // (ROWS, HIDDEN): attention output
    bf16* inner,                           // (ROWS, INTER)
    float* __restrict__ logits,            // (count, VOCAB)
    u32* arrived,                          // 0 before the launch
    int count, int slots_total, int max_length) {
    __shared__ __align__(16) float shared[SHARED];
    float* squares = shared + 2 * PARTIAL;
    const int block = blockIdx.x, blocks = gridDim.x, thread = threadIdx.x;
    const Place p{thread / 32, thread % 32 / 4, thread % 4, thread % 32};
    const i64 slot_size = (i64)KV_HEADS * max_length * HEAD, kind_size = slot_size * slots_total;
    u32 goal = 0;

    // The residuals that this thread keeps, among its block's sixteen outputs of each product into HIDDEN.
    float own[OWN];
    int own_row[OWN];
    const int own_column = block * 16 + thread % 16;
#pragma unroll
    for (int i = 0; i < OWN; i++) {
        own_row[i] = thread / 16 + 16 * i;
        if (block >= HIDDEN / 16) own_row[i] = ROWS;
        if (own_row[i] < count) {
            const bf16 value = table[last[slots[own_row[i]]] * HIDDEN + own_column];
            own[i] = low(value);
            rows[own_row[i] * HIDDEN + own_column] = value;
        }
    }

    arrive(arrived);
    uint4 a[K_HIDDEN], b[K_HIDDEN];
    if (block < QKV / 16) load_tile(a, weights + block * TILE, p);
    await(arrived, goal += blocks);

    for (int layer = 0; layer < LAYERS; layer++) {
        const bf16* qkv_weight = weights + layer * LAYER;
        const bf16* out_weight = qkv_weight + (i64)QKV * HIDDEN;
        const bf16* up_weight = out_weight + (i64)HIDDEN * HIDDEN;
        const bf16* down_weight = up_weight + 2LL * INTER * HIDDEN;
        bf16* keys = cache + 2 * layer * kind_size;
        bf16* values = keys + kind_size;

        // -- queries, keys, values
        if (block < QKV / 16) {
            uint2 x[K_HIDDEN][NT];
            load_rows(x, rows, p);
            put_squares(squares, x, p);
            for (int tile = block; tile < QKV / 16; tile += blocks) {
                float d[NT][4];
                product(d, a, x);
                if (tile + blocks < QKV / 16) load_tile(a, qkv_weight + (tile + blocks) * TILE, p);
                put(shared, d, p);
                __syncthreads();
                // The two halves of a rotated pair are eight outputs apart (decode_step.rotated_pairs).
                const int column = thread % 8, row = thread / 8, number = tile / 4;
                if (row < count && row < ROWS) {
                    const float scale = norm(squares, row);
                    const float* bias = qkv_bias + layer * QKV + tile * 16 + column;
                    float y = total(shared, row, column) * scale + bias[0];
                    float z = total(shared, row, column + 8) * scale + bias[8];
                    const int channel = tile % 4 * 8 + column;
                    const i64 slot = slots[row], position = positions[slot];
                    if (number < HEADS + KV_HEADS) {
                        const float c = cosines[position * (HEAD / 2) + channel];
                        const float s = sines[position * (HEAD / 2) + channel];
                        const float turned = y * c - z * s;
                        z = z * c + y * s;
                        y = turned;
                    }
                    bf16* target;
                    if (number < HEADS) {
                        y *= 1.4426950408889634f / 8.0f;
                        z *= 1.4426950408889634f / 8.0f;
                        target = queries + row * HIDDEN + number * HEAD + channel;
                    } else {
                        bf16* kind = number < HEADS + KV_HEADS ? keys : values;
                        const int kv = (number - HEADS) % KV_HEADS;
                        target = kind + slot * slot_size + (kv * (i64)max_length + position) * HEAD + channel;
                    }
                    target[0] = narrow(y);
                    target[HEAD / 2] = narrow(z);
                }
                __syncthreads();
            }
        }
        arrive(arrived);
        await(arrived, goal += blocks);

        // -- attention: a block computes all heads that share a key head of a sequence
        for (int task = block; task < count * KV_HEADS; task += blocks) {
            float* shares = shared + p.warp * 128;  // (16 keys, 8 heads)
            float* fades = shared + 1024 + p.warp * 8;
            float* tops = shared + 1088 + p.warp * 8;
            float* sums = shared + 1152 + p.warp * 8;
            float* mixes = shared + 1216 + p.warp * PER * HEAD;
            const int row = task / KV_HEADS, kv = task % KV_HEADS;
            const i64 slot = slots[row];
            const int length = (int)positions[slot] + 1;
            const bf16* k = keys + slot * slot_size + kv * (i64)max_length * HEAD;
            const bf16* v = values + slot * slot_size + kv * (i64)max_length * HEAD;
            uint2 q[4];
#pragma unroll
            for (int s = 0; s < 4; s++) {
                q[s] = make_uint2(0, 0);
                if (p.g < PER) q[s] = load_fresh(queries + row * HIDDEN + (kv * PER + p.g) * HEAD + 16 * s + 4 * p.t);
            }
            float top0 = NOTHING, top1 = NOTHING, sum0 = 0.0f, sum1 = 0.0f;
            float mix[PER][2];
#pragma unroll
            for (int h = 0; h < PER; h++) mix[h][0] = mix[h][1] = 0.0f;
            for (int begin = p.warp * 16; begin < length; begin += WARPS * 16) {
                const int key0 = begin + p.g, key1 = key0 + 8;
                uint2 k0[4], k1[4];
                u32 pair[16];
#pragma unroll
                for (int s = 0; s < 4; s++) {
                    k0[s] = load_fresh(k + min(key0, length - 1) * HEAD + 16 * s + 4 * p.t);
                    k1[s] = load_fresh(k + min(key1, length - 1) * HEAD + 16 * s + 4 * p.t);
                }
#pragma unroll
                for (int i = 0; i < 16; i++) pair[i] = load_fresh_pair(v + min(begin + i, length - 1) * HEAD + 2 * p.lane);
                float d[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
                for (int s = 0; s < 4; s++) mma(d, make_uint4(k0[s].x, k1[s].x, k0[s].y, k1[s].y), q[s].x, q[s].y);
                if (key0 >= length) d[0] = d[1] = NOTHING;
                if (key1 >= length) d[2] = d[3] = NOTHING;
                float high0 = fmaxf(d[0], d[2]), high1 = fmaxf(d[1], d[3]);
#pragma unroll
                for (int other = 4; other < 32; other *= 2) {
                    high0 = fmaxf(high0, __shfl_xor_sync(~0u, high0, other));
                    high1 = fmaxf(high1, __shfl_xor_sync(~0u, high1, other));
                }
                high0 = fmaxf(high0, top0);
                high1 = fmaxf(high1, top1);
                const float fade0 = exp2_(top0 - high0), fade1 = exp2_(top1 - high1);
                top0 = high0;
                top1 = high1;
                d[0] = exp2_(d[0] - top0);
                d[1] = exp2_(d[1] - top1);
                d[2] = exp2_(d[2] - top0);
                d[3] = exp2_(d[3] - top1);
                sum0 = sum0 * fade0 + d[0] + d[2];
                sum1 = sum1 * fade1 + d[1] + d[3];
                *(float2*)(shares + p.g * 8 + 2 * p.t) = make_float2(d[0], d[1]);
                *(float2*)(shares + (p.g + 8) * 8 + 2 * p.t) = make_float2(d[2], d[3]);
                if (p.g == 0) *(float2*)(fades + 2 * p.t) = make_float2(fade0, fade1);
                __syncwarp();
#pragma unroll
                for (int h = 0; h < PER; h++) {
                    mix[h][0] *= fades[h];
                    mix[h][1] *= fades[h];
                }
#pragma unroll
                for (int i = 0; i < 16; i++) {
                    const float left = low(pair[i]), right = high(pair[i]);
                    float share[8];
                    *(float4*)share = *(const float4*)(shares + i * 8);
                    *(float4*)(share + 4) = *(const float4*)(shares + i * 8 + 4);
#pragma unroll
                    for (int h = 0; h < PER; h++) {
                        mix[h][0] += share[h] * left;
                        mix[h][1] += share[h] * right;
                    }
                }
                __syncwarp();
            }
#pragma unroll
            for (int other = 4; other < 32; other *= 2) {
                sum0 += __shfl_xor_sync(~0u, sum0, other);
                sum1 += __shfl_xor_sync(~0u, sum1, other);
            }
            if (p.g == 0) {
                *(float2*)(tops + 2 * p.t) = make_float2(top0, top1);
                *(float2*)(sums + 2 * p.t) = make_float2(sum0, sum1);
            }
#pragma unroll
            for (int h = 0; h < PER; h++) *(float2*)(mixes + h * HEAD + 2 * p.lane) = make_float2(mix[h][0], mix[h][1]);
            __syncthreads();
            for (int e = thread; e < PER * HEAD; e += 32 * WARPS) {
                const int h = e / HEAD;
                float top = NOTHING, sum = 0.0f, value = 0.0f;
#pragma unroll
                for (int w = 0; w < WARPS; w++) top = fmaxf(top, shared[1088 + w * 8 + h]);
#pragma unroll
                for (int w = 0; w < WARPS; w++) {
                    const float part = exp2_(shared[1088 + w * 8 + h] - top);
                    sum += shared[1152 + w * 8 + h] * part;
                    value += shared[1216 + w * PER * HEAD + e] * part;
                }
                mixed[row * HIDDEN + kv * PER * HEAD + e] = narrow(value / sum);
            }
            __syncthreads();
        }
        arrive(arrived);
        if (block < HIDDEN / 16) load_tile(a, out_weight + block * TILE, p);
        await(arrived, goal += blocks);

        // -- attention's output projection
        if (block < HIDDEN / 16) {
            uint2 x[K_HIDDEN][NT];
            float d[NT][4];
            load_rows(x, mixed, p);
            product(d, a, x);
            put(shared, d, p);
            __syncthreads();
#pragma unroll
            for (int i = 0; i < OWN; i++)
                if (own_row[i] < count) {
                    own[i] += total(shared, own_row[i], thread % 16);
                    rows[own_row[i] * HIDDEN + own_column] = narrow(own[i]);
                }
        }
        arrive(arrived);
        if (block < INTER / 16) {
            load_tile(a, up_weight + block * 2 * TILE, p);
            load_tile(b, up_weight + block * 2 * TILE + TILE, p);
        }
        await(arrived, goal += blocks);

        // -- gate and up
        if (block < INTER / 16) {
            uint2 x[K_HIDDEN][NT];
            float scale[OWN];
            load_rows(x, rows, p);
            put_squares(squares, x, p);
            for (int tile = block; tile < INTER / 16; tile += blocks) {
                float d[NT][4], e[NT][4];
                product(d, a, x);
                product(e, b, x);
                if (tile + blocks < INTER / 16) {
                    load_tile(a, up_weight + (tile + blocks) * 2 * TILE, p);
                    load_tile(b, up_weight + (tile + blocks) * 2 * TILE + TILE, p);
                }
                put(shared, d, p);
                put(shared + PARTIAL, e, p);
                __syncthreads();
#pragma unroll
                for (int i = 0; i < OWN; i++) {
                    const int row = thread / 16 + 16 * i;
                    if (row < count && row < ROWS) {
                        if (tile == block) scale[i] = norm(squares, row);
                        const float gate = total(shared, row, thread % 16) * scale[i];
                        const float up = total(shared + PARTIAL, row, thread % 16) * scale[i];
                        const float share = 1.0f / (1.0f + exp2_(-1.4426950408889634f * gate));
                        inner[row * INTER + tile * 16 + thread % 16] = narrow(gate * share * up);
                    }
                }
                __syncthreads();
            }
        }
        arrive(arrived);

        // -- down
        const bf16* down = down_weight + block * 16LL * INTER + (p.warp * K_INTER * 32 + p.lane) * 8;
        uint4 w[AHEAD];
        if (block < HIDDEN / 16) {
#pragma unroll
            for (int s = 0; s < AHEAD; s++) w[s] = load_weight(down + s * 256);
        }
        await(arrived, goal += blocks);
        if (block < HIDDEN / 16) {
            const bf16* source = inner + p.g * INTER + p.warp * K_INTER * 16 + 4 * p.t;
            uint2 x[AHEAD_X][NT];
            float d[NT][4];
#pragma unroll
            for (int j = 0; j < NT; j++) d[j][0] = d[j][1] = d[j][2] = d[j][3] = 0.0f;
#pragma unroll
            for (int s = 0; s < AHEAD_X; s++)
#pragma unroll
                for (int j = 0; j < NT; j++) x[s][j] = load_fresh(source + 8 * j * INTER + s * 16);
#pragma unroll
            for (int s = 0; s < K_INTER; s++) {
#pragma unroll
                for (int j = 0; j < NT; j++) {
                    mma(d[j], w[s % AHEAD], x[s % AHEAD_X][j].x, x[s % AHEAD_X][j].y);
                    if (s + AHEAD_X < K_INTER) x[s % AHEAD_X][j] = load_fresh(source + 8 * j * INTER + (s + AHEAD_X) * 16);
                }
                if (s + AHEAD < K_INTER) w[s % AHEAD] = load_weight(down + (s + AHEAD) * 256);
            }
            put(shared, d, p);
            __syncthreads();
#pragma unroll
            for (int i = 0; i < OWN; i++)
                if (own_row[i] < count) {
                    own[i] += total(shared, own_row[i], thread % 16);
                    rows[own_row[i] * HIDDEN + own_column] = narrow(own[i]);
                }
        }
        arrive(arrived);
        if (layer + 1 < LAYERS) {
            if (block < QKV / 16) load_tile(a, down_weight + (i64)INTER * HIDDEN + block * TILE, p);
        } else if (block < VOCAB / 16) {
            load_tile(a, head + block * TILE, p);
        }
        await(arrived, goal += blocks);
    }

    // -- logits
    if (block < VOCAB / 16) {
        uint2 x[K_HIDDEN][NT];
        load_rows(x, rows, p);
        put_squares(squares, x, p);
        for (int tile = block; tile < VOCAB / 16; tile += blocks) {
            float d[NT][4];
            product(d, a, x);
            if (tile + blocks < VOCAB / 16) load_tile(a, head + (tile + blocks) * TILE, p);
            put(shared, d, p);
            __syncthreads();
#pragma unroll
            for (int i = 0; i < OWN; i++) {
                const int row = thread / 16 + 16 * i, column = tile * 16 + thread % 16;
                if (row < count && row < ROWS)
                    logits[row * VOCAB + column] =
                        total(shared, row, thread % 16) * norm(squares, row) + head_bias[column];
            }
            __syncthreads();
        }
    }
}
