//! Listening, and handing connections to lanes.
//!
//! Invariants: a disk is exposed at one address at a time, so that all its connections know of each other (the fence of
//! `clients.rs` needs that); a listener lives as long as it serves a disk; connections are bounded ([`CONNECTIONS_MAX`])
//! and spread over the lanes in turn; what is taken out of service answers no new connection from that moment on, and is
//! out of service once the last request of its connections has ended.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use nvme_backend::{Lane, Listener, Remote, Socket};
use parking_lot::Mutex;
use raid_core::ports::Env;
use rustix::net::sockopt;

use super::Limits;
use super::address::{Address, BindError, Bound, bind_address};
use super::clients::{Client, Clients};
use super::haggle::{Catalog, Described};
use super::session::{Directory, run};
use super::transport::SocketPeer;
use crate::disk::Export;

/// Connections per listener, those in their handshake included.
pub const CONNECTIONS_MAX: usize = 256;
/// What a socket is asked to buffer: enough for a batch of replies; the kernel gives what it allows.
const SOCKET_BUFFER_BYTES: usize = 1024 * 1024;
/// How long accepting pauses when the kernel has no descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How lanes reach what is exposed. Its methods are called on the lane they are given.
pub trait Source: Send + Sync + 'static {
    /// What raid-core runs in.
    type Env: Env;
    /// The disk.
    type Export: Export;

    /// The environment of this lane; `None` when the daemon is stopping.
    fn env(&self, lane: &Lane) -> Option<Self::Env>;

    /// The disk as this lane sees it; `None` when its group is not running.
    fn export(&self, lane: &Lane) -> Option<Self::Export>;
}

/// Why a disk cannot be exposed.
#[derive(Debug, thiserror::Error)]
pub enum ExposeError {
    /// It is exposed already, or still being taken out of service.
    #[error("disk {disk} is already exposed at {address}; unexpose it first")]
    Already {
        /// The disk.
        disk: String,
        /// Where.
        address: Address,
    },
    /// The address cannot be used.
    #[error(transparent)]
    Bind(#[from] BindError),
}

/// Why a disk stays exposed.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum UnexposeError {
    /// It is not exposed.
    #[error("disk {0} is not exposed")]
    NotExposed(String),
    /// Somebody uses it.
    #[error("disk {disk} is in use by {}; disconnect them or use --force", .clients.join(", "))]
    Busy {
        /// The disk.
        disk: String,
        /// Who.
        clients: Vec<String>,
    },
}

/// A disk in service.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Exposure {
    /// `GROUP/DISK`.
    pub disk: String,
    /// Where.
    pub address: Address,
    /// Who is connected.
    pub clients: Vec<String>,
}

struct Exposed<S> {
    source: Arc<S>,
    clients: Arc<Clients>,
}

impl<S> Clone for Exposed<S> {
    fn clone(&self) -> Self {
        Self { source: Arc::clone(&self.source), clients: Arc::clone(&self.clients) }
    }
}

/// One listening socket.
struct Listening<S> {
    address: Address,
    bound: Bound,
    exports: Mutex<BTreeMap<String, Exposed<S>>>,
    /// All connections, whatever they are doing.
    connections: Mutex<Vec<Arc<Client>>>,
    is_closed: AtomicBool,
}

impl<S> Listening<S> {
    /// Stops accepting, cuts off who has not chosen an export, removes the socket's file.
    fn close(&self) {
        self.is_closed.store(true, Ordering::SeqCst);
        // Wakes the accept that waits in the kernel.
        let _ = rustix::net::shutdown(&self.bound.fd, rustix::net::Shutdown::Both);
        self.bound.remove_file();
        for client in self.connections.lock().iter() {
            client.hang_up();
        }
    }
}

/// What one lane's connections of a listener may choose from.
struct LaneDirectory<S> {
    listening: Arc<Listening<S>>,
    lane: Lane,
}

impl<S: Source> LaneDirectory<S> {
    fn exposed(&self, name: &str) -> Option<(String, Exposed<S>)> {
        let exports = self.listening.exports.lock();
        let (name, exposed) = match name {
            "" if exports.len() == 1 => exports.first_key_value()?,
            name => exports.get_key_value(name)?,
        };
        (!exposed.clients.is_closing()).then(|| (name.clone(), exposed.clone()))
    }
}

impl<S: Source> Catalog for LaneDirectory<S> {
    fn find(&self, name: &str) -> Option<(String, Described)> {
        let (name, exposed) = self.exposed(name)?;
        let export = exposed.source.export(&self.lane)?;
        let block = export.block_size().bytes();
        let described =
            Described::new(export.size_bytes(), block, export.preferred_bytes(), export.is_read_only());
        Some((name, described))
    }

    fn names(&self) -> Vec<String> {
        let exports = self.listening.exports.lock();
        exports.iter().filter(|(_, it)| !it.clients.is_closing()).map(|(name, _)| name.clone()).collect()
    }
}

impl<S: Source> Directory for LaneDirectory<S> {
    type Export = S::Export;

    fn open(&self, name: &str) -> Option<(S::Export, Arc<Clients>)> {
        let (_, exposed) = self.exposed(name)?;
        Some((exposed.source.export(&self.lane)?, exposed.clients))
    }
}

/// The NBD front end of a daemon. Used from any thread.
pub struct NbdServer<S> {
    lanes: Arc<[Remote]>,
    limits: Limits,
    listeners: Mutex<BTreeMap<Address, Arc<Listening<S>>>>,
    next_lane: Arc<AtomicUsize>,
}

impl<S: Source> NbdServer<S> {
    /// A front end that spreads connections over these lanes.
    ///
    /// # Panics
    /// If there is no lane.
    #[must_use]
    pub fn new(lanes: impl Into<Arc<[Remote]>>, limits: Limits) -> Self {
        let lanes = lanes.into();
        assert!(!lanes.is_empty(), "a front end without lanes");
        Self { lanes, limits, listeners: Mutex::default(), next_lane: Arc::default() }
    }

    /// Serves a disk under its name (`GROUP/DISK`) at an address; several disks may share one. A listener's only disk is
    /// its default export.
    ///
    /// # Errors
    /// [`ExposeError`]; then nothing has changed.
    pub fn expose(&self, disk: &str, address: &Address, source: Arc<S>) -> Result<(), ExposeError> {
        let mut listeners = self.listeners.lock();
        if let Some(other) = listeners.values().find(|it| it.exports.lock().contains_key(disk)) {
            return Err(ExposeError::Already { disk: disk.to_owned(), address: other.address.clone() });
        }
        let exposed = Exposed { source: Arc::clone(&source), clients: Clients::new() };
        if let Some(listening) = listeners.get(address) {
            listening.exports.lock().insert(disk.to_owned(), exposed);
            return Ok(());
        }
        let listening = Arc::new(Listening {
            address: address.clone(),
            bound: bind_address(address)?,
            exports: Mutex::new(BTreeMap::from([(disk.to_owned(), exposed)])),
            connections: Mutex::default(),
            is_closed: AtomicBool::new(false),
        });
        let fd = match listening.bound.fd.try_clone() {
            Ok(fd) => fd,
            Err(source) => {
                listening.close();
                let address = address.clone();
                return Err(BindError::Os { address, doing: "hand the socket to a lane", source }.into());
            }
        };
        listeners.insert(address.clone(), Arc::clone(&listening));
        let acceptor = Acceptor {
            listening,
            lanes: Arc::clone(&self.lanes),
            limits: self.limits,
            next_lane: Arc::clone(&self.next_lane),
        };
        self.lanes[0].run(Box::new(move |lane| {
            let listener = Listener::from_fd(lane, fd);
            lane.spawn(acceptor.run(lane.clone(), listener));
        }));
        Ok(())
    }

    /// Takes a disk out of service; completes when the last request of its connections has ended. Without `force` a disk
    /// in use stays in service; with it its clients are cut off.
    ///
    /// # Errors
    /// [`UnexposeError`]; then nothing has changed.
    pub async fn unexpose(&self, disk: &str, force: bool) -> Result<(), UnexposeError> {
        let found = self.listeners.lock().values().find_map(|listening| {
            let exposed = listening.exports.lock().get(disk).cloned()?;
            Some((Arc::clone(listening), exposed.clients))
        });
        let (listening, clients) = found.ok_or_else(|| UnexposeError::NotExposed(disk.to_owned()))?;
        clients.close(force).map_err(|clients| UnexposeError::Busy { disk: disk.to_owned(), clients })?;
        clients.gone().await;
        let mut listeners = self.listeners.lock();
        let mut exports = listening.exports.lock();
        // Somebody else may have waited for the same, and the name may already be in service again.
        if exports.get(disk).is_some_and(|exposed| Arc::ptr_eq(&exposed.clients, &clients)) {
            exports.remove(disk);
            if exports.is_empty() {
                listeners.remove(&listening.address);
                listening.close();
            }
        }
        Ok(())
    }

    /// Takes everything out of service, cutting clients off; completes when no request is in flight.
    pub async fn unexpose_all(&self) {
        for exposure in self.exposures() {
            // Not exposed any more is as good.
            let _ = self.unexpose(&exposure.disk, true).await;
        }
    }

    /// What is in service.
    #[must_use]
    pub fn exposures(&self) -> Vec<Exposure> {
        let listeners = self.listeners.lock();
        let mut all = Vec::new();
        for listening in listeners.values() {
            for (disk, exposed) in &*listening.exports.lock() {
                all.push(Exposure {
                    disk: disk.clone(),
                    address: listening.address.clone(),
                    clients: exposed.clients.names(),
                });
            }
        }
        all
    }
}

/// The task that accepts a listener's connections.
struct Acceptor<S> {
    listening: Arc<Listening<S>>,
    lanes: Arc<[Remote]>,
    limits: Limits,
    next_lane: Arc<AtomicUsize>,
}

impl<S: Source> Acceptor<S> {
    async fn run(self, lane: Lane, listener: Listener) {
        loop {
            let accepted = listener.accept().await;
            if self.listening.is_closed.load(Ordering::SeqCst) {
                return;
            }
            match accepted.and_then(|socket| self.hand_over(socket)) {
                Ok(()) => {}
                Err(error) => {
                    tracing::warn!(address = %self.listening.address, %error, "connection not accepted");
                    let pause_ns = u64::try_from(ACCEPT_PAUSE.as_nanos()).expect("a short pause");
                    lane.sleep_until(lane.now_ns() + pause_ns).await;
                }
            }
        }
    }

    fn hand_over(&self, socket: OwnedFd) -> std::io::Result<()> {
        tune(&socket, &self.listening.address);
        let peer = SocketPeer::of(&socket)?;
        let client = Client::new(peer_name(&socket), Box::new(peer));
        {
            let mut connections = self.listening.connections.lock();
            if connections.len() >= CONNECTIONS_MAX {
                drop(connections);
                return Err(std::io::Error::other(format!("{CONNECTIONS_MAX} connections are open already")));
            }
            connections.push(Arc::clone(&client));
        }
        let place = Place { listening: Arc::clone(&self.listening), client };
        // Closed between the accept and now: the listener has already cut off those it knew of.
        if self.listening.is_closed.load(Ordering::SeqCst) {
            return Ok(());
        }
        let turn = self.next_lane.fetch_add(1, Ordering::Relaxed) % self.lanes.len();
        let limits = self.limits;
        self.lanes[turn].run(Box::new(move |lane| {
            let directory = LaneDirectory { listening: Arc::clone(&place.listening), lane: lane.clone() };
            // Any exposed disk's source knows the lane's environment.
            let source = place.listening.exports.lock().values().next().map(|it| Arc::clone(&it.source));
            let Some(env) = source.and_then(|source| source.env(lane)) else { return };
            let socket = Socket::from_fd(lane, socket);
            lane.spawn(async move {
                run(env, socket, directory, Arc::clone(&place.client), limits).await;
                drop(place);
            });
        }));
        Ok(())
    }
}

/// A connection's place among its listener's.
struct Place<S> {
    listening: Arc<Listening<S>>,
    client: Arc<Client>,
}

impl<S> Drop for Place<S> {
    fn drop(&mut self) {
        self.listening.connections.lock().retain(|other| !Arc::ptr_eq(other, &self.client));
    }
}

/// Asks the kernel for what helps; a refusal only costs speed.
fn tune(socket: &OwnedFd, address: &Address) {
    if matches!(address, Address::Tcp(_)) {
        let _ = sockopt::set_tcp_nodelay(socket, true);
    }
    let _ = sockopt::set_socket_send_buffer_size(socket, SOCKET_BUFFER_BYTES);
    let _ = sockopt::set_socket_recv_buffer_size(socket, SOCKET_BUFFER_BYTES);
}

/// Who is at the other end, for people.
fn peer_name(socket: &OwnedFd) -> String {
    if let Ok(who) = sockopt::socket_peercred(socket) {
        let pid = who.pid.as_raw_nonzero().get();
        if pid > 0 {
            return format!("pid {pid} (uid {})", who.uid.as_raw());
        }
    }
    let address = rustix::net::getpeername(socket).ok().flatten();
    match address.and_then(|address| std::net::SocketAddr::try_from(address).ok()) {
        Some(address) => address.to_string(),
        None => "a client that is already gone".to_owned(),
    }
}
