// Shared by the CUDA kernels: bf16 pairs and their loads.

typedef unsigned short bf16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

// The two bf16 numbers of a register, as floats.
__device__ __forceinline__ float low(u32 x) { return __uint_as_float(x << 16); }
__device__ __forceinline__ float high(u32 x) { return __uint_as_float(x & 0xffff0000u); }

__device__ __forceinline__ u32 pair(float first, float second) {
    u32 y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(second), "f"(first));
    return y;
}

__device__ __forceinline__ bf16 narrow(float x) { return (bf16)pair(x, 0.0f); }

__device__ __forceinline__ float exp2_(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Load eight weights that are read only once in a launch.
__device__ __forceinline__ uint4 load_weight(const bf16* p) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p));
    return v;
}

