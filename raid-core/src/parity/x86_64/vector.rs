//! What an instruction set has to offer: a register of bytes, and arithmetic in GF(2^8) on each byte.

#![allow(unsafe_code)]

/// A register.
///
/// # Safety
/// Of every method: the machine has the instruction set of the type. Implementations are `#[inline(always)]`, so that they
/// become part of a function that is compiled for it.
pub(super) trait Vector: Copy {
    /// Bytes of a register.
    const BYTES: usize;

    /// What [`Vector::times`] needs to know of a constant.
    type Factor: Copy;

    /// What [`Vector::double`] and [`Vector::step`] need to know of g.
    type Powers: Copy;

    /// The bytes from `from` on.
    ///
    /// # Safety
    /// `BYTES` bytes can be read there; any alignment will do.
    unsafe fn load(from: *const u8) -> Self;

    /// Stores into a cache.
    ///
    /// # Safety
    /// `BYTES` bytes can be written at `to`; any alignment will do.
    unsafe fn store(self, to: *mut u8);

    /// Stores past the caches; [`Vector::fence`] must follow before anybody else may look.
    ///
    /// # Safety
    /// `BYTES` bytes can be written at `to`, which is aligned to `BYTES`.
    unsafe fn stream(self, to: *mut u8);

    /// Orders the streamed stores before everything that follows.
    unsafe fn fence();

    /// All bytes 0.
    unsafe fn zero() -> Self;

    /// The sum.
    unsafe fn add(self, other: Self) -> Self;

    /// The sum of three.
    unsafe fn add3(self, second: Self, third: Self) -> Self;

    /// Every bit that is set in either.
    unsafe fn or(self, other: Self) -> Self;

    /// Whether all bytes are 0.
    unsafe fn is_zero(self) -> bool;

    /// The constant to multiply by.
    unsafe fn factor(constant: u8) -> Self::Factor;

    /// Every byte times the constant.
    unsafe fn times(self, factor: Self::Factor) -> Self;

    /// g and its powers.
    unsafe fn powers() -> Self::Powers;

    /// Every byte times g.
    unsafe fn double(self, powers: Self::Powers) -> Self;

    /// Two steps of Horner's rule at once: (`self` g + `upper`) g + `lower`.
    unsafe fn step(self, upper: Self, lower: Self, powers: Self::Powers) -> Self;

    /// Four steps at once, over columns in rising order.
    unsafe fn step4(self, columns: [Self; 4], powers: Self::Powers) -> Self;
}

/// N registers from byte `at` of a column.
///
/// # Safety
/// The machine has V's instruction set, and `at + N * V::BYTES <= column.len()`.
#[inline(always)]
pub(super) unsafe fn load<V: Vector, const N: usize>(column: &[u8], at: usize) -> [V; N] {
    debug_assert!(at + N * V::BYTES <= column.len());
    // SAFETY: zero() asks for the instruction set only; i < N, so the register's bytes lie inside the column (caller).
    unsafe {
        let mut registers = [V::zero(); N];
        for (i, register) in registers.iter_mut().enumerate() {
            *register = V::load(column.as_ptr().add(at + i * V::BYTES));
        }
        registers
    }
}

/// Stores N registers at byte `at` of a column; with STREAM past the caches.
///
/// # Safety
/// The machine has V's instruction set, and `at + N * V::BYTES <= column.len()`; with STREAM the place is aligned to
/// `V::BYTES`.
#[inline(always)]
pub(super) unsafe fn store<V: Vector, const N: usize, const STREAM: bool>(
    column: &mut [u8],
    at: usize,
    registers: [V; N],
) {
    debug_assert!(at + N * V::BYTES <= column.len());
    for (i, register) in registers.into_iter().enumerate() {
        // SAFETY: i < N, so the register's bytes lie inside the column; aligned where it matters (caller).
        unsafe {
            let to = column.as_mut_ptr().add(at + i * V::BYTES);
            if STREAM { register.stream(to) } else { register.store(to) }
        }
    }
}

/// Whether streamed stores may go to a column: they must be aligned.
pub(super) fn is_aligned<V: Vector>(column: &[u8]) -> bool {
    column.as_ptr().addr().is_multiple_of(V::BYTES)
}
