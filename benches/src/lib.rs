//! Measured claims: micro, engine and end-to-end benchmarks, and the check of their records against floors.toml.
