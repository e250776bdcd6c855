//! Checks that every test of a group ends with.

use std::path::Path;

/// Asserts that parity and copies on the members agree with the data; the group must be quiet, complete and in sync.
pub fn assert_redundant<P: AsRef<Path>>(drives: &[P]) {
    let checked =
        stamps::members::check(drives, |_| {}).unwrap_or_else(|error| panic!("the members: {error}"));
    let shown: Vec<String> = checked.mismatches.iter().take(8).map(ToString::to_string).collect();
    assert!(
        shown.is_empty(),
        "{} of {} stripes do not fit: {shown:?}",
        checked.mismatches.len(),
        checked.stripes
    );
    assert!(checked.stripes > 0, "nothing was checked");
}

/// The levels with a width each: (level, drives, how many may fail whichever they are).
pub const LEVELS: [(u32, usize, usize); 5] = [(0, 3, 0), (1, 2, 1), (5, 4, 1), (6, 6, 2), (10, 4, 1)];
