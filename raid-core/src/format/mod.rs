//! What lies on the drives, as plain codecs over byte slices: no I/O here.
//!
//! Data layout, superblock, bitmap and bad-block log are Linux md's, metadata 1.2; the extension area and the anchor are
//! ours. `docs/on-disk-format.md` has the byte tables. Every decoder takes any bytes without panicking, because what is
//! on a drive is nobody's promise.

pub mod adopt;
pub mod anchor;
pub mod bad_blocks;
pub mod bitmap;
pub mod bytes;
pub mod examine;
pub mod extension;
pub mod gpt;
pub mod plan;
pub mod probe;
pub mod sums;
pub mod superblock;
