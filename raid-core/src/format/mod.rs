//! What lies on the drives, as plain codecs over byte slices: no I/O here.
