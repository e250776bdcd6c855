//! A disk that counts what its clients do.

use std::sync::Arc;

use nvme_backend::Lane;
use nvme_backend::meter::{self, IoOp, LaneMeters, Metered};
use raid_core::lease::{Leases, Segs, leases_len, segs_len};
use raid_core::ports::{Done, Durability, IoError};
use raid_core::units::BlockSize;

use crate::disk::Export;

/// The meters of one disk, a set for each lane.
#[derive(Debug)]
pub struct DiskMeters(Vec<Arc<LaneMeters>>);

impl DiskMeters {
    /// Meters for so many lanes.
    #[must_use]
    pub fn new(lanes: usize) -> Self {
        Self((0..lanes).map(|_| Arc::default()).collect())
    }

    /// Those of one lane, for an export that lives on it.
    #[must_use]
    pub fn of_lane(&self, lane: &Lane) -> Option<Arc<LaneMeters>> {
        self.0.get(usize::from(lane.id().0)).cloned()
    }

    /// What all lanes counted.
    #[must_use]
    pub fn metered(&self, op: IoOp) -> Metered {
        meter::sum(self.0.iter().map(|lane| &**lane), op)
    }
}

/// An export whose operations are counted, with the time of the lane's rounds.
#[derive(Clone)]
pub struct MeteredExport<X> {
    inner: X,
    lane: Lane,
    meters: Arc<LaneMeters>,
}

impl<X> MeteredExport<X> {
    /// Counts what is done to `inner` on this lane.
    pub fn new(inner: X, lane: &Lane, meters: Arc<LaneMeters>) -> Self {
        Self { inner, lane: lane.clone(), meters }
    }

    fn record(&self, op: IoOp, began_ns: u64, bytes: u64, is_ok: bool) {
        self.meters.of(op).record(self.lane.round_ns().saturating_sub(began_ns), bytes, is_ok);
    }
}

impl<X: Export> Export for MeteredExport<X> {
    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn block_size(&self) -> BlockSize {
        self.inner.block_size()
    }

    fn preferred_bytes(&self) -> u32 {
        self.inner.preferred_bytes()
    }

    fn is_read_only(&self) -> bool {
        self.inner.is_read_only()
    }

    fn pieces(&self, at: u64, len: u32) -> impl Iterator<Item = u32> {
        self.inner.pieces(at, len)
    }

    fn window(&self, at: u64, len: u32) -> u32 {
        self.inner.window(at, len)
    }

    fn lease(&self, sizes: &[u32]) -> impl Future<Output = Leases> {
        self.inner.lease(sizes)
    }

    async fn read(&self, at: u64, into: Leases) -> Done<Leases> {
        let (began_ns, bytes) = (self.lane.round_ns(), leases_len(&into));
        let done = self.inner.read(at, into).await;
        self.record(IoOp::Read, began_ns, bytes, done.result.is_ok());
        done
    }

    async fn write(&self, at: u64, from: Segs, how: Durability) -> Result<(), IoError> {
        let (began_ns, bytes) = (self.lane.round_ns(), segs_len(&from));
        let result = self.inner.write(at, from, how).await;
        self.record(IoOp::Write, began_ns, bytes, result.is_ok());
        result
    }

    async fn zero(&self, at: u64, len: u64, unmap: bool, how: Durability) -> Result<(), IoError> {
        let began_ns = self.lane.round_ns();
        let result = self.inner.zero(at, len, unmap, how).await;
        self.record(IoOp::Zero, began_ns, len, result.is_ok());
        result
    }

    async fn flush(&self) -> Result<(), IoError> {
        let began_ns = self.lane.round_ns();
        let result = self.inner.flush().await;
        self.record(IoOp::Flush, began_ns, 0, result.is_ok());
        result
    }
}
