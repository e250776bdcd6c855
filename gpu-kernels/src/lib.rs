//! Parity on CUDA GPUs: kernels (`cuda/`, compiled to `ptx/`), the engine that drives a device, and the router that
//! decides between it and the CPU.
//!
//! **What is not here yet**: the device that is a real GPU (CUDA's driver API), and the daemon's use of all this. Nothing here
//! has run on a GPU. The kernel's functions are compared with the CPU's on the CPU, the engine and the router are tested over
//! a mock device.
//!
//! A job enters through [`Router`], the [`raid_core::ports::ParityEngine`] of a lane. The router computes it on the CPU or
//! hands its [`descriptor`] to a [`Gpu`], which batches the jobs of all lanes, runs them on a [`device::Device`] and wakes
//! the lane. Whatever goes wrong on the way (an error, no answer, a result that a check finds wrong), the router computes
//! the job on the CPU; a failed device is left alone until a fresh context has passed a self-test (SAFETY P5).
//!
//! Invariants: a GPU reads leases and never writes one: results land in memory of the device's own and are copied once, so
//! a device that wakes up late can spoil nothing. Without a GPU, or without NVIDIA's driver, nothing here runs.

pub mod cost;
pub mod descriptor;
pub mod device;
mod engine;
pub mod mock;
mod router;
pub mod selftest;
mod threads;
pub mod twin;

pub use engine::{Config, Gpu, GpuState, GpuStats, Listener, Notice, Open};
pub use router::{Decisions, Mode, Router, RouterConfig, Routing};
