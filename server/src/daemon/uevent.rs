//! The kernel's word that block devices come and go: datagrams of NETLINK_KOBJECT_UEVENT, without a library.
//!
//! A message is NUL-separated text: `ACTION@DEVPATH`, then `KEY=VALUE` fields. Only what the kernel itself sends counts
//! (port 0, its own multicast group); udev's copies go to another group. Messages can be lost when nobody reads in time;
//! that is told, so that whoever listens looks for himself.

use std::io;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::netlink::{KOBJECT_UEVENT, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};
use tokio::sync::mpsc::{self, UnboundedReceiver};

/// What became of a block device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Action {
    /// It is there.
    Add,
    /// It is gone.
    Remove,
}

/// A disk or partition that came or went.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Uevent {
    pub action: Action,
    /// Its name below `/dev`.
    pub name: String,
    /// The kernel's number of this very device (Linux 5.15): never given again, unlike the name.
    pub diskseq: Option<u64>,
}

/// What was heard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Heard {
    /// A device came or went.
    Device(Uevent),
    /// Nobody knows: messages were lost.
    Lost,
}

/// The multicast group of the kernel's own messages.
const KERNEL_GROUP: u32 = 1;
/// Longer than any: the kernel's limit is 2 KiB of fields.
const MESSAGE_BYTES_MAX: usize = 8192;
/// Room for a burst: a controller with many namespaces that goes.
const BUFFER_BYTES: usize = 1 << 20;

/// A message about a disk or partition that came or went; `None` for all others, and for devices of ublk: those are served by
/// ourselves or by somebody whose end would hang whoever looks at them.
fn parse(message: &[u8]) -> Option<Uevent> {
    let text = std::str::from_utf8(message).ok()?;
    let mut parts = text.split('\0');
    // udev's messages begin with `libudev`; the kernel's with the action.
    parts.next()?.split_once('@')?;
    let (mut action, mut is_block, mut name, mut diskseq) = (None, false, None, None);
    for (key, value) in parts.filter_map(|field| field.split_once('=')) {
        match key {
            "ACTION" => {
                action = match value {
                    "add" => Some(Action::Add),
                    "remove" => Some(Action::Remove),
                    _ => return None,
                };
            }
            "SUBSYSTEM" => is_block = value == "block",
            "DEVNAME" => name = Some(value.strip_prefix("/dev/").unwrap_or(value).to_owned()),
            "DISKSEQ" => diskseq = value.parse().ok(),
            _ => {}
        }
    }
    let is_path = |name: &String| {
        !name.is_empty() && !name.starts_with("ublkb") && !name.split('/').any(|part| part == "..")
    };
    Some(Uevent { action: action?, name: name.filter(|name| is_block && is_path(name))?, diskseq })
}

/// Listens, on a thread of its own: the channel brings each device that came or went, or that messages were lost. It
/// closes when the socket is of no more use; the thread ends with the process, or when nobody takes what it brings.
///
/// # Errors
/// What the kernel says: without the right, or in a container that has none of these messages.
pub(super) fn listen() -> io::Result<UnboundedReceiver<Heard>> {
    let socket = rustix::net::socket_with(
        AddressFamily::NETLINK,
        SocketType::DGRAM,
        SocketFlags::CLOEXEC,
        Some(KOBJECT_UEVENT),
    )?;
    // Best effort: the default holds some hundred messages.
    let _ = rustix::net::sockopt::set_socket_recv_buffer_size(&socket, BUFFER_BYTES);
    rustix::net::bind(&socket, &SocketAddrNetlink::new(0, KERNEL_GROUP))?;
    let (tell, heard) = mpsc::unbounded_channel();
    std::thread::Builder::new().name("uevents".into()).spawn(move || {
        loop {
            match next(&socket) {
                Ok(event) => {
                    if tell.send(event).is_err() {
                        return;
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "no more uevents");
                    return;
                }
            }
        }
    })?;
    Ok(heard)
}

/// Waits for the next device that comes or goes.
fn next(socket: &OwnedFd) -> io::Result<Heard> {
    loop {
        let mut bytes = [0_u8; MESSAGE_BYTES_MAX];
        match rustix::net::recvfrom(socket, &mut bytes[..], RecvFlags::empty()) {
            Ok((got, _, from)) => {
                let from = from.and_then(|from| SocketAddrNetlink::try_from(from).ok());
                if from.is_some_and(|from| from.pid() == 0)
                    && let Some(event) = parse(&bytes[..got])
                {
                    return Ok(Heard::Device(event));
                }
            }
            Err(Errno::NOBUFS) => return Ok(Heard::Lost),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(fields: &[&str]) -> Vec<u8> {
        fields.join("\0").into_bytes()
    }

    #[test]
    fn disks_and_partitions_that_come_and_go_are_told_and_nothing_else() {
        let gone = message(&[
            "remove@/devices/pci0000:00/0000:00:04.0/0000:01:00.0/nvme/nvme0/nvme0n1",
            "ACTION=remove",
            "DEVPATH=/devices/pci0000:00/0000:00:04.0/0000:01:00.0/nvme/nvme0/nvme0n1",
            "SUBSYSTEM=block",
            "MAJOR=259",
            "MINOR=4",
            "DEVNAME=nvme0n1",
            "DEVTYPE=disk",
            "DISKSEQ=17",
            "SEQNUM=2001",
            "",
        ]);
        let event = parse(&gone).unwrap();
        assert_eq!(event, Uevent { action: Action::Remove, name: "nvme0n1".into(), diskseq: Some(17) });
        let part = message(&["add@/x", "ACTION=add", "SUBSYSTEM=block", "DEVNAME=/dev/sda1", ""]);
        assert_eq!(parse(&part), Some(Uevent { action: Action::Add, name: "sda1".into(), diskseq: None }));
        for other in [
            message(&["change@/x", "ACTION=change", "SUBSYSTEM=block", "DEVNAME=sda"]),
            message(&["add@/x", "ACTION=add", "SUBSYSTEM=net", "DEVNAME=sda"]),
            message(&["add@/x", "ACTION=add", "SUBSYSTEM=block"]),
            message(&["add@/x", "ACTION=add", "SUBSYSTEM=block", "DEVNAME=ublkb0"]),
            message(&["add@/x", "ACTION=add", "SUBSYSTEM=block", "DEVNAME=../etc/passwd"]),
            message(&["libudev", "ACTION=add", "SUBSYSTEM=block", "DEVNAME=sda"]),
            vec![0xff, 0xfe, 0],
            Vec::new(),
        ] {
            assert_eq!(parse(&other), None, "{}", String::from_utf8_lossy(&other));
        }
    }
}
