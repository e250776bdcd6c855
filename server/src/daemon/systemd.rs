//! What the service manager is told (sd_notify(3), without its library): ready, stopping, upgrading, alive.
//!
//! Alive means that every lane answers: a daemon whose lanes hang serves nobody, and restarting it is what helps (the
//! block devices wait, and the next daemon takes them over). The messages are datagrams to the socket that systemd names in
//! NOTIFY_SOCKET; without one nothing is sent.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::Arc;
use std::time::Duration;

use super::Daemon;
use crate::lane::on_lane;

/// The service manager, if there is one.
pub(super) struct Manager {
    socket: Option<(UnixDatagram, SocketAddr)>,
    /// How long it waits for a sign of life.
    watchdog: Option<Duration>,
}

fn address_of(name: &str) -> Option<SocketAddr> {
    match name.strip_prefix('@') {
        Some(abstract_name) => SocketAddr::from_abstract_name(abstract_name).ok(),
        None if name.starts_with('/') => SocketAddr::from_pathname(name).ok(),
        None => None,
    }
}

impl Manager {
    /// The one that the environment names.
    pub(super) fn from_environment() -> Self {
        let variable = |name: &str| std::env::var(name).ok();
        Self::new(
            variable("NOTIFY_SOCKET").as_deref(),
            variable("WATCHDOG_USEC").as_deref(),
            variable("WATCHDOG_PID").as_deref(),
        )
    }

    fn new(socket: Option<&str>, watchdog_us: Option<&str>, watchdog_pid: Option<&str>) -> Self {
        let socket = socket.and_then(|name| {
            let address = address_of(name)?;
            let socket = UnixDatagram::unbound().ok()?;
            // A manager that does not read must not hold up the control thread.
            socket.set_nonblocking(true).ok()?;
            Some((socket, address))
        });
        let is_ours = watchdog_pid.is_none_or(|pid| pid.parse() == Ok(std::process::id()));
        let us: Option<u64> = watchdog_us.and_then(|us| us.parse().ok()).filter(|&us| us > 0 && is_ours);
        Self { socket, watchdog: us.map(Duration::from_micros) }
    }

    fn tell(&self, message: &str) {
        let Some((socket, address)) = &self.socket else { return };
        if let Err(error) = socket.send_to_addr(message.as_bytes(), address) {
            tracing::warn!(%error, message, "the service manager was not told");
        }
    }

    /// The groups found are started and their disks are served.
    pub(super) fn ready(&self) {
        self.tell("READY=1\nSTATUS=serving");
    }

    /// This daemon ends: for good, or to be followed by another program in the same process.
    pub(super) fn stopping(&self, is_upgrade: bool) {
        if is_upgrade {
            let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
            let us = now.tv_sec * 1_000_000 + now.tv_nsec / 1000;
            self.tell(&format!("RELOADING=1\nMONOTONIC_USEC={us}\nSTATUS=upgrading\nWATCHDOG=1"));
        } else {
            self.tell("STOPPING=1\nSTATUS=stopping");
        }
    }
}

impl Daemon {
    /// Sends signs of life for as long as the daemon runs and all of its lanes answer.
    pub(super) async fn keep_alive(self: Arc<Self>) {
        let Some(limit) = self.manager.watchdog else { return };
        let period = limit / 4;
        loop {
            let answers = async {
                for lane in &self.lanes {
                    if on_lane(lane, |_| async {}).await.is_err() {
                        return false;
                    }
                }
                true
            };
            match tokio::time::timeout(period, answers).await {
                Ok(true) => self.manager.tell("WATCHDOG=1"),
                Ok(false) => return,
                Err(_) => tracing::error!("a lane does not answer: no sign of life for the service manager"),
            }
            tokio::time::sleep(period).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(socket: &UnixDatagram) -> String {
        let mut bytes = [0; 256];
        let got = socket.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..got].to_vec()).unwrap()
    }

    #[test]
    fn messages_arrive_at_sockets_with_a_path_and_without() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let by_path = UnixDatagram::bind(&path).unwrap();
        let name = format!("warpraid-test-{}", std::process::id());
        let hidden = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        for (socket, named) in [(by_path, path.display().to_string()), (hidden, format!("@{name}"))] {
            let manager = Manager::new(Some(&named), None, None);
            manager.ready();
            assert!(received(&socket).lines().any(|line| line == "READY=1"));
            manager.stopping(false);
            assert!(received(&socket).lines().any(|line| line == "STOPPING=1"));
            manager.stopping(true);
            let said = received(&socket);
            assert!(said.starts_with("RELOADING=1\nMONOTONIC_USEC="), "{said}");
        }
        Manager::new(None, None, None).ready();
        Manager::new(Some("nonsense"), None, None).ready();
        // Nobody listens: said in the log, no more.
        Manager::new(Some("/no/such/socket"), None, None).ready();
    }

    #[test]
    fn a_watchdog_is_ours_only_if_it_names_us() {
        let own = std::process::id().to_string();
        let of = |us: &str, pid: Option<&str>| Manager::new(None, Some(us), pid).watchdog;
        assert_eq!(of("30000000", Some(&own)), Some(Duration::from_secs(30)));
        assert_eq!(of("30000000", None), Some(Duration::from_secs(30)));
        assert_eq!(of("30000000", Some("1")), None);
        assert_eq!(of("0", None), None);
        assert_eq!(of("soon", None), None);
    }
}
