//! Membership on simulated drives: which drives a group starts from, what a crash at any write leaves, who comes back.
//! One program, so that what all of it is made of is compiled once.

mod crash;
mod doors;
mod handover;
mod history;
mod life;
mod quiet;
mod readd;
mod rounds;
mod running;
mod succeed;
mod world;
