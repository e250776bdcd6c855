//! One lane: the environment raid-core runs in, over the reactor.
