//! What the NBD tests share: a disk in memory, a connection in memory, and a small client.

#![allow(dead_code, unreachable_pub, reason = "every test binary uses its own part")]

pub mod client;
pub mod memory;
pub mod pipe;

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
pub struct Gate(Rc<(Cell<bool>, RefCell<Vec<Waker>>)>);

impl Gate {
    pub fn open(&self) {
        self.0.0.set(true);
        for waker in self.0.1.take() {
            waker.wake();
        }
    }

    pub fn shut(&self) {
        self.0.0.set(false);
    }

    pub fn passed(&self) -> impl Future<Output = ()> + use<> {
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
pub struct OneDisk {
    pub name: &'static str,
    pub disk: MemoryDisk,
    pub clients: Arc<Clients>,
}

impl Catalog for OneDisk {
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

impl Directory for OneDisk {
    type Export = MemoryDisk;

    fn open(&self, name: &str) -> Option<(MemoryDisk, Arc<Clients>)> {
        (name == self.name).then(|| (self.disk.clone(), Arc::clone(&self.clients)))
    }
}

/// A simulated lane that serves one memory disk.
#[derive(Clone)]
pub struct World {
    pub executor: Executor,
    pub env: SimEnv,
    pub directory: OneDisk,
    pub limits: Limits,
}

impl World {
    pub fn new(seed: u64, disk: impl FnOnce(SimEnv) -> MemoryDisk) -> Self {
        let executor = Executor::new(seed);
        let env = SimEnv::new(&executor);
        let directory = OneDisk { name: "g/d", disk: disk(env.clone()), clients: Clients::new() };
        Self { executor, env, directory, limits: Limits::default() }
    }

    /// A new connection whose receives bring at most `packet` bytes; the gate opens when its session has ended.
    pub fn connect(&self, packet: usize) -> (End, Gate) {
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
