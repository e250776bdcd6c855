//! The device port: what the engine needs of a GPU, and what a mock has to be like.

use core::fmt;
use std::sync::Arc;

use crate::descriptor::Batch;

/// What a device could not do, in the driver's words. Any error makes the engine leave the device alone: after many of
/// them CUDA answers nothing but errors until its context is made anew.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceError(pub String);

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for DeviceError {}

/// Output memory of one stream: what a finished batch has written.
pub trait Outputs: Send + Sync {
    /// The bytes at `at`, as many as `len`.
    fn bytes(&self, at: u32, len: u32) -> &[u8];

    /// The result words, one for each job.
    fn result(&self, job: usize) -> u32;
}

/// How large batches may be.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limits {
    /// Batches in flight at a time.
    pub streams: usize,
    /// Jobs of one batch.
    pub jobs: usize,
    /// Data columns of one batch.
    pub columns: usize,
    /// Bytes of output of one batch.
    pub out_bytes: u32,
}

/// One GPU, opened. Dropped, it gives back all it had; what it was working on is lost.
///
/// A stream is used by one batch at a time: `start`, then `wait`, then the outputs are read until the stream is started
/// again.
pub trait Device: Send + Sync {
    /// What it is called, for people.
    fn name(&self) -> &str;

    /// How large batches may be.
    fn limits(&self) -> Limits;

    /// Lets the device read the memory at `start`, a page's multiple of `len` bytes of this process that stay mapped for as
    /// long as the device lives.
    ///
    /// # Errors
    /// If it cannot; jobs in that memory are then none for it.
    fn register(&self, start: usize, len: usize) -> Result<(), DeviceError>;

    /// Ends what [`Device::register`] began.
    ///
    /// # Errors
    /// If it cannot.
    fn unregister(&self, start: usize) -> Result<(), DeviceError>;

    /// Begins a batch on a stream.
    ///
    /// # Errors
    /// If it could not be begun.
    fn start(&self, stream: usize, batch: &Batch) -> Result<(), DeviceError>;

    /// Waits until the batch of a stream is done: as long as the device takes, for ever if it hangs.
    ///
    /// # Errors
    /// If it failed.
    fn wait(&self, stream: usize) -> Result<(), DeviceError>;

    /// What the last batch of a stream wrote.
    fn outputs(&self, stream: usize) -> Arc<dyn Outputs>;
}
