//! NBD: disks served to anyone who speaks the protocol (fixed newstyle), over unix sockets and loopback TCP.
//!
//! From the wire inwards: [`wire`] numbers and layouts, [`haggle`] the handshake, [`check`] what a request may do (all
//! three without I/O), [`transport`] the byte stream, [`session`] one connection, [`clients`] all connections of an export
//! and the fence between them, [`address`] where to listen, [`server`] listening and handing connections to lanes.

pub mod address;
pub mod check;
pub mod clients;
pub mod haggle;
mod large_read;
mod outbox;
pub mod server;
pub mod session;
pub(crate) mod sync;
pub mod transport;
pub mod wire;

pub use outbox::Limits;
