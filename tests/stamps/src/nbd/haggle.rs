//! The handshake: fixed newstyle, option by option, in whatever order the caller likes.

use std::io::Write as _;

use super::wire::{Endpoint, Error, IHAVEOPT, NBDMAGIC, REPLY_MAGIC, Socket, opt, rep};
use super::{Client, Options};

const FIXED_NEWSTYLE: u16 = 1;
const NO_ZEROES: u16 = 2;
const INFO_EXPORT: u16 = 0;
const INFO_NAME: u16 = 1;
const INFO_DESCRIPTION: u16 = 2;
const INFO_BLOCK_SIZE: u16 = 3;

/// What the server says of an export.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Export {
    /// Size in bytes.
    pub size_bytes: u64,
    /// Transmission flags, see [`super::transmission`].
    pub flags: u16,
    /// Minimum, preferred and maximum block size in bytes, if the server told them.
    pub block_bytes: Option<[u32; 3]>,
    /// The canonical name, if told.
    pub name: Option<String>,
    /// The description, if told.
    pub description: Option<String>,
}

/// One reply to an option.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OptionReply {
    /// The option it answers.
    pub option: u32,
    /// Reply type, see [`rep`].
    pub kind: u32,
    /// Payload.
    pub data: Vec<u8>,
}

impl OptionReply {
    /// Whether another reply to the same option follows.
    #[must_use]
    pub const fn is_last(&self) -> bool {
        self.kind == rep::ACK || self.kind & rep::ERR != 0
    }
}

/// A connection in the handshake.
#[derive(Debug)]
pub struct Haggle {
    socket: Socket,
    /// Structured replies were agreed on.
    structured: bool,
}

impl Haggle {
    /// Connects, reads the greeting and sends the client's flags.
    pub fn open(endpoint: &Endpoint, timeout: std::time::Duration) -> Result<Self, Error> {
        let mut socket = endpoint.open(timeout)?;
        let (magic, version) = (socket.read_u64()?, socket.read_u64()?);
        if (magic, version) != (NBDMAGIC, IHAVEOPT) {
            return Err(Error::Protocol(format!("greeting {magic:#x} {version:#x}")));
        }
        let flags = socket.read_u16()?;
        if flags & FIXED_NEWSTYLE == 0 {
            return Err(Error::Protocol("not a fixed newstyle server".to_owned()));
        }
        socket.write_all(&u32::from(flags & (FIXED_NEWSTYLE | NO_ZEROES)).to_be_bytes())?;
        Ok(Self { socket, structured: false })
    }

    /// The socket, for what only a test sends.
    pub const fn socket(&mut self) -> &mut Socket {
        &mut self.socket
    }

    /// The bytes of an option, to be sent whole or in pieces.
    #[must_use]
    pub fn option_bytes(option: u32, data: &[u8]) -> Vec<u8> {
        let mut bytes = IHAVEOPT.to_be_bytes().to_vec();
        bytes.extend(option.to_be_bytes());
        bytes.extend(u32::try_from(data.len()).expect("below 4 GiB").to_be_bytes());
        bytes.extend(data);
        bytes
    }

    /// Payload of INFO and GO: the name, no information requests.
    #[must_use]
    pub fn info_data(export: &str) -> Vec<u8> {
        let mut data = u32::try_from(export.len()).expect("below 4 GiB").to_be_bytes().to_vec();
        data.extend(export.as_bytes());
        data.extend(1_u16.to_be_bytes());
        data.extend(INFO_BLOCK_SIZE.to_be_bytes());
        data
    }

    /// Payload of the two META_CONTEXT options.
    #[must_use]
    pub fn context_data(export: &str, contexts: &[String]) -> Vec<u8> {
        let length = |n: usize| u32::try_from(n).expect("below 4 GiB").to_be_bytes();
        let mut data = length(export.len()).to_vec();
        data.extend(export.as_bytes());
        data.extend(length(contexts.len()));
        for context in contexts {
            data.extend(length(context.len()));
            data.extend(context.as_bytes());
        }
        data
    }

    /// Sends an option and reads its replies up to the last; an error reply is the last of the list, not an `Err`.
    pub fn option(&mut self, option: u32, data: &[u8]) -> Result<Vec<OptionReply>, Error> {
        self.socket.write_all(&Self::option_bytes(option, data))?;
        let mut replies = Vec::new();
        loop {
            let reply = self.reply()?;
            if reply.option != option {
                return Err(Error::Protocol(format!("reply to option {} for {option}", reply.option)));
            }
            let last = reply.is_last();
            replies.push(reply);
            if last {
                if option == opt::STRUCTURED_REPLY && replies[replies.len() - 1].kind == rep::ACK {
                    self.structured = true;
                }
                return Ok(replies);
            }
        }
    }

    /// Reads one reply.
    pub fn reply(&mut self) -> Result<OptionReply, Error> {
        let magic = self.socket.read_u64()?;
        if magic != REPLY_MAGIC {
            return Err(Error::Protocol(format!("option reply magic {magic:#x}")));
        }
        let (option, kind, length) =
            (self.socket.read_u32()?, self.socket.read_u32()?, self.socket.read_u32()?);
        if length > 1 << 20 {
            return Err(Error::Protocol(format!("option reply of {length} bytes")));
        }
        Ok(OptionReply { option, kind, data: self.socket.read_vec(length)? })
    }

    /// Like [`Haggle::option`], where anything but an acknowledgement is an error.
    pub fn must(&mut self, option: u32, data: &[u8]) -> Result<Vec<OptionReply>, Error> {
        let mut replies = self.option(option, data)?;
        let last = replies.pop().expect("the list ends with its last reply");
        if last.kind == rep::ACK {
            return Ok(replies);
        }
        let message = String::from_utf8_lossy(&last.data).into_owned();
        Err(Error::Refused { option, reply: last.kind, message })
    }

    /// The names of all exports.
    pub fn list(&mut self) -> Result<Vec<String>, Error> {
        let replies = self.must(opt::LIST, &[])?;
        replies.iter().map(|reply| list_name(&reply.data)).collect()
    }

    /// What the server says of `export`, without entering transmission.
    pub fn info(&mut self, export: &str) -> Result<Export, Error> {
        parse_export(&self.must(opt::INFO, &Self::info_data(export))?)
    }

    /// Agrees on what `options` ask for and enters transmission.
    pub fn go(mut self, options: &Options) -> Result<Client, Error> {
        if options.structured && !self.structured {
            self.must(opt::STRUCTURED_REPLY, &[])?;
        }
        let mut contexts = Vec::new();
        if !options.contexts.is_empty() {
            let data = Self::context_data(&options.export, &options.contexts);
            for reply in self.must(opt::SET_META_CONTEXT, &data)? {
                let (id, name) = reply
                    .data
                    .split_at_checked(4)
                    .ok_or_else(|| Error::Protocol("short META_CONTEXT".to_owned()))?;
                let id = u32::from_be_bytes(id.try_into().expect("four bytes"));
                contexts.push((id, String::from_utf8_lossy(name).into_owned()));
            }
        }
        let export = parse_export(&self.must(opt::GO, &Self::info_data(&options.export))?)?;
        Client::start(self.socket, export, contexts, self.structured)
    }

    /// Says good-bye and waits for the server's.
    pub fn abort(mut self) -> Result<(), Error> {
        self.must(opt::ABORT, &[])?;
        Ok(())
    }
}

fn list_name(data: &[u8]) -> Result<String, Error> {
    let short = || Error::Protocol("short LIST reply".to_owned());
    let (length, rest) = data.split_at_checked(4).ok_or_else(short)?;
    let length = u32::from_be_bytes(length.try_into().expect("four bytes"));
    let name = rest.get(..usize::try_from(length).expect("64-bit")).ok_or_else(short)?;
    Ok(String::from_utf8_lossy(name).into_owned())
}

fn parse_export(replies: &[OptionReply]) -> Result<Export, Error> {
    let bad = |data: &[u8]| Error::Protocol(format!("information reply {data:02x?}"));
    let mut export = None;
    let mut rest = Export::default();
    for OptionReply { data, .. } in replies {
        let (kind, body) = data.split_at_checked(2).ok_or_else(|| bad(data))?;
        let text = || Some(String::from_utf8_lossy(body).into_owned());
        match u16::from_be_bytes(kind.try_into().expect("two bytes")) {
            INFO_EXPORT => {
                let body: &[u8; 10] = body.try_into().map_err(|_| bad(data))?;
                let size = u64::from_be_bytes(body[..8].try_into().expect("eight bytes"));
                export = Some((size, u16::from_be_bytes(body[8..].try_into().expect("two bytes"))));
            }
            INFO_NAME => rest.name = text(),
            INFO_DESCRIPTION => rest.description = text(),
            INFO_BLOCK_SIZE => {
                let body: &[u8; 12] = body.try_into().map_err(|_| bad(data))?;
                let (words, _) = body.as_chunks::<4>();
                let word = |i: usize| u32::from_be_bytes(words[i]);
                rest.block_bytes = Some([word(0), word(1), word(2)]);
            }
            _ => {}
        }
    }
    let (size_bytes, flags) = export.ok_or_else(|| Error::Protocol("no EXPORT information".to_owned()))?;
    Ok(Export { size_bytes, flags, ..rest })
}
