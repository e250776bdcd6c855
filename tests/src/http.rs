//! The control API without the command line: one HTTP request over a socket, as any script could send it.

use std::io::{Read, Write};
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
    let (status, body) = ask(connect(socket), &format!("{head}{body}"));
    (status, Json(serde_json::from_str(&body).unwrap_or(Value::Null)))
}

/// The text of a page.
#[must_use]
pub fn get_text(socket: &Path, path: &str) -> String {
    let request = format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    let (status, body) = ask(connect(socket), &request);
    assert_eq!(status, 200, "GET {path}: {body}");
    body
}

fn connect(socket: &Path) -> UnixStream {
    let stream = UnixStream::connect(socket).unwrap_or_else(|e| panic!("{}: {e}", socket.display()));
    stream
        .set_read_timeout(Some(PATIENCE))
        .and_then(|()| stream.set_write_timeout(Some(PATIENCE)))
        .expect("time-outs");
    stream
}

/// Sends a request as it is; the status and the body.
#[must_use]
pub fn ask(mut stream: impl Read + Write, request: &str) -> (u16, String) {
    stream.write_all(request.as_bytes()).expect("request is taken");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("answer is text");
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok());
    let (_, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
    (status.unwrap_or_else(|| panic!("no status in '{answer}'")), body.to_owned())
}
