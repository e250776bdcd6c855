//! Measured claims: micro, engine and end-to-end benchmarks, and the check of their records against floors.toml.
//!
//! A benchmark binary measures (`measure`), summarises (`stats`) and writes a record (`record`); `check` compares records
//! with `floors.toml` (`floors`). Nothing here runs in CI: speed is gated by recorded runs.

pub mod clock;
pub mod floors;
pub mod measure;
pub mod record;
pub mod stats;
