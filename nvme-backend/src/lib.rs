//! The reactor (one io_uring per lane) and the drives behind it: file and block device, RAM, null; the DMA arena.
