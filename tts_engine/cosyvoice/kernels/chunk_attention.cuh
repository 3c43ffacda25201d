// Attention of one head over pages of keys and values in shared memory, by warps with sixteen queries each.
// Products are mma.m16n8k16. Needs bf16.cuh.

constexpr int HEAD = 64, PAGE = 50, KEYS = 64;     // channels; frames of a page; lines of its keys (or values) in shared memory
constexpr int PAGE_TILES = (PAGE + 7) / 8;         // tiles of eight keys in a page
constexpr int HEAD_STRIDE = HEAD + 8;              // an odd multiple of 16 bytes, without bank conflicts
constexpr int PAGE_BYTES = 2 * KEYS * HEAD_STRIDE * 2;

struct Place { int warp, lane, g, t; u32 rank; };  // g, t: groupID and threadID_in_group of the PTX ISA

__device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }

__device__ __forceinline__ void load_matrices(u32 (&r)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}

__device__ __forceinline__ void load_transposed(u32 (&r)[4], u32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}

__device__ __forceinline__ void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

struct Attended {
    float mix[8][4], top[2], sum[2];
};

// Add the keys and values of N tiles of eight, of which the first `limit` are seen.
template <int N>
__device__ __forceinline__ void attend(Attended& y, const u32 (&q)[4][4], u32 k, u32 v, int limit, const Place& p) {
    constexpr float SCALE = 1.4426950408889634f / 8.0f;
    float d[N][4];
    const u32 key = k + (p.lane % 8 * HEAD_STRIDE + p.lane / 8 * 8) * 2;
#pragma unroll
    for (int j = 0; j < N; j++) {
        d[j][0] = d[j][1] = d[j][2] = d[j][3] = 0.0f;
#pragma unroll
        for (int s = 0; s < 2; s++) {
            u32 b[4];
            load_matrices(b, key + (8 * j * HEAD_STRIDE + 32 * s) * 2);
            mma(d[j], q[2 * s], b[0], b[1]);
            mma(d[j], q[2 * s + 1], b[2], b[3]);
        }
    }
    float most[2] = {y.top[0], y.top[1]};
#pragma unroll
    for (int j = 0; j < N; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            d[j][e] = 8 * j + 2 * p.t + e % 2 < limit ? d[j][e] * SCALE : __int_as_float(0xff800000);
            most[e / 2] = fmaxf(most[e / 2], d[j][e]);
        }
    float fade[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        most[r] = fmaxf(most[r], __shfl_xor_sync(~0u, most[r], 1));
        most[r] = fmaxf(most[r], __shfl_xor_sync(~0u, most[r], 2));
        fade[r] = exp2_(y.top[r] - most[r]);
        y.top[r] = most[r];
        y.sum[r] *= fade[r];
    }
#pragma unroll
    for (int c = 0; c < 8; c++)
#pragma unroll
        for (int e = 0; e < 4; e++) y.mix[c][e] *= fade[e / 2];
#pragma unroll
    for (int j = 0; j < N; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            d[j][e] = exp2_(d[j][e] - most[e / 2]);
            y.sum[e / 2] += d[j][e];
        }
    const u32 value = v + ((p.lane % 8 + p.lane / 8 % 2 * 8) * HEAD_STRIDE + p.lane / 16 * 8) * 2;
#pragma unroll
    for (int s = 0; s < (N + 1) / 2; s++) {
        u32 a[4] = {pair(d[2 * s][0], d[2 * s][1]), pair(d[2 * s][2], d[2 * s][3]), 0, 0};
        if (2 * s + 1 < N) {
            a[2] = pair(d[2 * s + 1][0], d[2 * s + 1][1]);
            a[3] = pair(d[2 * s + 1][2], d[2 * s + 1][3]);
        }
#pragma unroll
        for (int c = 0; c < 4; c++) {
            u32 b[4];
            load_transposed(b, value + (16 * s * HEAD_STRIDE + 16 * c) * 2);
            mma(y.mix[2 * c], a, b[0], b[1]);
            mma(y.mix[2 * c + 1], a, b[2], b[3]);
        }
    }
}
