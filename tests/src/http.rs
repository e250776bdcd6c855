//! The control API without the command line: one HTTP request over the unix socket, as any script could send it.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;

use serde_json::Value;

use crate::cli::Json;
use crate::daemon::PATIENCE;

/// Sends a request with a JSON body; the status and the envelope (null if the body was no JSON).
#[must_use]
pub fn request(socket: &Path, method: &str, path: &str, body: &Value) -> (u16, Json) {
    let body = body.to_string();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\n\
         content-length: {}\r\n\r\n",
        body.len()
    );
    let mut stream = UnixStream::connect(socket).unwrap_or_else(|e| panic!("{}: {e}", socket.display()));
    stream
        .set_read_timeout(Some(PATIENCE))
        .and_then(|()| stream.set_write_timeout(Some(PATIENCE)))
        .expect("time-outs");
    stream
        .write_all(head.as_bytes())
        .and_then(|()| stream.write_all(body.as_bytes()))
        .expect("request is taken");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("answer is text");
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
    let (_, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
    let status = status.unwrap_or_else(|| panic!("{method} {path}: no status in '{answer}'"));
    (status, Json(serde_json::from_str(body).unwrap_or(Value::Null)))
}
