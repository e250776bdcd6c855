//! Statistics of samples: median, least and most. No mean: one disturbed sample would move it.

/// Fewest samples of a case that may be recorded.
pub const SAMPLES_MIN: usize = 7;

/// What samples are summed up as.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Summary {
    /// The middle sample; for an even number of samples the mean of the two in the middle.
    pub median: f64,
    /// The least sample.
    pub min: f64,
    /// The greatest sample.
    pub max: f64,
}

impl Summary {
    /// The summary of samples; `None` of no samples, or if one is not a number.
    #[must_use]
    pub fn of(samples: &[f64]) -> Option<Self> {
        if samples.is_empty() || samples.iter().any(|sample| !sample.is_finite()) {
            return None;
        }
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        let median = match sorted.len() % 2 {
            1 => sorted[middle],
            _ => f64::midpoint(sorted[middle - 1], sorted[middle]),
        };
        Some(Self { median, min: sorted[0], max: sorted[sorted.len() - 1] })
    }
}

/// `n` as a floating-point number; counts over 2^53 lose their last digits, which no measurement has.
#[must_use]
pub fn f64_of(n: u64) -> f64 {
    #[allow(clippy::as_conversions, clippy::cast_precision_loss)]
    {
        n as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_of_odd_and_even_numbers_of_samples() {
        let odd = Summary::of(&[5.0, 1.0, 9.0]).unwrap();
        assert_eq!(odd, Summary { median: 5.0, min: 1.0, max: 9.0 });
        let even = Summary::of(&[4.0, 1.0, 9.0, 2.0]).unwrap();
        assert_eq!(even, Summary { median: 3.0, min: 1.0, max: 9.0 });
        assert_eq!(Summary::of(&[]), None);
        assert_eq!(Summary::of(&[1.0, f64::NAN]), None);
    }
}
