//! Who is connected to an export, over all lanes, and the fence between a dead connection and the next one.
//!
//! Invariants:
//! - A session joins before it runs its first request and leaves after its last one has ended; so whoever is not in the
//!   list has no request in flight.
//! - A dead connection's writes never follow a newer connection's (SAFETY P2, CASES SL-05). Joining fences every
//!   connection whose client has hung up: `changing` is raised before a change looks at `is_fenced`, and `is_fenced` is
//!   set before the newcomer looks at `changing`, both in one total order, so a change either sees the fence and is
//!   dropped, or is seen and waited for.
//! - Once closing, nobody joins.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::sync::SharedSignal;
use super::transport::Peer;

/// One connection.
pub struct Client {
    name: String,
    peer: Box<dyn Peer>,
    is_fenced: AtomicBool,
    changing: AtomicUsize,
    settled: SharedSignal,
}

impl Client {
    /// A connection; `name` tells people who it is.
    #[must_use]
    pub fn new(name: String, peer: Box<dyn Peer>) -> Arc<Self> {
        Arc::new(Self {
            name,
            peer,
            is_fenced: AtomicBool::new(false),
            changing: AtomicUsize::new(0),
            settled: SharedSignal::default(),
        })
    }

    /// Who it is, for people.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the client has closed its end.
    #[must_use]
    pub fn is_hung_up(&self) -> bool {
        self.peer.is_hung_up()
    }

    /// Ends the connection.
    pub fn hang_up(&self) {
        self.peer.hang_up();
    }

    /// From now on no change of this connection is started any more.
    pub(crate) fn fence(&self) {
        self.is_fenced.store(true, Ordering::SeqCst);
    }

    /// Whether changes that have not started must be dropped. Asked right before a change is started, without anything
    /// in between that waits.
    pub(crate) fn is_fenced(&self) -> bool {
        self.is_fenced.load(Ordering::SeqCst)
    }

    /// A change (write, zero, trim) was received; held until it has ended or was dropped.
    pub(crate) fn changing(self: &Arc<Self>) -> Changing {
        self.changing.fetch_add(1, Ordering::SeqCst);
        Changing(Arc::clone(self))
    }

    /// Completes when no change is in flight.
    fn settled(&self) -> impl Future<Output = ()> {
        self.settled.until(|| self.changing.load(Ordering::SeqCst) == 0)
    }
}

/// A change in flight.
pub(crate) struct Changing(Arc<Client>);

impl Drop for Changing {
    fn drop(&mut self) {
        if self.0.changing.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.settled.raise();
        }
    }
}

#[derive(Default)]
struct State {
    clients: Vec<Arc<Client>>,
    is_closing: bool,
}

/// The connections of one export.
#[derive(Default)]
pub struct Clients {
    state: Mutex<State>,
    left: SharedSignal,
}

impl Clients {
    /// Nobody yet.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Takes a connection in and fences the dead ones before it; `None` when the export is closing. The caller waits
    /// for [`Fence::passed`] before it runs the first request.
    #[must_use]
    pub(crate) fn join(self: &Arc<Self>, client: Arc<Client>) -> Option<(Membership, Fence)> {
        let mut state = self.state.lock();
        if state.is_closing {
            return None;
        }
        let dead: Vec<_> =
            state.clients.iter().filter(|other| other.is_fenced() || other.is_hung_up()).cloned().collect();
        for other in &dead {
            other.fence();
        }
        state.clients.push(Arc::clone(&client));
        Some((Membership { clients: Arc::clone(self), client }, Fence(dead)))
    }

    /// Who is connected.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.state.lock().clients.iter().map(|client| client.name().to_owned()).collect()
    }

    /// Lets nobody join any more. With `force` those who are connected are cut off; without, they keep the export open.
    ///
    /// # Errors
    /// The names of those who are connected, when not forced; then nothing has changed.
    pub fn close(&self, force: bool) -> Result<(), Vec<String>> {
        let mut state = self.state.lock();
        // A client that has hung up does not keep anybody waiting, though its last requests are still being finished.
        let is_busy = state.clients.iter().any(|client| !client.is_hung_up());
        if is_busy && !force {
            return Err(state.clients.iter().map(|client| client.name().to_owned()).collect());
        }
        state.is_closing = true;
        for client in &state.clients {
            client.hang_up();
        }
        Ok(())
    }

    /// Whether nobody can join any more.
    #[must_use]
    pub fn is_closing(&self) -> bool {
        self.state.lock().is_closing
    }

    /// Completes when nobody is connected and no request is in flight.
    pub fn gone(&self) -> impl Future<Output = ()> {
        self.left.until(|| self.state.lock().clients.is_empty())
    }
}

/// A place in the list of an export's connections; dropped when the last request has ended.
pub(crate) struct Membership {
    clients: Arc<Clients>,
    client: Arc<Client>,
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.clients.state.lock().clients.retain(|other| !Arc::ptr_eq(other, &self.client));
        self.clients.left.raise();
    }
}

/// The dead connections a new one has to wait for.
pub(crate) struct Fence(Vec<Arc<Client>>);

impl Fence {
    /// Completes when every change that a dead connection had started has ended. Drives answer or are dropped within
    /// their time-out, so this ends.
    pub(crate) async fn passed(self) {
        for client in self.0 {
            client.settled().await;
        }
    }
}
