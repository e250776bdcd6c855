//! Measured claims: micro, engine and end-to-end benchmarks, and the check of their records against floors.toml.
//!
//! A benchmark binary measures (`measure`), summarises (`stats`) and writes a record (`record`); `check` compares records
//! with `floors.toml` (`floors`). `load`, `scratch`, `detail`, `outlier`, `report` and `compare` are what `warpraid bench` is
//! made of: a load generator that verifies, and what is said of its results. Nothing here runs in CI: speed is gated by recorded runs, made on an idle machine:
//!
//! ```text
//! cargo build --release
//! cargo run --release -p warpraid-benches --bin parity -- --out benches/record/parity.json
//! cargo run --release -p warpraid-benches --bin engine -- --out benches/record/engine.json
//! cargo run --release -p warpraid-benches --bin nbd -- --out benches/record/nbd.json
//! cargo run --release -p warpraid-benches --bin check -- --complete benches/record/*.json
//! ```

pub mod clock;
pub mod compare;
pub mod detail;
pub mod floors;
pub mod load;
pub mod measure;
pub mod outlier;
pub mod parity;
pub mod record;
pub mod report;
pub mod scratch;
pub mod stats;
pub mod world;
