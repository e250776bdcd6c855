//! HTTP/1.1 over the two control sockets, and read-only over TCP if asked to, on the control thread's tokio runtime.
//!
//! Invariants: every answer, also to nonsense, is the envelope; a caller of the admin socket is root or the daemon's own
//! user (SO_PEERCRED, CASES AD-03); the read-only socket and TCP answer GET and nothing else; TCP answers only requests
//! that name the host by address or as localhost, unless it is public (a web page elsewhere cannot read it by a name of its
//! own that points here); connections, headers, bodies and
//! their time are bounded; a verb that changes something runs to its end even if its caller goes away, so a closed
//! terminal never leaves a half-made group; a slow verb holds up no other.

use std::collections::HashMap;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection};
use axum::extract::{DefaultBodyLimit, Path, RawQuery};
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, on};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener, UnixStream};
use tokio::sync::{Semaphore, watch};

use super::error::{ApiError, ErrorCode};
use super::model::{Document, Envelope, ErrorDoc, MAJOR, MINOR, NothingDoc, SchemaDoc};
use super::routes::{self, Call, OPERATIONS, Operation, Rendered, Verb};
use super::sockets::Sockets;
use super::{Control, openapi};

/// Largest body of a request, in bytes.
pub const BODY_BYTES_MAX: usize = 64 * 1024;
/// Connections of one socket at a time; more wait to be accepted.
const CONNECTIONS_MAX: usize = 64;
/// Longest time a connection may take for the headers of its next request.
const HEADER_TIMEOUT: Duration = Duration::from_secs(30);
/// Longest time open connections get to finish when the daemon stops.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// Serves both sockets until `stop` is ready, then lets open requests finish (at most 5 s).
///
/// # Errors
/// `daemon.start.failed` if the sockets cannot be used with this runtime.
pub async fn serve<C: Control>(
    control: Arc<C>,
    sockets: &Sockets,
    stop: impl Future<Output = ()>,
) -> Result<(), ApiError> {
    serve_with(control, sockets, None, stop).await
}

/// The same, and read-only over TCP.
///
/// # Errors
/// As [`serve`].
pub async fn serve_with<C: Control>(
    control: Arc<C>,
    sockets: &Sockets,
    tcp: Option<Tcp>,
    stop: impl Future<Output = ()>,
) -> Result<(), ApiError> {
    let listener = |socket: &std::os::unix::net::UnixListener| {
        socket.try_clone().and_then(UnixListener::from_std).map_err(|error| {
            ApiError::new(ErrorCode::DaemonStart, format!("cannot use the control socket: {error}"))
        })
    };
    let (admin, read) = (listener(&sockets.admin)?, listener(&sockets.read)?);
    let read_path = sockets.read_path().display().to_string();
    let admin_path = sockets.admin_path().display().to_string();
    let (stopping, stopped) = watch::channel(());
    let admin_side = Side {
        listener: Listening::Unix(admin),
        router: router(Arc::clone(&control), None),
        stranger: Some(refusing(stranger(&admin_path, &read_path))),
        connections: Arc::new(Semaphore::new(CONNECTIONS_MAX)),
    };
    let read_side = Side {
        listener: Listening::Unix(read),
        router: router(Arc::clone(&control), Some(admin_path.clone())),
        stranger: None,
        connections: Arc::new(Semaphore::new(CONNECTIONS_MAX)),
    };
    let tcp_side = tcp.map(|tcp| Side {
        listener: Listening::Tcp(tcp.listener),
        router: over_tcp(router(control, Some(admin_path)), tcp.is_public),
        stranger: None,
        connections: Arc::new(Semaphore::new(CONNECTIONS_MAX)),
    });
    let accept_tcp = async {
        match &tcp_side {
            Some(side) => side.accept(&stopped).await,
            None => core::future::pending().await,
        }
    };
    tokio::select! {
        never = accept_tcp => match never {},
        never = admin_side.accept(&stopped) => match never {},
        never = read_side.accept(&stopped) => match never {},
        () = stop => {}
    }
    drop((admin_side.listener, read_side.listener, tcp_side));
    drop(stopped);
    let _ = stopping.send(());
    // Ready once every connection has dropped its receiver; what is still open then is cut with the runtime.
    if tokio::time::timeout(STOP_TIMEOUT, stopping.closed()).await.is_err() {
        tracing::warn!("control connections still open while stopping");
    }
    Ok(())
}

/// Where HTTP over TCP is served.
#[derive(Debug)]
pub struct Tcp {
    listener: TcpListener,
    is_public: bool,
}

impl Tcp {
    /// Listens there. `is_public`: others than this host may reach it.
    ///
    /// # Errors
    /// `usage.invalid` for an address that others can reach without `is_public`; `daemon.start.failed` if the system
    /// refuses.
    pub async fn bind(address: SocketAddr, is_public: bool) -> Result<Self, ApiError> {
        if !address.ip().is_loopback() && !is_public {
            let message = format!(
                "{address} can be reached by others: anybody there could read the state of all groups"
            );
            return Err(ApiError::new(ErrorCode::UsageInvalid, message)
                .hint("--http 127.0.0.1:9469, or add --http-public if that is meant"));
        }
        let listener = TcpListener::bind(address).await.map_err(|error| {
            ApiError::new(ErrorCode::DaemonStart, format!("cannot listen on {address}: {error}"))
                .hint("choose another address with --http")
        })?;
        Ok(Self { listener, is_public })
    }
}

/// Refuses requests that name the host otherwise than by address or as localhost: DNS can make any name point here.
fn over_tcp(router: Router, is_public: bool) -> Router {
    let router = router.merge(crate::page::router());
    if is_public {
        return crate::page::secured(router);
    }
    let checked = router.layer(axum::middleware::from_fn(
        async |request: axum::extract::Request, next: axum::middleware::Next| {
            let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok());
            if host.is_some_and(is_this_host) {
                return next.run(request).await;
            }
            let message = "this port answers only to localhost and addresses";
            refused(&ApiError::new(ErrorCode::NotPermitted, message).hint("http://127.0.0.1:PORT/"))
        },
    ));
    crate::page::secured(checked)
}

/// Whether a Host header is an address or localhost.
fn is_this_host(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.split(':').next().unwrap_or_default(),
    };
    name.eq_ignore_ascii_case("localhost") || name.parse::<std::net::IpAddr>().is_ok()
}

enum Listening {
    Unix(UnixListener),
    Tcp(TcpListener),
}

/// A connection, and whether it comes from root or our own user; over TCP nobody can tell.
enum Accepted {
    Unix(UnixStream),
    Tcp(tokio::net::TcpStream),
}

impl Listening {
    async fn accept(&self) -> std::io::Result<Accepted> {
        match self {
            Self::Unix(listener) => listener.accept().await.map(|(stream, _)| Accepted::Unix(stream)),
            Self::Tcp(listener) => listener.accept().await.map(|(stream, _)| Accepted::Tcp(stream)),
        }
    }
}

/// One listening socket and what it answers.
struct Side {
    listener: Listening,
    router: Router,
    /// What callers that are neither root nor our own user get; none: everybody is welcome.
    stranger: Option<Router>,
    connections: Arc<Semaphore>,
}

impl Side {
    async fn accept(&self, stopped: &watch::Receiver<()>) -> core::convert::Infallible {
        loop {
            let permit = Arc::clone(&self.connections).acquire_owned().await.expect("never closed");
            let stream = match self.listener.accept().await {
                Ok(stream) => stream,
                Err(error) => {
                    // Out of descriptors, most likely: wait for one instead of spinning.
                    tracing::warn!(%error, "cannot accept a control connection");
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            };
            let router = match &self.stranger {
                Some(refusal) if !is_ours(&stream) => refusal.clone(),
                _ => self.router.clone(),
            };
            let stopped = stopped.clone();
            tokio::spawn(async move {
                match stream {
                    Accepted::Unix(stream) => connection(stream, router, stopped).await,
                    Accepted::Tcp(stream) => connection(stream, router, stopped).await,
                }
                drop(permit);
            });
        }
    }
}

/// Whether the peer is root or runs as the daemon's own user.
fn is_ours(stream: &Accepted) -> bool {
    let Accepted::Unix(stream) = stream else { return false };
    let us = rustix::process::geteuid().as_raw();
    match stream.peer_cred() {
        Ok(peer) => peer.uid() == 0 || peer.uid() == us,
        Err(error) => {
            tracing::warn!(%error, "a control connection without credentials is refused");
            false
        }
    }
}

async fn connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    router: Router,
    mut stopped: watch::Receiver<()>,
) {
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(BODY_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut served = core::pin::pin!(served);
    let result = tokio::select! {
        result = served.as_mut() => result,
        _ = stopped.changed() => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, "control connection ended");
    }
}

/// The API as a router. `read_only_beside` is the admin socket's path if this is the read-only side.
pub fn router<C: Control>(control: Arc<C>, read_only_beside: Option<String>) -> Router {
    let is_read_only = read_only_beside.is_some();
    let served = |row: &&Operation| !is_read_only || row.verb == Verb::Look;
    let mut router = Router::new();
    for row in OPERATIONS.iter().filter(served) {
        let control = Arc::clone(&control);
        let handler = move |path: Result<Path<HashMap<String, String>>, PathRejection>,
                            RawQuery(query): RawQuery,
                            body: Result<Bytes, BytesRejection>| {
            let control = Arc::clone(&control);
            async move {
                let result = match taken(path, query, body) {
                    Ok(call) => dispatch(row, control, call).await,
                    Err(error) => Err(error),
                };
                answered(result)
            }
        };
        let method = if row.verb == Verb::Look { MethodFilter::GET } else { MethodFilter::POST };
        router = router.route(row.path, on(method, handler));
    }
    let document = async || ([(header::CONTENT_TYPE, "application/json")], openapi::document_text());
    router = router.route("/openapi.json", axum::routing::get(document));
    let metrics = async move || {
        let kind = "text/plain; version=0.0.4; charset=utf-8";
        ([(header::CONTENT_TYPE, kind)], control.metrics().await)
    };
    router = router.route("/metrics", axum::routing::get(metrics));
    let admin = read_only_beside.clone();
    let no_method = async move |method: Method| refused(&no_method(&method, admin.as_deref()));
    let no_route = async move |method: Method, uri: axum::http::Uri| {
        let looks = matches!(method, Method::GET | Method::HEAD);
        refused(&match &read_only_beside {
            Some(admin) if !looks => read_only(admin),
            _ => no_route(&method, uri.path()),
        })
    };
    router
        .fallback(no_route)
        .method_not_allowed_fallback(no_method)
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
}

/// A router that answers everything with one error.
fn refusing(error: ApiError) -> Router {
    Router::new().fallback(move || {
        let response = refused(&error);
        async move { response }
    })
}

fn stranger(admin_path: &str, read_path: &str) -> ApiError {
    let us = rustix::process::geteuid();
    let message = format!("{admin_path} serves root and uid {us} only");
    ApiError::new(ErrorCode::NotPermitted, message)
        .hint(format!("run as root (sudo), or look through the read-only socket: --socket {read_path}"))
}

fn read_only(admin_path: &str) -> ApiError {
    ApiError::new(ErrorCode::NotPermitted, "this socket is read-only")
        .hint(format!("use the admin socket as root: --socket {admin_path}"))
}

fn no_method(method: &Method, read_only_beside: Option<&str>) -> ApiError {
    read_only_beside.map_or_else(
        || {
            let message = format!("this page of the API has no {method}");
            ApiError::new(ErrorCode::MethodUnknown, message).hint("GET /openapi.json lists all there is")
        },
        read_only,
    )
}

fn no_route(method: &Method, path: &str) -> ApiError {
    let message = format!("the API has no {method} {}", super::names::shown(path));
    ApiError::new(ErrorCode::RouteUnknown, message).hint("GET /openapi.json lists all there is")
}

fn taken(
    path: Result<Path<HashMap<String, String>>, PathRejection>,
    query: Option<String>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Call, ApiError> {
    let invalid = |what: String| ApiError::new(ErrorCode::RequestInvalid, what);
    let path = match path {
        Ok(Path(path)) => path,
        // A path without parameters.
        Err(PathRejection::MissingPathParams(_)) => HashMap::new(),
        Err(error) => return Err(invalid(format!("the request's path: {error}"))),
    };
    let body = body.map_err(|error| invalid(format!("the request's body: {error}")))?;
    Ok(Call { path, query: query.unwrap_or_default(), body: body.to_vec() })
}

/// Runs a verb: one that only looks ends with its caller, one that changes something does not.
async fn dispatch<C: Control>(row: &Operation, control: Arc<C>, call: Call) -> Result<Rendered, ApiError> {
    let op = row.op;
    if row.verb == Verb::Look {
        return routes::call(op, &*control, &call).await;
    }
    let verb = tokio::spawn(async move { routes::call(op, &*control, &call).await });
    verb.await.unwrap_or_else(|error| {
        tracing::error!(command = row.command, %error, "a verb died");
        let message = format!("{} ended unexpectedly; the daemon's log says why", row.command);
        Err(ApiError::new(ErrorCode::Internal, message).hint("warpraid status"))
    })
}

fn schema(name: &str) -> SchemaDoc {
    SchemaDoc { name: name.to_owned(), major: MAJOR, minor: MINOR }
}

/// The envelope of an error; also what the command line prints with `-o json` for errors of its own.
#[must_use]
pub fn error_envelope(error: &ApiError) -> Envelope<Value> {
    let body =
        ErrorDoc { code: error.code.to_string(), message: error.message.clone(), hint: error.hint.clone() };
    Envelope {
        schema: schema(NothingDoc::NAME),
        ok: false,
        data: None,
        warnings: Vec::new(),
        error: Some(body),
    }
}

/// The envelope of a document.
#[must_use]
pub fn envelope<T>(name: &str, data: T, warnings: Vec<super::model::WarningDoc>) -> Envelope<T> {
    Envelope { schema: schema(name), ok: true, data: Some(data), warnings, error: None }
}

fn answered(result: Result<Rendered, ApiError>) -> Response {
    match result {
        Ok(reply) => json(StatusCode::OK, &envelope(reply.name, reply.data, reply.warnings)),
        Err(error) => refused(&error),
    }
}

fn refused(error: &ApiError) -> Response {
    let status =
        StatusCode::from_u16(error.exit().http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    json(status, &error_envelope(error))
}

fn json(status: StatusCode, envelope: &Envelope<Value>) -> Response {
    (status, axum::Json(envelope)).into_response()
}

#[cfg(test)]
mod tests {
    use super::is_this_host;

    #[test]
    fn a_name_that_points_here_is_not_this_host() {
        for host in
            ["localhost", "LOCALHOST:9469", "127.0.0.1", "127.0.0.1:1", "[::1]", "[::1]:9469", "10.0.0.1:80"]
        {
            assert!(is_this_host(host), "{host}");
        }
        for host in
            ["evil.example", "localhost.evil.example:9469", "127.0.0.1.evil.example", "", "[evil]", ":80"]
        {
            assert!(!is_this_host(host), "{host}");
        }
    }
}
