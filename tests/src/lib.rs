//! End-to-end tests live in `tests/tests/`; this library holds what they share: the daemon under test and its tools.
//!
//! A test owns a [`Lab`]: a folder, drives in it, and daemons that are killed and things mounted that are unmounted when
//! it goes out of scope, whether the test passed or not. What the daemon says is read as a script would read it, from
//! `-o json`; what it does to data is judged by the `stamps` crate and by other people's NBD clients.

pub mod bad_sectors;
pub mod browser;
pub mod check;
pub mod cli;
pub mod daemon;
pub mod drives;
pub mod faulty;
pub mod group;
pub mod http;
pub mod lab;
pub mod mount;
pub mod servants;
pub mod stamped;
pub mod tool;

pub use browser::Browser;
pub use cli::{Answer, Json};
pub use daemon::Daemon;
pub use group::StampedGroup;
pub use lab::Lab;
pub use stamped::Stamped;
