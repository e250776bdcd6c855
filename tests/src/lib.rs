//! Stamps: blocks that carry their own offset, write number and checksum; shares no code with the engine.
