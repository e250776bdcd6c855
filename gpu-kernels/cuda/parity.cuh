// Parity of one 16-byte column slice of one stripe: what a GPU thread does, in a subset of C++ that g++ compiles too, so
// that tests compare every operation with the CPU's scalar twin bit for bit without a GPU.
//
// P = sum of d_i, Q = sum of g^i d_i over GF(2^8) modulo 0x11d, g = 2 (H. P. Anvin, "The mathematics of RAID-6", 2004).
// Sums are made by Horner's rule from the highest data index down, four bytes to a 32-bit word. A thread reads 16 bytes of
// every column and writes 16 bytes of at most two; threads share nothing but the result word of a check.
//
// Rust's side of this file is src/descriptor.rs: the layout of StripeJob and the numbers of operations and results.

#ifndef WARPRAID_PARITY_CUH
#define WARPRAID_PARITY_CUH

#ifdef __CUDACC__
#define WR_FN static __device__ __forceinline__
#else
#define WR_FN static inline
#endif

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

// Bytes of a column that one thread handles.
#define WR_SLICE 16u

enum {
    OP_ENCODE = 0,  // out0 = P, out1 = Q
    OP_BY_P = 1,    // out0 = x by P; out1 = Q, with x = data block `index`, factor g^index
    OP_BY_Q = 2,    // out0 = x by Q, factor g^-index; out1 = P
    OP_TWO = 3,     // out0 = x, out1 = y, by P and Q: x = a (sp + P) + b (sq + Q)
    OP_VERIFY = 4,  // result: bit 0 if P differs, bit 1 if Q differs
    OP_LOCATE = 5,  // result: which single column is wrong
    OP_DELTA = 6,   // columns old, new: out0 = P + old + new, out1 = Q + factor (old + new)
};

// Results of OP_LOCATE; data block z is z + 1.
#define WR_CLEAN 0u
#define WR_WRONG_P 0x100u
#define WR_WRONG_Q 0x101u
#define WR_AMBIGUOUS 0x1ffu

// One stripe's job. Addresses are 0 where a column is not there: a missing data column counts as zeroes.
struct StripeJob {
    u64 p;            // stored P
    u64 q;            // stored Q
    u64 out0;         // first output
    u64 out1;         // second output
    u32 first;        // where its data columns begin in the table of columns
    u32 data_columns; // how many
    u32 len;          // bytes of a column
    u32 result;       // its word in the results
    u8 op;
    u8 a;             // constants of the operation
    u8 b;
    u8 needs_q;       // whether the sum of Q is used
    u32 is_aligned;   // whether all its addresses are multiples of 16
};
static_assert(sizeof(struct StripeJob) == 56, "the layout that src/descriptor.rs writes");

struct Slice {
    u32 w[4];
};

// Every byte of the word times g.
WR_FN u32 wr_double(u32 x) { return ((x << 1) & 0xfefefefeu) ^ (((x >> 7) & 0x01010101u) * 0x1du); }

// Every byte of the word times `c`, by shift and add. `c` is the same for the whole stripe, so threads do not part ways.
WR_FN u32 wr_mul(u32 x, u32 c) {
    u32 sum = 0;
    for (; c != 0; c >>= 1) {
        if (c & 1u) sum ^= x;
        x = wr_double(x);
    }
    return sum;
}

WR_FN struct Slice wr_zero() {
    struct Slice s;
    s.w[0] = s.w[1] = s.w[2] = s.w[3] = 0;
    return s;
}

// The slice of a column at `at`; `left` bytes of the column are left from there on, what is beyond them reads as zeroes.
// WHOLE: the address is aligned and at least 16 bytes are left.
template <bool WHOLE>
WR_FN struct Slice wr_load(u64 column, u32 at, u32 left) {
    struct Slice s = wr_zero();
    if (column == 0) return s;
    const u8* from = (const u8*)column + at;
    if (WHOLE) {
#ifdef __CUDACC__
        uint4 v = __ldg((const uint4*)from);
        s.w[0] = v.x;
        s.w[1] = v.y;
        s.w[2] = v.z;
        s.w[3] = v.w;
#else
        __builtin_memcpy(&s, from, sizeof s);
#endif
        return s;
    }
#pragma unroll
    for (u32 w = 0; w < 4; w++)
#pragma unroll 1
        for (u32 b = 0; b < 4 && 4 * w + b < left; b++) s.w[w] |= (u32)from[4 * w + b] << (8 * b);
    return s;
}

template <bool WHOLE>
WR_FN void wr_store(u64 column, u32 at, u32 left, struct Slice s) {
    if (column == 0) return;
    u8* to = (u8*)column + at;
    if (WHOLE) {
#ifdef __CUDACC__
        *(uint4*)to = make_uint4(s.w[0], s.w[1], s.w[2], s.w[3]);
#else
        __builtin_memcpy(to, &s, sizeof s);
#endif
        return;
    }
#pragma unroll
    for (u32 w = 0; w < 4; w++)
#pragma unroll 1
        for (u32 b = 0; b < 4 && 4 * w + b < left; b++) to[4 * w + b] = (u8)(s.w[w] >> (8 * b));
}

WR_FN struct Slice wr_add(struct Slice x, struct Slice y) {
    for (int i = 0; i < 4; i++) x.w[i] ^= y.w[i];
    return x;
}

WR_FN struct Slice wr_times(struct Slice x, u32 c) {
    for (int i = 0; i < 4; i++) x.w[i] = wr_mul(x.w[i], c);
    return x;
}

WR_FN bool wr_any(struct Slice x) { return (x.w[0] | x.w[1] | x.w[2] | x.w[3]) != 0; }

WR_FN void wr_result_or(u32* result, u32 bits) {
#ifdef __CUDACC__
    atomicOr(result, bits);
#else
    *result |= bits;
#endif
}

// The first suspect stays; a second, different one makes it ambiguous.
WR_FN void wr_result_suspect(u32* result, u32 suspect) {
#ifdef __CUDACC__
    u32 before = atomicCAS(result, WR_CLEAN, suspect);
    if (before != WR_CLEAN && before != suspect) atomicExch(result, WR_AMBIGUOUS);
#else
    if (*result == WR_CLEAN) *result = suspect;
    else if (*result != suspect) *result = WR_AMBIGUOUS;
#endif
}

// The column that alone explains one byte's syndromes, not both 0: data block z wrong by e gives sp = e and sq = g^z e.
WR_FN u32 wr_suspect(u32 sp, u32 sq, u32 data_columns) {
    if (sp == 0) return WR_WRONG_Q;
    if (sq == 0) return WR_WRONG_P;
    for (u32 z = 0; z < data_columns; z++) {
        if (sp == sq) return z + 1;
        sp = wr_double(sp);
    }
    return WR_AMBIGUOUS;
}

WR_FN void wr_locate(const struct StripeJob* job, struct Slice sp, struct Slice sq, u32* result) {
#pragma unroll
    for (u32 w = 0; w < 4; w++)
#pragma unroll 1
        for (u32 shift = 0; shift < 32; shift += 8) {
            u32 byte_p = (sp.w[w] >> shift) & 0xffu;
            u32 byte_q = (sq.w[w] >> shift) & 0xffu;
            if ((byte_p | byte_q) != 0) wr_result_suspect(result, wr_suspect(byte_p, byte_q, job->data_columns));
        }
}

template <bool WHOLE>
WR_FN void wr_delta(const struct StripeJob* job, const u64* columns, u32 at, u32 left) {
    struct Slice change =
        wr_add(wr_load<WHOLE>(columns[job->first], at, left), wr_load<WHOLE>(columns[job->first + 1], at, left));
    wr_store<WHOLE>(job->out0, at, left, wr_add(wr_load<WHOLE>(job->p, at, left), change));
    if (job->out1 != 0) wr_store<WHOLE>(job->out1, at, left, wr_add(wr_load<WHOLE>(job->q, at, left), wr_times(change, job->a)));
}

// P and Q of the data columns.
template <bool WHOLE>
WR_FN void wr_sums(const struct StripeJob* job, const u64* columns, u32 at, u32 left, struct Slice* p, struct Slice* q) {
    struct Slice sp = wr_zero(), sq = wr_zero();
    const u64* table = columns + job->first;
    if (job->needs_q) {
#pragma unroll WHOLE ? 8 : 1
        for (u32 i = job->data_columns; i-- > 0;) {
            struct Slice d = wr_load<WHOLE>(table[i], at, left);
            for (int w = 0; w < 4; w++) {
                sp.w[w] ^= d.w[w];
                sq.w[w] = wr_double(sq.w[w]) ^ d.w[w];
            }
        }
    } else {
#pragma unroll WHOLE ? 8 : 1
        for (u32 i = job->data_columns; i-- > 0;) sp = wr_add(sp, wr_load<WHOLE>(table[i], at, left));
    }
    *p = sp;
    *q = sq;
}

template <bool WHOLE>
WR_FN void wr_slice(const struct StripeJob* job, const u64* columns, u32* results, u32 at, u32 left) {
    if (job->op == OP_DELTA) {
        wr_delta<WHOLE>(job, columns, at, left);
        return;
    }
    struct Slice sp, sq;
    wr_sums<WHOLE>(job, columns, at, left, &sp, &sq);
    switch (job->op) {
        case OP_ENCODE:
            wr_store<WHOLE>(job->out0, at, left, sp);
            wr_store<WHOLE>(job->out1, at, left, sq);
            break;
        case OP_BY_P: {
            struct Slice x = wr_add(sp, wr_load<WHOLE>(job->p, at, left));
            wr_store<WHOLE>(job->out0, at, left, x);
            if (job->out1 != 0) wr_store<WHOLE>(job->out1, at, left, wr_add(sq, wr_times(x, job->a)));
            break;
        }
        case OP_BY_Q: {
            struct Slice x = wr_times(wr_add(sq, wr_load<WHOLE>(job->q, at, left)), job->a);
            wr_store<WHOLE>(job->out0, at, left, x);
            wr_store<WHOLE>(job->out1, at, left, wr_add(sp, x));
            break;
        }
        case OP_TWO: {
            struct Slice dp = wr_add(sp, wr_load<WHOLE>(job->p, at, left));
            struct Slice dq = wr_add(sq, wr_load<WHOLE>(job->q, at, left));
            struct Slice x = wr_add(wr_times(dp, job->a), wr_times(dq, job->b));
            wr_store<WHOLE>(job->out0, at, left, x);
            wr_store<WHOLE>(job->out1, at, left, wr_add(dp, x));
            break;
        }
        case OP_VERIFY: {
            u32 bits = 0;
            if (job->p != 0 && wr_any(wr_add(sp, wr_load<WHOLE>(job->p, at, left)))) bits |= 1u;
            if (job->q != 0 && wr_any(wr_add(sq, wr_load<WHOLE>(job->q, at, left)))) bits |= 2u;
            if (bits != 0) wr_result_or(results + job->result, bits);
            break;
        }
        case OP_LOCATE: {
            struct Slice dp = wr_add(sp, wr_load<WHOLE>(job->p, at, left));
            struct Slice dq = wr_add(sq, wr_load<WHOLE>(job->q, at, left));
            if (wr_any(dp) || wr_any(dq)) wr_locate(job, dp, dq, results + job->result);
            break;
        }
    }
}

// What one thread does: slice number `slice` of one stripe.
WR_FN void wr_parity_thread(const struct StripeJob* job, const u64* columns, u32* results, u32 slice) {
    if (slice >= (job->len + WR_SLICE - 1) / WR_SLICE) return;
    u32 at = slice * WR_SLICE;
    u32 left = job->len - at;
    if (job->is_aligned && left >= WR_SLICE) {
        wr_slice<true>(job, columns, results, at, left);
    } else {
        wr_slice<false>(job, columns, results, at, left);
    }
}

#endif
