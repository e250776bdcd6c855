//! The control device: devices are made, described, started, taken over, stopped and deleted.

use std::fs::{File, OpenOptions};
use std::io;

use super::protocol::{DeviceInfo, INFO_BYTES, PARAMS_BYTES, Params, field};
use crate::ring::ublk::control;

/// The device that makes devices.
pub const CONTROL_PATH: &str = "/dev/ublk-control";
/// `_IOC('u', number)` over a command of `bytes`; `direction`: 2 for `_IOR`, 3 for `_IOWR`.
pub(super) const fn op(direction: u32, number: u32, bytes: u32) -> u32 {
    (direction << 30) | (bytes << 16) | (0x75 << 8) | number
}
const fn control_op(direction: u32, number: u32) -> u32 {
    op(direction, number, 32)
}
const GET_DEV_INFO: u32 = control_op(2, 0x02);
const ADD_DEV: u32 = control_op(3, 0x04);
const DEL_DEV: u32 = control_op(3, 0x05);
const START_DEV: u32 = control_op(3, 0x06);
const STOP_DEV: u32 = control_op(3, 0x07);
const SET_PARAMS: u32 = control_op(3, 0x08);
const GET_PARAMS: u32 = control_op(2, 0x09);
const START_USER_RECOVERY: u32 = control_op(3, 0x10);
const END_USER_RECOVERY: u32 = control_op(3, 0x11);
const GET_FEATURES: u32 = control_op(2, 0x13);
const UPDATE_SIZE: u32 = control_op(3, 0x15);
const QUIESCE_DEV: u32 = control_op(3, 0x16);
const TRY_STOP_DEV: u32 = control_op(3, 0x17);

/// The control device. Every call blocks its thread, some until lanes have done their part: never on a lane.
#[derive(Debug)]
pub struct Control(File);

impl Control {
    /// Opens it.
    ///
    /// # Errors
    /// `NotFound`: the module `ublk_drv` is not there; `PermissionDenied`: root is needed.
    pub fn open() -> io::Result<Self> {
        Ok(Self(OpenOptions::new().read(true).write(true).open(CONTROL_PATH)?))
    }

    fn send(&self, op: u32, id: u32, data: u64, buffer: Vec<u8>) -> io::Result<Vec<u8>> {
        match control(&self.0, op, id, data, buffer)? {
            (result, buffer) if result >= 0 => Ok(buffer),
            (result, _) => Err(io::Error::from_raw_os_error(-result)),
        }
    }

    fn tell(&self, op: u32, id: u32, data: u64) -> io::Result<()> {
        self.send(op, id, data, Vec::new()).map(drop)
    }

    /// The [`super::feature`]s of this kernel.
    ///
    /// # Errors
    /// What the kernel says; before 6.5 it does not know the question.
    pub fn features(&self) -> io::Result<u64> {
        let bytes = self.send(GET_FEATURES, u32::MAX, 0, vec![0; 8])?;
        Ok(u64::from_ne_bytes(field(&bytes, 0)))
    }

    /// Makes a device; the kernel may give it fewer queues.
    ///
    /// # Errors
    /// What the kernel says; `EEXIST`, `ENOSPC` and `EACCES` among them.
    pub fn add(&self, wanted: &DeviceInfo) -> io::Result<DeviceInfo> {
        Ok(DeviceInfo::decode(&self.send(ADD_DEV, wanted.id, 0, wanted.encode())?))
    }

    /// What the kernel knows of a device.
    ///
    /// # Errors
    /// `ENODEV`: there is none.
    pub fn info(&self, id: u32) -> io::Result<DeviceInfo> {
        Ok(DeviceInfo::decode(&self.send(GET_DEV_INFO, id, 0, vec![0; INFO_BYTES])?))
    }

    /// Says what disk it is; before [`Self::start`].
    ///
    /// # Errors
    /// `EINVAL`: the kernel does not take these.
    pub fn set_params(&self, id: u32, params: &Params) -> io::Result<()> {
        self.send(SET_PARAMS, id, 0, params.encode()).map(drop)
    }

    /// What was said.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn params(&self, id: u32) -> io::Result<Params> {
        let mut bytes = vec![0; PARAMS_BYTES];
        bytes[0..4].copy_from_slice(&60_u32.to_ne_bytes());
        Ok(Params::decode(&self.send(GET_PARAMS, id, 0, bytes)?))
    }

    /// Brings the block device up; completes when every tag of every queue was fetched and partitions were looked for.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn start(&self, id: u32) -> io::Result<()> {
        self.tell(START_DEV, id, u64::from(std::process::id()))
    }

    /// Takes the block device away, whoever uses it.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn stop(&self, id: u32) -> io::Result<()> {
        self.tell(STOP_DEV, id, 0)
    }

    /// Takes the block device away if nobody has it open ([`super::feature::SAFE_STOP_DEV`]).
    ///
    /// # Errors
    /// `EBUSY`: somebody has.
    pub fn try_stop(&self, id: u32) -> io::Result<()> {
        self.tell(TRY_STOP_DEV, id, 0)
    }

    /// Forgets the device; completes when its character device is closed everywhere.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn delete(&self, id: u32) -> io::Result<()> {
        self.tell(DEL_DEV, id, 0)
    }

    /// Begins to take over a device whose server is gone.
    ///
    /// # Errors
    /// `EBUSY`: the kernel is not done with the old one yet.
    pub fn start_recovery(&self, id: u32) -> io::Result<()> {
        self.tell(START_USER_RECOVERY, id, 0)
    }

    /// Ends that: requests that were in flight are sent again. Completes when every tag was fetched.
    ///
    /// # Errors
    /// What the kernel says.
    pub fn end_recovery(&self, id: u32) -> io::Result<()> {
        self.tell(END_USER_RECOVERY, id, u64::from(std::process::id()))
    }

    /// Lets no request reach the server any more ([`super::feature::QUIESCE`]): those it has it answers, later ones wait for the
    /// next server. `timeout_ms`: how long every queue may take to have a tag that waits for a request.
    ///
    /// # Errors
    /// `ETIMEDOUT`: a queue stayed full; then the device goes on as before.
    pub fn quiesce(&self, id: u32, timeout_ms: u32) -> io::Result<()> {
        self.tell(QUIESCE_DEV, id, u64::from(timeout_ms))
    }

    /// Changes the size of a device that is served ([`super::feature::UPDATE_SIZE`]).
    ///
    /// # Errors
    /// What the kernel says.
    pub fn update_size(&self, id: u32, sectors: u64) -> io::Result<()> {
        self.tell(UPDATE_SIZE, id, sectors)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_numbers_are_those_of_the_kernel() {
        // UBLK_U_CMD_ADD_DEV and UBLK_U_CMD_GET_FEATURES as a C compiler expands them.
        assert_eq!(ADD_DEV, 0xc020_7504);
        assert_eq!(GET_FEATURES, 0x8020_7513);
    }
}
