//! Leases from the heap: each its own allocation, aligned to 512 bytes, filled with a pattern so that reading memory
//! nobody wrote shows up as wrong data.

use std::alloc::{Layout, alloc, dealloc, handle_alloc_error};
use std::cell::RefCell;
use std::ptr::NonNull;
use std::rc::Rc;

use raid_core::lease::{Lease, LeaseHome};
use raid_core::units::usize_of_u32;

/// Owner of one heap block.
struct HeapBlock {
    memory: RefCell<Option<(NonNull<u8>, Layout)>>,
}

impl LeaseHome for HeapBlock {
    fn give_back(&self, _key: u32) {
        if let Some((start, layout)) = self.memory.borrow_mut().take() {
            // SAFETY: `start` came from `alloc` with this layout in `lease`, and `take` makes this the only free; the
            // last handle is being dropped, so nobody reaches the memory any more.
            unsafe { dealloc(start.as_ptr(), layout) }
        }
    }
}

/// A lease of `len` bytes filled with 0xA5.
pub(crate) fn lease(len: u32) -> Lease {
    let layout = Layout::from_size_align(usize_of_u32(len.max(1)), 512).expect("a small block");
    // SAFETY: the layout has a non-zero size.
    let raw = unsafe { alloc(layout) };
    let Some(start) = NonNull::new(raw) else { handle_alloc_error(layout) };
    // SAFETY: `alloc` gave `layout.size()` writable bytes.
    unsafe { start.as_ptr().write_bytes(0xA5, layout.size()) };
    let home = Rc::new(HeapBlock { memory: RefCell::new(Some((start, layout))) });
    // SAFETY: the block is valid, initialised above, reached through nothing else, and freed only in `give_back`;
    // `home` owns it.
    unsafe { Lease::new(start, len, len, 0, home) }
}
