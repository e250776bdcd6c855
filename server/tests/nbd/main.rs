//! The NBD front end: its protocol alone, whole sessions over a pipe, and real clients. One program, so that what all of it
//! is made of is compiled once.

mod clients;
mod codec;
mod common;
mod fences;
mod session;
