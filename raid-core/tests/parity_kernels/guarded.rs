//! Columns between pages that cannot be touched: a kernel that reads or writes a byte outside dies.

use core::ptr::null_mut;

use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

const PAGE: usize = 4096;
/// What lies around a column inside its pages.
const CANARY: u8 = 0xee;

/// At which end of its pages a column lies; the bytes on the other side are canaries.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Edge {
    /// The first byte is the first of a page, and the page before cannot be touched.
    Start,
    /// The last byte is the last of a page, and the page behind cannot be touched.
    End,
    /// Nowhere near: so many bytes behind the start of a page.
    Shifted(usize),
}

/// Memory for one column.
pub(crate) struct Guarded {
    /// The page before.
    map: *mut u8,
    /// Between the two pages that cannot be touched.
    room: usize,
    start: usize,
    len: usize,
}

impl Guarded {
    /// Memory for columns of up to `len_max` bytes.
    pub(crate) fn new(len_max: usize) -> Self {
        let room = (len_max + 64).next_multiple_of(PAGE);
        let total = room + 2 * PAGE;
        // SAFETY: a new private mapping at a place the kernel chooses; its first and last page become untouchable.
        let map = unsafe {
            let flags = MapFlags::PRIVATE;
            let map = mmap_anonymous(null_mut(), total, ProtFlags::READ | ProtFlags::WRITE, flags).unwrap();
            mprotect(map, PAGE, MprotectFlags::empty()).unwrap();
            mprotect(map.byte_add(PAGE + room), PAGE, MprotectFlags::empty()).unwrap();
            map.cast::<u8>()
        };
        Self { map, room, start: 0, len: 0 }
    }

    /// Puts a column of these bytes at the edge.
    pub(crate) fn put(&mut self, bytes: &[u8], edge: Edge) {
        assert!(bytes.len() + 64 <= self.room);
        self.len = bytes.len();
        self.start = match edge {
            Edge::Start => 0,
            Edge::End => self.room - bytes.len(),
            Edge::Shifted(shift) => shift,
        };
        let (start, len) = (self.start, self.len);
        let around = self.around();
        around[..start].iter_mut().rev().take(2 * PAGE).for_each(|byte| *byte = CANARY);
        around[start + len..].iter_mut().take(2 * PAGE).for_each(|byte| *byte = CANARY);
        self.column().copy_from_slice(bytes);
    }

    fn around(&mut self) -> &mut [u8] {
        // SAFETY: the mapping is ours alone and lives as long as `self`; these are its pages that can be touched.
        unsafe { core::slice::from_raw_parts_mut(self.map.add(PAGE), self.room) }
    }

    pub(crate) fn column(&mut self) -> &mut [u8] {
        let range = self.start..self.start + self.len;
        &mut self.around()[range]
    }

    /// The column, read only.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: as `around`, and `start + len` is inside.
        unsafe { core::slice::from_raw_parts(self.map.add(PAGE + self.start), self.len) }
    }

    /// The column holds this, and nothing around it was written.
    #[track_caller]
    pub(crate) fn expect(&mut self, want: &[u8], what: impl Fn() -> String) {
        assert!(self.column() == want, "{}: wrong bytes", what());
        let (start, len) = (self.start, self.len);
        let around = self.around();
        let mut near =
            around[..start].iter().rev().take(2 * PAGE).chain(around[start + len..].iter().take(2 * PAGE));
        assert!(near.all(|&byte| byte == CANARY), "{}: wrote outside its output", what());
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        // SAFETY: the whole mapping that `new` made, which nothing borrows any more.
        unsafe { munmap(self.map.cast(), self.room + 2 * PAGE).unwrap() }
    }
}
