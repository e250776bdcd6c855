// The kernel: one row of blocks (blockIdx.y) for each stripe of a batch, one thread for each 16 bytes of a column.
#include "parity.cuh"

extern "C" __global__ void __launch_bounds__(256)
warpraid_parity(const StripeJob* __restrict__ jobs, const u64* __restrict__ columns, u32* results) {
    wr_parity_thread(jobs + blockIdx.y, columns, results, blockIdx.x * blockDim.x + threadIdx.x);
}
