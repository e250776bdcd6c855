//! The group engine: one file per step of a request.
