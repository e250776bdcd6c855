// The kernel's threads one after the other on the CPU, for tests that have no GPU.
#include "parity.cuh"

extern "C" void warpraid_parity_on_host(const StripeJob* jobs, u32 count, const u64* columns, u32* results) {
    for (u32 job = 0; job < count; job++)
        for (u32 slice = 0; slice * WR_SLICE < jobs[job].len; slice++)
            wr_parity_thread(jobs + job, columns, results, slice);
}
