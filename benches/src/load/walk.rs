//! The order in which a thread moves the transfers of its region.

use super::Pattern;
use crate::world::Random;

/// Gives one place after the other.
#[derive(Debug)]
pub(super) struct Walk {
    pattern: Pattern,
    places: u64,
    given: u64,
    /// As many are given, unless there is a deadline.
    count: u64,
    deadline_ns: Option<u64>,
    random: Random,
}

impl Walk {
    /// Over `places` transfers: once, or until the deadline.
    pub(super) fn new(pattern: Pattern, places: u64, deadline_ns: Option<u64>, seed: u64) -> Self {
        // A few words of a small seed are not random yet.
        let mut random = Random::new(seed + 1);
        for _ in 0..8 {
            random.word();
        }
        Self { pattern, places, given: 0, count: places, deadline_ns, random }
    }

    /// The next place, counted in transfers from the start of the region; `None` at the end.
    pub(super) fn next(&mut self, now_ns: u64) -> Option<u64> {
        let is_over = match self.deadline_ns {
            Some(deadline_ns) => now_ns >= deadline_ns,
            None => self.given >= self.count,
        };
        if is_over || self.places == 0 {
            return None;
        }
        let place = match self.pattern {
            Pattern::Sequential => self.given % self.places,
            Pattern::Random => self.random.below(self.places),
        };
        self.given += 1;
        Some(place)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_is_walked_once_or_until_the_deadline() {
        let mut walk = Walk::new(Pattern::Sequential, 3, None, 1);
        let places: Vec<u64> = core::iter::from_fn(|| walk.next(0)).collect();
        assert_eq!(places, [0, 1, 2]);
        let mut walk = Walk::new(Pattern::Sequential, 2, Some(10), 1);
        assert_eq!(
            [walk.next(0), walk.next(1), walk.next(9), walk.next(10)],
            [Some(0), Some(1), Some(0), None]
        );
        assert_eq!(Walk::new(Pattern::Random, 0, Some(10), 1).next(0), None);
    }

    #[test]
    fn random_places_are_spread_and_differ_by_seed() {
        let places = |seed| {
            let mut walk = Walk::new(Pattern::Random, 1000, None, seed);
            core::iter::from_fn(|| walk.next(0)).collect::<Vec<u64>>()
        };
        let (a, b) = (places(1), places(2));
        assert!(a.len() == 1000 && a != b && a.iter().all(|place| *place < 1000));
        let halves = a.iter().filter(|place| **place < 500).count();
        assert!((400..600).contains(&halves), "{halves}");
    }
}
