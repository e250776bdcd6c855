//! Other people's parity: Intel's ISA-L, loaded from the system if it is there, and what a plain pass over memory takes.
//!
//! ISA-L is not linked: only `bench parity --against isal` wants it, and says what to install where it is missing.

#![allow(unsafe_code)]

use core::ffi::{CStr, c_char, c_int, c_uchar, c_void};
use core::fmt;

/// The library under the name that its package gives it.
const LIBRARY: &CStr = c"libisal.so.2";
/// Most columns of a call.
const COLUMNS_MAX: usize = 64;

type SumFn = unsafe extern "C" fn(vects: c_int, len: c_int, columns: *mut *mut c_void) -> c_int;
type TablesFn = unsafe extern "C" fn(k: c_int, rows: c_int, matrix: *mut c_uchar, tables: *mut c_uchar);
type EncodeFn = unsafe extern "C" fn(
    len: c_int,
    k: c_int,
    rows: c_int,
    tables: *mut c_uchar,
    data: *mut *mut c_uchar,
    coding: *mut *mut c_uchar,
);
type UpdateFn = unsafe extern "C" fn(
    len: c_int,
    k: c_int,
    rows: c_int,
    index: c_int,
    tables: *mut c_uchar,
    data: *mut c_uchar,
    coding: *mut *mut c_uchar,
);

/// ISA-L.
#[derive(Debug)]
pub struct Isal {
    xor_gen: SumFn,
    pq_gen: SumFn,
    /// The AVX2 code of `pq_gen`, which its dispatcher leaves aside on newer processors.
    pq_gen_avx2: Option<SumFn>,
    ec_init_tables: TablesFn,
    ec_encode_data: EncodeFn,
    ec_encode_data_update: UpdateFn,
    version: String,
}

/// Why ISA-L cannot be measured.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NoIsal(String);

impl fmt::Display for NoIsal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NoIsal {}

/// Multiplication tables of ISA-L for the coefficients of a code.
#[derive(Debug)]
pub struct Tables {
    bytes: Vec<u8>,
    columns: usize,
    rows: usize,
}

/// What the loader says of the last failure.
fn loader_error() -> String {
    // SAFETY: dlerror gives a string with a closing 0 that stays until the next call of the loader on this thread, or null.
    let message = unsafe {
        let message: *const c_char = libc::dlerror();
        (!message.is_null()).then(|| CStr::from_ptr(message).to_string_lossy().into_owned())
    };
    message.unwrap_or_else(|| "no reason given".to_owned())
}

impl Isal {
    /// Loads the library; it stays loaded.
    ///
    /// # Errors
    /// [`NoIsal`] if there is none, or one without what is needed.
    pub fn load() -> Result<Self, NoIsal> {
        // SAFETY: loading runs the library's constructors, which is what the caller wants; the name ends with a 0.
        let library = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            return Err(NoIsal(loader_error()));
        }
        let symbol = |name: &CStr| {
            // SAFETY: the handle is that of an open library.
            let address = unsafe { libc::dlsym(library, name.as_ptr()) };
            if address.is_null() { Err(NoIsal(loader_error())) } else { Ok(address) }
        };
        // SAFETY: the symbols are functions of these signatures (erasure_code.h, raid.h of ISA-L 2.x), and the library is never
        // closed.
        unsafe {
            Ok(Self {
                xor_gen: core::mem::transmute::<*mut c_void, SumFn>(symbol(c"xor_gen")?),
                pq_gen: core::mem::transmute::<*mut c_void, SumFn>(symbol(c"pq_gen")?),
                pq_gen_avx2: symbol(c"pq_gen_avx2")
                    .ok()
                    .map(|address| core::mem::transmute::<*mut c_void, SumFn>(address)),
                ec_init_tables: core::mem::transmute::<*mut c_void, TablesFn>(symbol(c"ec_init_tables")?),
                ec_encode_data: core::mem::transmute::<*mut c_void, EncodeFn>(symbol(c"ec_encode_data")?),
                ec_encode_data_update: core::mem::transmute::<*mut c_void, UpdateFn>(symbol(
                    c"ec_encode_data_update",
                )?),
                version: file_version(library).unwrap_or_else(|| "2".to_owned()),
            })
        }
    }

    /// The version, by the name of the library's file.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Whether its AVX2 code can be called by name.
    #[must_use]
    pub fn has_avx2(&self) -> bool {
        self.pq_gen_avx2.is_some() && std::arch::is_x86_feature_detected!("avx2")
    }

    fn sum(function: SumFn, srcs: &[&[u8]], outs: &mut [&mut [u8]]) {
        let len = srcs[0].len();
        assert!(srcs.iter().all(|src| src.len() == len) && outs.iter().all(|out| out.len() == len));
        assert!(len.is_multiple_of(32) && srcs.len() + outs.len() <= COLUMNS_MAX, "what ISA-L takes");
        let mut columns = [core::ptr::null_mut(); COLUMNS_MAX];
        for (column, src) in columns.iter_mut().zip(srcs) {
            *column = src.as_ptr().cast_mut().cast();
        }
        for (column, out) in columns[srcs.len()..].iter_mut().zip(outs.iter_mut()) {
            *column = out.as_mut_ptr().cast();
        }
        let vects = c_int::try_from(srcs.len() + outs.len()).expect("few columns");
        let len = c_int::try_from(len).expect("short columns");
        // SAFETY: `columns` holds as many pointers as said, each to `len` bytes; the sources are only read, the last one
        // (xor_gen) or two (pq_gen) are written; alignment is checked by the library, which then refuses.
        let result = unsafe { function(vects, len, columns.as_mut_ptr()) };
        assert_eq!(result, 0, "ISA-L refused its columns");
    }

    /// P of the sources, whose length is a multiple of 32.
    pub fn xor(&self, srcs: &[&[u8]], p: &mut [u8]) {
        Self::sum(self.xor_gen, srcs, &mut [p]);
    }

    /// P and Q of the sources, whose length is a multiple of 32 and which begin at one.
    pub fn pq(&self, srcs: &[&[u8]], p: &mut [u8], q: &mut [u8]) {
        Self::sum(self.pq_gen, srcs, &mut [p, q]);
    }

    /// [`Self::pq`] by its AVX2 code.
    ///
    /// # Panics
    /// Unless [`Self::has_avx2`].
    pub fn pq_avx2(&self, srcs: &[&[u8]], p: &mut [u8], q: &mut [u8]) {
        assert!(self.has_avx2(), "ISA-L's AVX2 code is not there");
        Self::sum(self.pq_gen_avx2.expect("checked"), srcs, &mut [p, q]);
    }

    /// Tables of a code with these rows of coefficients.
    #[must_use]
    pub fn tables(&self, rows: &[Vec<u8>]) -> Tables {
        let columns = rows[0].len();
        let mut matrix: Vec<u8> = rows.iter().flatten().copied().collect();
        let mut bytes = vec![0; 32 * matrix.len()];
        let [k, count] = [columns, rows.len()].map(|n| c_int::try_from(n).expect("few"));
        // SAFETY: the matrix has k * count coefficients and the tables 32 bytes for each.
        unsafe { (self.ec_init_tables)(k, count, matrix.as_mut_ptr(), bytes.as_mut_ptr()) }
        Tables { bytes, columns, rows: rows.len() }
    }

    /// `outs[i]` = sum of the coefficients of row i times the sources.
    pub fn encode(&self, tables: &mut Tables, srcs: &[&[u8]], outs: &mut [&mut [u8]]) {
        let len = srcs[0].len();
        assert!(srcs.len() == tables.columns && outs.len() == tables.rows);
        assert!(srcs.iter().all(|src| src.len() == len) && outs.iter().all(|out| out.len() == len));
        let mut data = [core::ptr::null_mut::<c_uchar>(); COLUMNS_MAX];
        let mut coding = [core::ptr::null_mut::<c_uchar>(); COLUMNS_MAX];
        assert!(srcs.len() <= COLUMNS_MAX && outs.len() <= COLUMNS_MAX);
        for (pointer, src) in data.iter_mut().zip(srcs) {
            *pointer = src.as_ptr().cast_mut();
        }
        for (pointer, out) in coding.iter_mut().zip(outs) {
            *pointer = out.as_mut_ptr();
        }
        let [len, k, rows] = [len, tables.columns, tables.rows].map(|n| c_int::try_from(n).expect("few"));
        // SAFETY: k pointers to sources, which are only read, and `rows` to outputs, all `len` bytes; the tables are those of
        // as many coefficients.
        unsafe {
            let tables = tables.bytes.as_mut_ptr();
            (self.ec_encode_data)(len, k, rows, tables, data.as_mut_ptr(), coding.as_mut_ptr());
        }
    }

    /// Adds the coefficients of column `index` times `change` to `outs`.
    pub fn update(&self, tables: &mut Tables, index: usize, change: &mut [u8], outs: &mut [&mut [u8]]) {
        let len = change.len();
        assert!(index < tables.columns && outs.len() == tables.rows && outs.len() <= COLUMNS_MAX);
        assert!(outs.iter().all(|out| out.len() == len));
        let mut coding = [core::ptr::null_mut::<c_uchar>(); COLUMNS_MAX];
        for (pointer, out) in coding.iter_mut().zip(outs) {
            *pointer = out.as_mut_ptr();
        }
        let [len, k, rows, index] =
            [len, tables.columns, tables.rows, index].map(|n| c_int::try_from(n).expect("few"));
        // SAFETY: one source, which is only read, and `rows` outputs, all `len` bytes; the tables are those of k columns.
        unsafe {
            let tables = tables.bytes.as_mut_ptr();
            (self.ec_encode_data_update)(
                len,
                k,
                rows,
                index,
                tables,
                change.as_mut_ptr(),
                coding.as_mut_ptr(),
            );
        }
    }
}

/// What comes after `.so.` in the name of the file that was loaded, links followed.
fn file_version(library: *mut c_void) -> Option<String> {
    let mut info = core::mem::MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: the handle is that of an open library, and dladdr fills `info` if it knows the address.
    let path = unsafe {
        let address = libc::dlsym(library, c"pq_gen".as_ptr());
        if address.is_null() || libc::dladdr(address, info.as_mut_ptr()) == 0 {
            return None;
        }
        let name = info.assume_init().dli_fname;
        if name.is_null() {
            return None;
        }
        CStr::from_ptr(name).to_str().ok()?.to_owned()
    };
    let file = std::fs::canonicalize(path).ok()?;
    let (_, version) = file.file_name()?.to_str()?.split_once(".so.")?;
    Some(version.to_owned())
}

/// Reads all columns in step, a cache line of each at a time, as parity does; gives something that depends on every byte.
///
/// # Panics
/// If the lengths differ, or are not multiples of 64.
#[must_use]
pub fn read(srcs: &[&[u8]]) -> u64 {
    let len = srcs[0].len();
    assert!(
        srcs.iter().all(|src| src.len() == len) && len.is_multiple_of(64),
        "columns of whole cache lines"
    );
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx512f") {
        // SAFETY: the processor has it, as just seen.
        return unsafe { wide_read(srcs, len) };
    }
    let mut sums = [0_u64; 8];
    for at in (0..len).step_by(64) {
        for src in srcs {
            for (sum, word) in sums.iter_mut().zip(src[at..at + 64].chunks_exact(8)) {
                *sum ^= u64::from_ne_bytes(word.try_into().expect("eight bytes"));
            }
        }
    }
    sums.into_iter().fold(0, |all, sum| all ^ sum)
}

/// [`read`] with registers of a cache line.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn wide_read(srcs: &[&[u8]], len: usize) -> u64 {
    use core::arch::x86_64::{
        _mm512_loadu_si512, _mm512_reduce_add_epi64, _mm512_setzero_si512, _mm512_xor_si512,
    };
    let mut sums = [_mm512_setzero_si512(); 4];
    for at in (0..len).step_by(64) {
        for quad in srcs.chunks(4) {
            for (sum, src) in sums.iter_mut().zip(quad) {
                // SAFETY: the column is `len` bytes, of which 64 are left (`read`).
                let line = unsafe { _mm512_loadu_si512(src.as_ptr().add(at).cast()) };
                *sum = _mm512_xor_si512(*sum, line);
            }
        }
    }
    let [a, b, c, d] = sums;
    let all = _mm512_xor_si512(_mm512_xor_si512(a, b), _mm512_xor_si512(c, d));
    _mm512_reduce_add_epi64(all).cast_unsigned()
}

/// Copies every source to its output, past the caches, as fast as this processor does it.
///
/// # Panics
/// If the lengths differ, or are not multiples of 64.
pub fn stream_copies(srcs: &[&[u8]], outs: &mut [&mut [u8]]) {
    assert_eq!(srcs.len(), outs.len(), "a place for every copy");
    for (src, out) in srcs.iter().zip(outs.iter_mut()) {
        assert!(src.len() == out.len() && src.len().is_multiple_of(64), "columns of whole cache lines");
        stream_copy(src, out);
    }
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 has it.
    unsafe {
        core::arch::x86_64::_mm_sfence();
    }
}

#[cfg(target_arch = "x86_64")]
fn stream_copy(from: &[u8], to: &mut [u8]) {
    use core::arch::x86_64::{_mm512_loadu_si512, _mm512_stream_si512};

    #[target_feature(enable = "avx512f")]
    fn wide(from: &[u8], to: &mut [u8]) {
        for (from, to) in from.chunks_exact(64).zip(to.chunks_exact_mut(64)) {
            // SAFETY: both are 64 bytes, and `to` is aligned to 64 (checked below).
            unsafe { _mm512_stream_si512(to.as_mut_ptr().cast(), _mm512_loadu_si512(from.as_ptr().cast())) }
        }
    }

    if std::arch::is_x86_feature_detected!("avx512f") && to.as_ptr().addr().is_multiple_of(64) {
        // SAFETY: the processor has it, as just seen.
        unsafe { wide(from, to) }
    } else {
        to.copy_from_slice(from);
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn stream_copy(from: &[u8], to: &mut [u8]) {
    to.copy_from_slice(from);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_over_memory_touch_every_byte() {
        let mut bytes: Vec<u8> = (0..2048_u32).map(|i| i.to_le_bytes()[0].wrapping_mul(37)).collect();
        let sum = |bytes: &[u8]| read(&bytes.chunks_exact(256).collect::<Vec<_>>());
        let before = sum(&bytes);
        for at in [0, 777, 2047] {
            bytes[at] ^= 1;
            assert_ne!(sum(&bytes), before, "byte {at} counts");
            bytes[at] ^= 1;
        }
        let (mut a, mut b) = (vec![0; 1024], vec![0; 1024]);
        let (first, second) = bytes.split_at(1024);
        stream_copies(&[first, second], &mut [&mut a, &mut b]);
        assert_eq!((&a[..], &b[..]), (first, second));
    }
}
