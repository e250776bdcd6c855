//! Stamps: blocks that carry their own offset, write number and checksum, and a plain NBD client; shares no code with the engine.
