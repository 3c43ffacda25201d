// What kernels whose blocks wait for each other have in common. All blocks of a launch need a place on the device at the
// same time, or those that have one wait forever. It follows bf16.cuh.

constexpr u32 MOST_LOOKS = 1 << 25;  // some 20 s: an engine that fails starts anew, one that waits forever does not

// What other blocks have written in this launch: never from L1, which may hold what was there before.
__device__ __forceinline__ u32 load_fresh_pair(const bf16* p) {
    u32 v;
    asm volatile("ld.global.cg.u32 %0, [%1];" : "=r"(v) : "l"(p));
    return v;
}

// A barrier in two halves: what is asked for between them is on its way while a block waits. Behind it a block sees what
// the others wrote in front of it.

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
