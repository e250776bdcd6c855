//! The daemon's client: HTTP/1.1 over its unix socket, one connection per request.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use http_body_util::{BodyExt, Full, Limited};
use hyper::Request;
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use serde_json::Value;
use server::control::routes::{self, Op, Verb};
use server::control::sockets::read_socket_of;
use server::control::{ApiError, ErrorCode};
use tokio::net::UnixStream;

use crate::output::Failure;
use crate::system;

/// Largest answer, in bytes.
const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The daemon, as far as we can reach it.
#[derive(Debug)]
pub(crate) struct Client {
    socket: PathBuf,
    runtime: tokio::runtime::Runtime,
}

/// Values for the braces of an operation's path.
pub(crate) type Params<'a> = &'a [(&'a str, &'a str)];

impl Client {
    /// A client of the daemon on this socket, or on the default one.
    pub(crate) fn new(socket: Option<PathBuf>) -> Result<Self, ApiError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(|error| {
            ApiError::new(ErrorCode::Internal, format!("the system refuses what a client needs: {error}"))
        })?;
        Ok(Self { socket: socket.unwrap_or_else(system::client_socket), runtime })
    }

    /// Asks for an operation that only looks.
    pub(crate) fn look(&self, op: Op, params: Params<'_>, query: &impl Serialize) -> Result<Value, Failure> {
        let query = serde_urlencoded::to_string(query)
            .map_err(|error| ApiError::new(ErrorCode::Internal, format!("the query: {error}")))?;
        let mut path = path_of(op, params);
        if !query.is_empty() {
            path = format!("{path}?{query}");
        }
        self.ask(op, &path, Vec::new())
    }

    /// Asks for an operation that may change something.
    pub(crate) fn change(&self, op: Op, params: Params<'_>, body: &impl Serialize) -> Result<Value, Failure> {
        let body = serde_json::to_vec(body)
            .map_err(|error| ApiError::new(ErrorCode::Internal, format!("the request: {error}")))?;
        self.ask(op, &path_of(op, params), body)
    }

    fn ask(&self, op: Op, path: &str, body: Vec<u8>) -> Result<Value, Failure> {
        let is_look = routes::operation(op).verb == Verb::Look;
        let method = if is_look { "GET" } else { "POST" };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("host", "localhost")
            .header("content-type", "application/json")
            .body(Full::new(Bytes::from(body)))
            .map_err(|error| ApiError::new(ErrorCode::Internal, format!("the request: {error}")))?;
        self.runtime.block_on(async {
            let stream = self.connect(is_look).await?;
            let (status, answer) = exchanged(stream, request).await.map_err(|why| {
                let message = format!("the daemon on {} broke off: {why}", self.socket.display());
                ApiError::new(ErrorCode::DaemonUnreachable, message)
                    .hint("look at its log; what the verb had begun may be done: warpraid status")
            })?;
            let answer: Value = serde_json::from_slice(&answer).map_err(|_| {
                let message = format!("what answers on {} is no warpraid daemon", self.socket.display());
                ApiError::new(ErrorCode::DaemonAnswer, message).hint("check --socket and WARPRAID_SOCKET")
            })?;
            if answer["ok"] == Value::Bool(true) {
                Ok(answer)
            } else {
                Err(Failure::from_daemon(status, answer))
            }
        })
    }

    /// Connects; who may not use the admin socket still looks through the read-only one beside it.
    async fn connect(&self, is_look: bool) -> Result<UnixStream, ApiError> {
        match UnixStream::connect(&self.socket).await {
            Ok(stream) => Ok(stream),
            Err(error) if is_look && error.kind() == ErrorKind::PermissionDenied => {
                let read = read_socket_of(&self.socket);
                UnixStream::connect(&read).await.map_err(|_| unreachable(&self.socket, &error))
            }
            Err(error) => Err(unreachable(&self.socket, &error)),
        }
    }
}

fn unreachable(socket: &Path, error: &std::io::Error) -> ApiError {
    let shown = socket.display();
    match error.kind() {
        ErrorKind::PermissionDenied => {
            let uid = rustix::process::geteuid();
            let message = format!("uid {uid} may not use {shown}");
            let hint = format!(
                "run as root (sudo), or look through the read-only socket: --socket {}",
                read_socket_of(socket).display()
            );
            ApiError::new(ErrorCode::NotPermitted, message).hint(hint)
        }
        ErrorKind::InvalidInput => {
            ApiError::new(ErrorCode::SocketInvalid, format!("{shown} cannot be a socket: {error}"))
        }
        _ => {
            let why = match error.kind() {
                ErrorKind::NotFound => "there is no such socket".to_owned(),
                ErrorKind::ConnectionRefused => "nobody listens on it".to_owned(),
                _ => error.to_string(),
            };
            ApiError::new(ErrorCode::DaemonUnreachable, format!("no daemon on {shown}: {why}"))
                .hint("start it: warpraid serve; or name its socket: --socket PATH or WARPRAID_SOCKET")
        }
    }
}

type Broken = Box<dyn std::error::Error + Send + Sync>;

async fn exchanged(stream: UnixStream, request: Request<Full<Bytes>>) -> Result<(u16, Bytes), Broken> {
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let answered = async {
        let response = sender.send_request(request).await?;
        let status = response.status().as_u16();
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX).collect().await?;
        Ok::<_, Broken>((status, body.to_bytes()))
    };
    let (mut answered, mut connection) = (core::pin::pin!(answered), core::pin::pin!(connection));
    tokio::select! {
        answered = &mut answered => answered,
        ended = &mut connection => {
            ended?;
            answered.await
        }
    }
}

fn path_of(op: Op, params: Params<'_>) -> String {
    params.iter().fold(routes::operation(op).path.to_owned(), |path, (name, value)| {
        path.replace(&format!("{{{name}}}"), &utf8_percent_encode(value, NON_ALPHANUMERIC).to_string())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_filled_and_escaped() {
        assert_eq!(path_of(Op::Drive, &[("drive", "/dev/a b")]), "/v1/drives/%2Fdev%2Fa%20b");
        assert_eq!(path_of(Op::Disk, &[("group", "tank"), ("disk", "ho-me")]), "/v1/disks/tank/ho%2Dme");
    }
}
