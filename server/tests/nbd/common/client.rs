//! A client that says exactly what it is told to.

use std::io;

use raid_core::units::{u64_of, usize_of_u32};
use server::nbd::wire::{self, Cursor, Request, option, option_reply};

use super::pipe::End;

/// A reply: cookie, error number (0 is success), data with where it belongs, and extents of block status.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct Reply {
    pub(crate) cookie: u64,
    pub(crate) error: u32,
    pub(crate) data: Vec<(u64, Vec<u8>)>,
    pub(crate) extents: Vec<(u32, u32)>,
}

/// What the handshake told.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(crate) struct Told {
    pub(crate) size: u64,
    pub(crate) flags: u16,
    pub(crate) blocks: (u32, u32, u32),
}

pub(crate) struct TestClient {
    pub(crate) end: End,
    pub(crate) is_structured: bool,
    pub(crate) told: Told,
    next: u64,
}

/// An option as it goes over the wire.
pub(crate) fn option_bytes(number: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = wire::OPTION_MAGIC.to_be_bytes().to_vec();
    bytes.extend_from_slice(&number.to_be_bytes());
    bytes.extend_from_slice(&u32::try_from(data.len()).unwrap().to_be_bytes());
    bytes.extend_from_slice(data);
    bytes
}

pub(crate) fn string(text: &[u8]) -> Vec<u8> {
    let mut bytes = u32::try_from(text.len()).unwrap().to_be_bytes().to_vec();
    bytes.extend_from_slice(text);
    bytes
}

/// Data of a GO or INFO.
pub(crate) fn go_data(name: &[u8], wants: &[u16]) -> Vec<u8> {
    let mut bytes = string(name);
    bytes.extend_from_slice(&u16::try_from(wants.len()).unwrap().to_be_bytes());
    for want in wants {
        bytes.extend_from_slice(&want.to_be_bytes());
    }
    bytes
}

/// Data of a metadata context option.
pub(crate) fn context_data(name: &[u8], queries: &[&[u8]]) -> Vec<u8> {
    let mut bytes = string(name);
    bytes.extend_from_slice(&u32::try_from(queries.len()).unwrap().to_be_bytes());
    for query in queries {
        bytes.extend_from_slice(&string(query));
    }
    bytes
}

impl TestClient {
    /// Shakes hands and chooses the default export; `base:allocation` with structured replies.
    pub(crate) async fn connect(end: End, is_structured: bool) -> io::Result<Self> {
        let greeting = end.get(18).await?;
        assert_eq!(&greeting[..16], b"NBDMAGICIHAVEOPT");
        end.put(&3_u32.to_be_bytes()).await?;
        let mut client = Self { end, is_structured, told: Told::default(), next: 1 };
        if is_structured {
            client.option(option::STRUCTURED_REPLY, &[]).await?;
            client.option(option::SET_META_CONTEXT, &context_data(b"", &[b"base:allocation"])).await?;
        }
        for (kind, data) in client.option(option::GO, &go_data(b"", &[])).await? {
            let mut cursor = Cursor(&data);
            match (kind, cursor.u16()) {
                (option_reply::INFO, Some(wire::info::EXPORT)) => {
                    client.told.size = cursor.u64().unwrap();
                    client.told.flags = cursor.u16().unwrap();
                }
                (option_reply::INFO, Some(wire::info::BLOCK_SIZE)) => {
                    let mut next = || cursor.u32().unwrap();
                    client.told.blocks = (next(), next(), next());
                }
                (option_reply::ACK, _) => {}
                other => panic!("unexpected {other:?}"),
            }
        }
        Ok(client)
    }

    /// Sends an option and takes its replies up to the last one.
    pub(crate) async fn option(&self, number: u32, data: &[u8]) -> io::Result<Vec<(u32, Vec<u8>)>> {
        self.end.put(&option_bytes(number, data)).await?;
        let mut replies = Vec::new();
        loop {
            let head = self.end.get(20).await?;
            let mut cursor = Cursor(&head);
            assert_eq!(cursor.u64(), Some(wire::OPTION_REPLY_MAGIC));
            assert_eq!(cursor.u32(), Some(number));
            let kind = cursor.u32().unwrap();
            let data = self.end.get(usize_of_u32(cursor.u32().unwrap())).await?;
            replies.push((kind, data));
            if kind == option_reply::ACK || kind & 0x8000_0000 != 0 {
                return Ok(replies);
            }
        }
    }

    /// Sends a request and its payload; returns its cookie.
    pub(crate) async fn send(
        &mut self,
        command: u16,
        flags: u16,
        offset: u64,
        len: u32,
        payload: &[u8],
    ) -> io::Result<u64> {
        let cookie = self.next;
        self.next += 1;
        let request = Request { flags, command, cookie, offset, len };
        self.end.put(&request.encode()).await?;
        self.end.put(payload).await?;
        Ok(cookie)
    }

    /// The next reply. `len` is the length of the read if it answers one, else 0.
    pub(crate) async fn reply(&mut self, offset: u64, len: u32) -> io::Result<Reply> {
        let mut reply = Reply::default();
        loop {
            let magic = self.end.get(4).await?;
            if magic == wire::SIMPLE_REPLY_MAGIC.to_be_bytes() {
                let head = self.end.get(12).await?;
                let mut cursor = Cursor(&head);
                reply.error = cursor.u32().unwrap();
                reply.cookie = cursor.u64().unwrap();
                if reply.error == 0 && len > 0 {
                    assert!(
                        !self.is_structured,
                        "a simple reply to a read after structured ones were agreed on"
                    );
                    reply.data.push((offset, self.end.get(usize_of_u32(len)).await?));
                }
                return Ok(reply);
            }
            assert!(self.is_structured, "reply magic {magic:02x?}");
            assert_eq!(magic, wire::STRUCTURED_REPLY_MAGIC.to_be_bytes());
            if self.chunk(&mut reply).await? {
                return Ok(reply);
            }
        }
    }

    /// One chunk; whether it was the last.
    async fn chunk(&mut self, reply: &mut Reply) -> io::Result<bool> {
        let head = self.end.get(16).await?;
        let mut cursor = Cursor(&head);
        let flags = cursor.u16().unwrap();
        let kind = cursor.u16().unwrap();
        reply.cookie = cursor.u64().unwrap();
        let body = self.end.get(usize_of_u32(cursor.u32().unwrap())).await?;
        let mut body = Cursor(&body);
        match kind {
            wire::chunk::NONE => assert!(body.0.is_empty()),
            wire::chunk::OFFSET_DATA => {
                let at = body.u64().unwrap();
                reply.data.push((at, body.0.to_vec()));
            }
            wire::chunk::ERROR | wire::chunk::ERROR_OFFSET => {
                reply.error = body.u32().unwrap();
                assert_eq!(body.string_16(), b"");
                if kind == wire::chunk::ERROR_OFFSET {
                    reply.data.push((body.u64().unwrap(), Vec::new()));
                }
            }
            wire::chunk::BLOCK_STATUS => {
                assert_eq!(body.u32(), Some(wire::ALLOCATION_CONTEXT_ID));
                while let (Some(len), Some(flags)) = (body.u32(), body.u32()) {
                    reply.extents.push((len, flags));
                }
            }
            other => panic!("chunk {other}"),
        }
        Ok(flags & wire::chunk::FLAG_DONE != 0)
    }

    /// A request and its reply, nothing else in flight.
    pub(crate) async fn call(
        &mut self,
        command: u16,
        flags: u16,
        offset: u64,
        len: u32,
        payload: &[u8],
    ) -> io::Result<Reply> {
        let cookie = self.send(command, flags, offset, len, payload).await?;
        let len = if command == wire::command::READ { len } else { 0 };
        let reply = self.reply(offset, len).await?;
        assert_eq!(reply.cookie, cookie);
        Ok(reply)
    }

    pub(crate) async fn write(&mut self, offset: u64, bytes: &[u8], flags: u16) -> io::Result<u32> {
        let len = u32::try_from(bytes.len()).unwrap();
        Ok(self.call(wire::command::WRITE, flags, offset, len, bytes).await?.error)
    }

    /// The data of a read, put together.
    pub(crate) async fn read(&mut self, offset: u64, len: u32) -> io::Result<Result<Vec<u8>, u32>> {
        let reply = self.call(wire::command::READ, 0, offset, len, &[]).await?;
        if reply.error != 0 {
            return Ok(Err(reply.error));
        }
        let mut bytes = Vec::new();
        for (at, data) in reply.data {
            assert_eq!(at, offset + u64_of(bytes.len()), "data in order and without holes");
            bytes.extend(data);
        }
        assert_eq!(bytes.len(), usize_of_u32(len));
        Ok(Ok(bytes))
    }
}

/// Strings of error chunks.
trait ShortString {
    fn string_16(&mut self) -> &[u8];
}

impl ShortString for Cursor<'_> {
    fn string_16(&mut self) -> &[u8] {
        let len = self.u16().unwrap();
        self.take(usize::from(len)).unwrap()
    }
}
