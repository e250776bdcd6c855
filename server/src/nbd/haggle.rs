//! The handshake (fixed newstyle), as a machine that eats bytes and makes bytes: no I/O, no clock.
//!
//! Invariants: any input is answered or ends the connection, never panics; at most [`OPTION_BYTES_MAX`] of input are
//! kept, longer option data is skipped without being stored; a connection may haggle over at most [`OPTIONS_MAX`]
//! options, so that nobody haggles for ever; bytes after the one that ends the haggling are not consumed, they belong
//! to the transmission.
//!
//! Source: the NBD protocol document, "Newstyle negotiation" and "Option types".

use raid_core::units::{u64_of, usize_of_u32};

use super::wire::{self, Cursor, STRING_BYTES_MAX, handshake_flags, info, option, option_reply};

/// Longest option data we look at, in bytes: a name and a few hundred info requests or context queries.
pub const OPTION_BYTES_MAX: u32 = 16 * 1024;
/// Longest option data we skip, in bytes; a longer one ends the connection.
pub const OPTION_SKIP_BYTES_MAX: u32 = 4 * 1024 * 1024;
/// Options a connection may send.
pub const OPTIONS_MAX: u32 = 1000;
/// Names a LIST answers with, at most.
pub const NAMES_MAX: usize = 1000;

/// What a client is told about an export.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Described {
    /// Size in bytes.
    pub size_bytes: u64,
    /// Smallest and alignment of every request, in bytes.
    pub block_bytes: u32,
    /// Best request size: a power of two of at least a block and at most the largest payload, in bytes.
    pub preferred_bytes: u32,
    /// Whether writes are refused.
    pub is_read_only: bool,
}

impl Described {
    /// A description with the preferred size brought into what the protocol allows: the largest power of two that is
    /// not over `stripe_bytes`, at least 4096 (or the block) and at most the largest payload.
    #[must_use]
    pub fn new(size_bytes: u64, block_bytes: u32, stripe_bytes: u32, is_read_only: bool) -> Self {
        let floor = stripe_bytes.checked_ilog2().map_or(1, |log| 1_u32 << log);
        let preferred_bytes = floor.clamp(block_bytes.max(4096), wire::PAYLOAD_BYTES_MAX);
        Self { size_bytes, block_bytes, preferred_bytes, is_read_only }
    }

    /// The transmission flags of the export on a connection.
    #[must_use]
    pub fn flags(&self, has_structured_replies: bool) -> u16 {
        use wire::transmission_flags as flag;
        let mut flags = flag::HAS_FLAGS | flag::SEND_FLUSH | flag::SEND_FUA | flag::CAN_MULTI_CONN;
        if self.is_read_only {
            flags |= flag::READ_ONLY;
        } else {
            flags |= flag::SEND_TRIM | flag::SEND_WRITE_ZEROES | flag::SEND_FAST_ZERO;
        }
        if has_structured_replies {
            flags |= flag::SEND_DF;
        }
        flags
    }
}

/// What a client may choose from.
pub trait Catalog {
    /// The export a client means by `name`, under its canonical name. The empty name is the default export.
    fn find(&self, name: &str) -> Option<(String, Described)>;

    /// All canonical names.
    fn names(&self) -> Vec<String>;
}

/// What both sides agreed on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Agreed {
    /// Canonical name of the export.
    pub export: String,
    /// What the client was told of it.
    pub described: Described,
    /// Reads are answered with structured replies.
    pub has_structured_replies: bool,
    /// The client chose `base:allocation` for this export.
    pub has_allocation: bool,
}

/// Why the haggling ended without an agreement.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Ended {
    /// The client asked to end.
    #[error("the client ended the handshake")]
    Aborted,
    /// Flags we do not know.
    #[error("unknown client flags {0:#x}")]
    ClientFlags(u32),
    /// Not an option.
    #[error("bad option magic {0:#x}: the client does not speak fixed newstyle NBD")]
    Magic(u64),
    /// Option data beyond the bound.
    #[error("option {option} with {len} bytes of data; at most {OPTION_SKIP_BYTES_MAX} are skipped")]
    TooBig {
        /// The option.
        option: u32,
        /// Its length.
        len: u32,
    },
    /// Too many options.
    #[error("more than {OPTIONS_MAX} options in one handshake")]
    TooMany,
    /// `EXPORT_NAME` with a name we do not have, or an option before fixed newstyle was agreed on: both can only be
    /// answered by closing.
    #[error("no way to answer option {0} but to close")]
    Unanswerable(u32),
}

/// Where the haggling is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Progress {
    /// More input is needed.
    More,
    /// Serve this.
    Agreed(Agreed),
    /// Send what there is and close.
    Ended(Ended),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    ClientFlags,
    Header,
    Data { option: u32, len: u32 },
    Skip { option: u32, left: u32, answer: u32 },
    Over,
}

/// The machine. [`Self::take_output`] gives the greeting before the first byte is fed.
#[derive(Debug)]
pub struct Haggle {
    state: State,
    input: Vec<u8>,
    output: Vec<u8>,
    options: u32,
    is_fixed: bool,
    has_no_zeroes: bool,
    has_structured_replies: bool,
    /// The export (canonical name) that `base:allocation` was chosen for.
    allocation_of: Option<String>,
}

impl Default for Haggle {
    fn default() -> Self {
        Self::new()
    }
}

impl Haggle {
    /// A new handshake; the greeting is the first output.
    #[must_use]
    pub fn new() -> Self {
        let mut output = Vec::with_capacity(256);
        output.extend_from_slice(&wire::GREETING_MAGIC.to_be_bytes());
        output.extend_from_slice(&wire::OPTION_MAGIC.to_be_bytes());
        let flags = handshake_flags::FIXED_NEWSTYLE | handshake_flags::NO_ZEROES;
        output.extend_from_slice(&flags.to_be_bytes());
        Self {
            state: State::ClientFlags,
            input: Vec::new(),
            output,
            options: 0,
            is_fixed: false,
            has_no_zeroes: false,
            has_structured_replies: false,
            allocation_of: None,
        }
    }

    /// What is to be sent now.
    pub fn take_output(&mut self) -> Vec<u8> {
        core::mem::take(&mut self.output)
    }

    /// Eats input; returns how much of it and where that leads. Stops early only when the haggling is over, or to let
    /// the caller send what has piled up (then it says `More` with input left over: send and call again).
    pub fn feed(&mut self, bytes: &[u8], catalog: &impl Catalog) -> (usize, Progress) {
        let mut used = 0;
        loop {
            let rest = &bytes[used..];
            if let State::Skip { option, left, answer } = self.state {
                let n = rest.len().min(usize_of_u32(left));
                used += n;
                let left = left - u32::try_from(n).expect("at most left");
                if left > 0 {
                    self.state = State::Skip { option, left, answer };
                    return (used, Progress::More);
                }
                self.state = State::Header;
                self.reply(option, answer, &[]);
                continue;
            }
            // A pile of unsent replies is bounded by letting the caller send.
            if self.output.len() > usize_of_u32(OPTION_BYTES_MAX) && !rest.is_empty() {
                return (used, Progress::More);
            }
            let want = self.wanted();
            let n = rest.len().min(want - self.input.len());
            self.input.extend_from_slice(&rest[..n]);
            used += n;
            if self.input.len() < want {
                return (used, Progress::More);
            }
            let input = core::mem::take(&mut self.input);
            match self.step(&input, catalog) {
                Progress::More => {}
                over => {
                    self.state = State::Over;
                    return (used, over);
                }
            }
        }
    }

    /// Bytes the current state needs.
    fn wanted(&self) -> usize {
        match self.state {
            State::ClientFlags => 4,
            State::Header => 16,
            State::Data { len, .. } => usize_of_u32(len),
            State::Skip { .. } => unreachable!("skipping keeps nothing"),
            State::Over => panic!("input fed to a handshake that is over"),
        }
    }

    fn step(&mut self, input: &[u8], catalog: &impl Catalog) -> Progress {
        let mut cursor = Cursor(input);
        match self.state {
            State::ClientFlags => {
                let flags = cursor.u32().expect("four bytes");
                let known = u32::from(handshake_flags::FIXED_NEWSTYLE | handshake_flags::NO_ZEROES);
                if flags & !known != 0 {
                    return Progress::Ended(Ended::ClientFlags(flags));
                }
                self.is_fixed = flags & u32::from(handshake_flags::FIXED_NEWSTYLE) != 0;
                self.has_no_zeroes = flags & u32::from(handshake_flags::NO_ZEROES) != 0;
                self.state = State::Header;
                Progress::More
            }
            State::Header => {
                let magic = cursor.u64().expect("sixteen bytes");
                let option = cursor.u32().expect("sixteen bytes");
                let len = cursor.u32().expect("sixteen bytes");
                self.header(magic, option, len)
            }
            State::Data { option, .. } => {
                self.state = State::Header;
                self.option(option, input, catalog)
            }
            State::Skip { .. } | State::Over => unreachable!("handled by the caller"),
        }
    }

    fn header(&mut self, magic: u64, option: u32, len: u32) -> Progress {
        if magic != wire::OPTION_MAGIC {
            return Progress::Ended(Ended::Magic(magic));
        }
        self.options += 1;
        if self.options > OPTIONS_MAX {
            return Progress::Ended(Ended::TooMany);
        }
        if !self.is_fixed && option != option::EXPORT_NAME {
            return Progress::Ended(Ended::Unanswerable(option));
        }
        if len > OPTION_SKIP_BYTES_MAX {
            return Progress::Ended(Ended::TooBig { option, len });
        }
        let answer = match option {
            option::EXPORT_NAME if len > STRING_BYTES_MAX => {
                return Progress::Ended(Ended::Unanswerable(option));
            }
            option::EXPORT_NAME => None,
            option::LIST | option::STRUCTURED_REPLY | option::STARTTLS if len > 0 => {
                Some(option_reply::ERR_INVALID)
            }
            option::ABORT
            | option::LIST
            | option::STRUCTURED_REPLY
            | option::INFO
            | option::GO
            | option::LIST_META_CONTEXT
            | option::SET_META_CONTEXT
                if len <= OPTION_BYTES_MAX =>
            {
                None
            }
            option::ABORT
            | option::INFO
            | option::GO
            | option::LIST_META_CONTEXT
            | option::SET_META_CONTEXT => Some(option_reply::ERR_TOO_BIG),
            // We have no TLS, and none is needed: sockets are local and guarded by their mode.
            option::STARTTLS => Some(option_reply::ERR_POLICY),
            _ => Some(option_reply::ERR_UNSUP),
        };
        self.state = match answer {
            Some(answer) => State::Skip { option, left: len, answer },
            None => State::Data { option, len },
        };
        Progress::More
    }

    fn option(&mut self, option: u32, data: &[u8], catalog: &impl Catalog) -> Progress {
        match option {
            option::EXPORT_NAME => return self.export_name(data, catalog),
            option::ABORT => {
                self.reply(option, option_reply::ACK, &[]);
                return Progress::Ended(Ended::Aborted);
            }
            option::LIST => self.list(catalog),
            option::STRUCTURED_REPLY => {
                self.has_structured_replies = true;
                self.reply(option, option_reply::ACK, &[]);
            }
            option::INFO | option::GO => {
                if let Some(agreed) = self.info(option, data, catalog) {
                    return Progress::Agreed(agreed);
                }
            }
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => {
                self.meta_context(option, data, catalog);
            }
            _ => unreachable!("only known options are kept"),
        }
        Progress::More
    }

    fn agreed(&self, name: String, described: Described) -> Agreed {
        Agreed {
            // The contexts were chosen for one export; with another one they mean nothing.
            has_allocation: self.allocation_of.as_ref() == Some(&name),
            export: name,
            described,
            has_structured_replies: self.has_structured_replies,
        }
    }

    fn export_name(&mut self, name: &[u8], catalog: &impl Catalog) -> Progress {
        let found = core::str::from_utf8(name).ok().and_then(|name| catalog.find(name));
        let Some((name, described)) = found else {
            return Progress::Ended(Ended::Unanswerable(option::EXPORT_NAME));
        };
        self.output.extend_from_slice(&described.size_bytes.to_be_bytes());
        self.output.extend_from_slice(&described.flags(self.has_structured_replies).to_be_bytes());
        if !self.has_no_zeroes {
            self.output.extend_from_slice(&[0; 124]);
        }
        Progress::Agreed(self.agreed(name, described))
    }

    fn list(&mut self, catalog: &impl Catalog) {
        for name in catalog.names().into_iter().take(NAMES_MAX) {
            let len = u32::try_from(name.len()).expect("names are short");
            let mut data = len.to_be_bytes().to_vec();
            data.extend_from_slice(name.as_bytes());
            self.reply(option::LIST, option_reply::SERVER, &data);
        }
        self.reply(option::LIST, option_reply::ACK, &[]);
    }

    /// INFO and GO; an agreement comes of a GO that succeeds.
    fn info(&mut self, option: u32, data: &[u8], catalog: &impl Catalog) -> Option<Agreed> {
        let Some((name, wants)) = parse_info(data) else {
            self.error(option, option_reply::ERR_INVALID, "malformed export name or information requests");
            return None;
        };
        let (name, described) = self.find(option, name, catalog)?;
        let mut data = info::EXPORT.to_be_bytes().to_vec();
        data.extend_from_slice(&described.size_bytes.to_be_bytes());
        data.extend_from_slice(&described.flags(self.has_structured_replies).to_be_bytes());
        self.reply(option, option_reply::INFO, &data);

        // Sent to everybody: a client that did not ask can only gain by knowing the alignment.
        let mut data = info::BLOCK_SIZE.to_be_bytes().to_vec();
        for bytes in [described.block_bytes, described.preferred_bytes, wire::PAYLOAD_BYTES_MAX] {
            data.extend_from_slice(&bytes.to_be_bytes());
        }
        self.reply(option, option_reply::INFO, &data);

        if wants.name {
            let mut data = info::NAME.to_be_bytes().to_vec();
            data.extend_from_slice(name.as_bytes());
            self.reply(option, option_reply::INFO, &data);
        }
        if wants.description {
            let mut data = info::DESCRIPTION.to_be_bytes().to_vec();
            data.extend_from_slice(b"warpraid virtual disk");
            self.reply(option, option_reply::INFO, &data);
        }
        self.reply(option, option_reply::ACK, &[]);
        (option == option::GO).then(|| self.agreed(name, described))
    }

    fn meta_context(&mut self, option: u32, data: &[u8], catalog: &impl Catalog) {
        if option == option::SET_META_CONTEXT {
            // A choice replaces the one before, also when it fails.
            self.allocation_of = None;
        }
        if !self.has_structured_replies {
            self.error(option, option_reply::ERR_INVALID, "structured replies come first");
            return;
        }
        let Some((name, queries)) = parse_contexts(data) else {
            self.error(option, option_reply::ERR_INVALID, "malformed metadata context queries");
            return;
        };
        let Some((name, _)) = self.find(option, name, catalog) else { return };
        let is_list = option == option::LIST_META_CONTEXT;
        let is_chosen = queries
            .iter()
            .any(|query| *query == wire::ALLOCATION_CONTEXT || (is_list && *query == b"base:".as_slice()));
        if is_chosen || (is_list && queries.is_empty()) {
            // A list carries no numbers that mean anything: the protocol says 0.
            let id = if is_list { 0 } else { wire::ALLOCATION_CONTEXT_ID };
            let mut data = id.to_be_bytes().to_vec();
            data.extend_from_slice(wire::ALLOCATION_CONTEXT);
            self.reply(option, option_reply::META_CONTEXT, &data);
            if !is_list {
                self.allocation_of = Some(name);
            }
        }
        self.reply(option, option_reply::ACK, &[]);
    }

    /// The export of this name, or `None` after answering that there is none.
    fn find(&mut self, option: u32, name: &[u8], catalog: &impl Catalog) -> Option<(String, Described)> {
        if u64_of(name.len()) > u64::from(STRING_BYTES_MAX) {
            self.error(option, option_reply::ERR_TOO_BIG, "export names have at most 4096 bytes");
            return None;
        }
        let found = core::str::from_utf8(name).ok().and_then(|name| catalog.find(name));
        if found.is_none() {
            self.error(option, option_reply::ERR_UNKNOWN, "no such export here; LIST names those there are");
        }
        found
    }

    fn error(&mut self, option: u32, error: u32, message: &str) {
        self.reply(option, error, message.as_bytes());
    }

    fn reply(&mut self, option: u32, kind: u32, data: &[u8]) {
        self.output.extend_from_slice(&wire::OPTION_REPLY_MAGIC.to_be_bytes());
        self.output.extend_from_slice(&option.to_be_bytes());
        self.output.extend_from_slice(&kind.to_be_bytes());
        let len = u32::try_from(data.len()).expect("replies are short");
        self.output.extend_from_slice(&len.to_be_bytes());
        self.output.extend_from_slice(data);
    }
}

#[derive(Clone, Copy, Default)]
struct Wants {
    name: bool,
    description: bool,
}

/// Name and information requests of an INFO or a GO; `None` if the lengths do not add up.
fn parse_info(data: &[u8]) -> Option<(&[u8], Wants)> {
    let mut cursor = Cursor(data);
    let name = cursor.string()?;
    let n = cursor.u16()?;
    let mut wants = Wants::default();
    for _ in 0..n {
        match cursor.u16()? {
            info::NAME => wants.name = true,
            info::DESCRIPTION => wants.description = true,
            _ => {}
        }
    }
    cursor.0.is_empty().then_some((name, wants))
}

/// Name and queries of a LIST_META_CONTEXT or SET_META_CONTEXT; `None` if the lengths do not add up.
fn parse_contexts(data: &[u8]) -> Option<(&[u8], Vec<&[u8]>)> {
    let mut cursor = Cursor(data);
    let name = cursor.string()?;
    let n = cursor.u32()?;
    // Each query has at least its length, so the data bounds the list whatever the count says.
    let mut queries = Vec::new();
    for _ in 0..n {
        queries.push(cursor.string()?);
    }
    cursor.0.is_empty().then_some((name, queries))
}
