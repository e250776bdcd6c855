//! Kernels of x86-64 instruction set extensions.

pub(super) mod avx2;
