//! The one binary: client verbs, `serve` and `demo`.

fn main() {}
