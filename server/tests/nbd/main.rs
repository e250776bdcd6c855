//! The front ends. NBD: its protocol alone, whole sessions over a pipe, and real clients; ublk: a tag's task. One program,
//! so that what all of it is made of is compiled once.

mod clients;
mod codec;
mod common;
mod fences;
mod session;
mod ublk;
