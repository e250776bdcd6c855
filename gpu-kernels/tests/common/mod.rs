//! Parity jobs over heap memory, and an executor for one future.

#![allow(unsafe_code, dead_code)]

use core::cell::UnsafeCell;
use core::pin::pin;
use core::ptr::NonNull;
use core::task::{Context, Poll};
use std::rc::Rc;
use std::sync::Arc;
use std::task::Wake;
use std::thread::Thread;
use std::time::{Duration, Instant};

use raid_core::lease::{Lease, LeaseHome};
use raid_core::parity::{Column, CpuParity, ParityJob, ParityOp};
use raid_core::units::{DataIndex, usize_of_u32};

/// One heap block per lease; the home owns it.
struct Heap {
    _bytes: Box<[UnsafeCell<u8>]>,
}

impl LeaseHome for Heap {
    fn give_back(&self, _key: u32) {}
}

/// A lease that holds `content`.
pub(crate) fn lease(content: &[u8]) -> Lease {
    let bytes: Box<[UnsafeCell<u8>]> = content.iter().map(|&byte| UnsafeCell::new(byte)).collect();
    let len = u32::try_from(content.len()).unwrap();
    let start = NonNull::new(bytes[0].get()).unwrap();
    // SAFETY: the bytes are initialised, live in cells that only this lease reaches, and the home that the lease keeps
    // alive owns them.
    unsafe { Lease::new(start, len, len, 0, Rc::new(Heap { _bytes: bytes })) }
}

/// An input column.
pub(crate) fn input(content: &[u8]) -> Column {
    Column::In(lease(content).share())
}

/// An output column that holds `content` now.
pub(crate) fn output(content: &[u8]) -> Column {
    let lease = lease(content);
    let len = lease.len();
    Column::Out(lease, 0..len)
}

/// What a column holds.
pub(crate) fn content(column: &Column) -> Vec<u8> {
    match column {
        Column::Absent => Vec::new(),
        Column::In(seg) => seg.bytes().to_vec(),
        Column::Out(lease, range) => {
            lease.bytes()[usize_of_u32(range.start)..usize_of_u32(range.end)].to_vec()
        }
    }
}

/// Bytes that look random.
pub(crate) fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state.to_le_bytes()[4]
        })
        .collect()
}

/// A stripe: k data columns, then P, then Q.
pub(crate) fn stripe(seed: u64, k: usize, len: usize) -> Vec<Vec<u8>> {
    let mut columns: Vec<Vec<u8>> =
        (0..k).map(|i| bytes(seed * 1000 + u64::try_from(i).unwrap(), len)).collect();
    let mut job = ParityJob {
        op: ParityOp::Encode,
        len: u32::try_from(len).unwrap(),
        data: columns.iter().map(|column| input(column)).collect(),
        p: output(&vec![0; len]),
        q: output(&vec![0; len]),
    };
    CpuParity::with_kernel("byte").unwrap().run_in_place(&mut job).unwrap();
    columns.push(content(&job.p));
    columns.push(content(&job.q));
    columns
}

/// A job of each kind over a stripe. `lost` are columns (data, then P, then Q) to recover.
pub(crate) fn recover(stripe: &[Vec<u8>], lost: &[usize]) -> ParityJob {
    let column = |i: usize| {
        if lost.contains(&i) { output(&vec![0xcc; stripe[i].len()]) } else { input(&stripe[i]) }
    };
    let k = stripe.len() - 2;
    job(ParityOp::Recover, (0..k).map(column).collect(), column(k), column(k + 1), stripe[0].len())
}

/// A job.
pub(crate) fn job(op: ParityOp, data: Vec<Column>, p: Column, q: Column, len: usize) -> ParityJob {
    ParityJob { op, len: u32::try_from(len).unwrap(), data, p, q }
}

/// An encode of the stripe's data into whichever of P and Q is wanted.
pub(crate) fn encode(stripe: &[Vec<u8>], wants: (bool, bool)) -> ParityJob {
    let len = stripe[0].len();
    let k = stripe.len() - 2;
    let parity = |wanted| if wanted { output(&vec![0xcc; len]) } else { Column::Absent };
    let data = stripe[..k].iter().map(|column| input(column)).collect();
    job(ParityOp::Encode, data, parity(wants.0), parity(wants.1), len)
}

/// A comparison of the stripe as it is.
pub(crate) fn check(stripe: &[Vec<u8>], op: ParityOp) -> ParityJob {
    let k = stripe.len() - 2;
    let data = stripe[..k].iter().map(|column| input(column)).collect();
    job(op, data, input(&stripe[k]), input(&stripe[k + 1]), stripe[0].len())
}

/// An update of data block `index` to `new`.
pub(crate) fn delta(stripe: &[Vec<u8>], index: u8, new: &[u8], with_q: bool) -> ParityJob {
    let k = stripe.len() - 2;
    let old = lease(&stripe[usize::from(index)]).share();
    let op = ParityOp::Delta { index: DataIndex(index), old, new: lease(new).share() };
    let q = if with_q { output(&stripe[k + 1]) } else { Column::Absent };
    job(op, Vec::new(), output(&stripe[k]), q, new.len())
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future on this thread, for at most half a minute.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut context = Context::from_waker(&waker);
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
        assert!(Instant::now() < end, "no answer within half a minute");
        std::thread::park_timeout(Duration::from_millis(100));
    }
}
