//! What the NBD tests share: a disk in memory, a connection in memory, and a small client.

pub(crate) mod client;
pub(crate) mod memory;
pub(crate) mod pipe;
pub(crate) mod served;

use std::cell::{Cell, RefCell};
use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};

use server::disk::Export;
use server::nbd::Limits;
use server::nbd::clients::{Client, Clients};
use server::nbd::haggle::{Catalog, Described};
use server::nbd::session::{Directory, run};
use sim::{Executor, SimEnv};

use self::memory::MemoryDisk;
use self::pipe::{End, pipe};

/// A door that tasks wait at until it is opened.
#[derive(Clone, Default)]
pub(crate) struct Gate(Rc<(Cell<bool>, RefCell<Vec<Waker>>)>);

impl Gate {
    pub(crate) fn open(&self) {
        self.0.0.set(true);
        for waker in self.0.1.take() {
            waker.wake();
        }
    }

    pub(crate) fn shut(&self) {
        self.0.0.set(false);
    }

    /// Whether nobody has to wait.
    pub(crate) fn passed_now(&self) -> bool {
        self.0.0.get()
    }

    pub(crate) fn passed(&self) -> impl Future<Output = ()> + use<> {
        let gate = self.clone();
        poll_fn(move |cx| {
            if gate.0.0.get() {
                return Poll::Ready(());
            }
            gate.0.1.borrow_mut().push(cx.waker().clone());
            Poll::Pending
        })
    }
}

/// One disk under one name.
#[derive(Clone)]
pub(crate) struct OneDisk<X> {
    pub(crate) name: &'static str,
    pub(crate) disk: X,
    pub(crate) clients: Arc<Clients>,
}

impl<X: Export> Catalog for OneDisk<X> {
    fn find(&self, name: &str) -> Option<(String, Described)> {
        let is_it = name.is_empty() || name == self.name;
        let disk = &self.disk;
        let described = Described::new(
            disk.size_bytes(),
            disk.block_size().bytes(),
            disk.preferred_bytes(),
            disk.is_read_only(),
        );
        is_it.then(|| (self.name.to_owned(), described))
    }

    fn names(&self) -> Vec<String> {
        vec![self.name.to_owned()]
    }
}

impl<X: Export> Directory for OneDisk<X> {
    type Export = X;

    fn open(&self, name: &str) -> Option<(X, Arc<Clients>)> {
        (name == self.name).then(|| (self.disk.clone(), Arc::clone(&self.clients)))
    }
}

/// A simulated lane that serves one disk.
#[derive(Clone)]
pub(crate) struct World<X = MemoryDisk> {
    pub(crate) executor: Executor,
    pub(crate) env: SimEnv,
    pub(crate) directory: OneDisk<X>,
    pub(crate) limits: Limits,
}

impl<X: Export> World<X> {
    pub(crate) fn new(seed: u64, disk: impl FnOnce(SimEnv) -> X) -> Self {
        let executor = Executor::new(seed);
        let env = SimEnv::new(&executor);
        let directory = OneDisk { name: "g/d", disk: disk(env.clone()), clients: Clients::new() };
        Self { executor, env, directory, limits: Limits::default() }
    }

    /// The same disk with the same clients, as another lane serves it.
    pub(crate) fn on_lane(&self, env: SimEnv, disk: X) -> Self {
        let clients = Arc::clone(&self.directory.clients);
        let directory = OneDisk { name: self.directory.name, disk, clients };
        Self { executor: self.executor.clone(), env, directory, limits: self.limits }
    }

    /// A new connection whose receives bring at most `packet` bytes; the gate opens when its session has ended.
    pub(crate) fn connect(&self, packet: usize) -> (End, Gate) {
        let (ours, theirs) = pipe(packet);
        let ended = Gate::default();
        let gate = ended.clone();
        let client = Client::new("test".to_owned(), Box::new(ours.peer()));
        let session = run(self.env.clone(), ours, self.directory.clone(), client, self.limits);
        self.executor.spawn(async move {
            session.await;
            gate.open();
        });
        (theirs, ended)
    }
}
