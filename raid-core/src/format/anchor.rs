//! Our anchor: 512 bytes in the last sector of the superblock's slot.
