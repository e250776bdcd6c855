//! End-to-end tests live in `tests/tests/`; this library holds what they share: the daemon under test and its tools.
