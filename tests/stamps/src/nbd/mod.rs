//! A plain blocking NBD client, written from the protocol document and nothing else.
//!
//! It is stricter than a useful client would be: a reply that brings a byte twice or not at all, an unknown cookie or a
//! chunk of the wrong size is an error, because its purpose is to find a server's faults. And it can be told to send what
//! no useful client sends (see [`Command`]), because servers must survive that.
//!
//! - [`Haggle`]: the handshake, option by option.
//! - [`Client`]: transmission: requests are pipelined, replies may come in any order.

mod client;
mod haggle;
mod wire;

pub use client::{Client, Cookie, Extent, Reply};
pub use haggle::{Export, Haggle, OptionReply};
pub use wire::{Command, Endpoint, Error, Socket, errno, flag, kind, opt, rep, transmission};

use std::time::Duration;

/// How to connect.
#[derive(Clone, Debug)]
pub struct Options {
    /// Name of the export; empty asks for the default one.
    pub export: String,
    /// Ask for structured replies.
    pub structured: bool,
    /// Metadata contexts to ask for, such as `base:allocation`; needs `structured`.
    pub contexts: Vec<String>,
    /// No answer for so long is an error, never a hang.
    pub timeout: Duration,
}

impl Options {
    /// The named export, structured replies, 60 seconds.
    #[must_use]
    pub fn export(name: &str) -> Self {
        Self {
            export: name.to_owned(),
            structured: true,
            contexts: Vec::new(),
            timeout: Duration::from_secs(60),
        }
    }
}
