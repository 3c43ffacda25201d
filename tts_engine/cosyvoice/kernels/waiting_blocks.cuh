// Shared by the kernels whose blocks synchronise with each other. All blocks of a launch must be resident at the same
// time; otherwise the resident ones wait forever. Needs bf16.cuh.

constexpr u32 MOST_LOOKS = 1 << 25;  // about 20 s; then the kernel fails, so that the engine restarts

// Load what other blocks have written in this launch, bypassing L1, which may have old values.
__device__ __forceinline__ u32 load_fresh_pair(const bf16* p) {
    u32 v;
    asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(v) : "l"(p));
    return v;
}

// A split barrier: loads that are started between arrive and await overlap with the wait. After await, a block sees what
// the others wrote before arrive.

__device__ __forceinline__ void arrive(u32* arrived) {
    __syncthreads();
    if (threadIdx.x == 0) asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(arrived) : "memory");
}

__device__ __forceinline__ void await(const u32* arrived, u32 goal) {
    if (threadIdx.x == 0) {
        u32 seen, looks = 0;
        do {
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(arrived) : "memory");
            if (++looks == MOST_LOOKS) asm volatile("trap;");
        } while (seen < goal);
    }
    __syncthreads();
}
