//! Which target is not like the others.
//!
//! The rule: the modified z-score of Iglewicz and Hoaglin (1993), 0.6745 (x - median) / MAD, over the targets' throughputs.
//! A target is an outlier if its score is beyond 3.5 *and* it is at least 10 % off the median: alike drives differ by little,
//! and what differs by less than that is nobody's fault. MAD counts as at least 1 % of the median, or a single odd drive among
//! equal ones would divide by zero. Below four targets there is no telling who is odd.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::stats::{Summary, f64_of};

/// Fewest targets among which one can be called odd.
pub const TARGETS_MIN: usize = 4;
/// The least score of an outlier.
const SCORE_MIN: f64 = 3.5;
/// The least distance of an outlier from the median, as a part of it.
const DISTANCE_MIN: f64 = 0.10;
/// MAD counts as at least this part of the median.
const SPREAD_MIN: f64 = 0.01;
/// Scales MAD to the standard deviation of a normal distribution.
const NORMAL: f64 = 0.6745;

/// The rule in a sentence, for reports.
pub const RULE: &str =
    "modified z-score of throughput beyond 3.5 and at least 10 % off the median, among 4 targets or more";

/// A target that is not like the others.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Outlier {
    /// Its place in the list of targets, from 0.
    pub index: u64,
    /// Its path or address.
    pub name: String,
    /// Its serial, where it has one.
    pub serial: Option<String>,
    /// Its throughput over the median of all targets.
    pub of_median: f64,
    /// Its modified z-score: negative is slower.
    pub score: f64,
}

/// What the rule says.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Judgement {
    /// The rule, in a sentence.
    pub rule: String,
    /// Whether there were enough targets to judge.
    pub judged: bool,
    /// The odd ones, slowest first.
    pub outliers: Vec<Outlier>,
}

/// Places and scores of the odd ones among `values`, least first; `None` if there are too few to tell.
#[must_use]
pub fn odd_ones(values: &[f64]) -> Option<Vec<(usize, f64)>> {
    if values.len() < TARGETS_MIN {
        return None;
    }
    let median = Summary::of(values)?.median;
    let distances: Vec<f64> = values.iter().map(|value| (value - median).abs()).collect();
    let spread = Summary::of(&distances)?.median.max(SPREAD_MIN * median);
    let score = |value: f64| if spread > 0.0 { NORMAL * (value - median) / spread } else { 0.0 };
    let mut odd: Vec<(usize, f64)> = values
        .iter()
        .enumerate()
        .map(|(index, &value)| (index, score(value)))
        .filter(|&(index, score)| score.abs() > SCORE_MIN && distances[index] >= DISTANCE_MIN * median)
        .collect();
    odd.sort_by(|a, b| a.1.total_cmp(&b.1));
    Some(odd)
}

/// Judges targets of these names, serials and throughputs.
#[must_use]
pub fn judge(targets: &[(String, Option<String>, f64)]) -> Judgement {
    let values: Vec<f64> = targets.iter().map(|(_, _, value)| *value).collect();
    let odd = odd_ones(&values);
    let median = Summary::of(&values).map_or(0.0, |summary| summary.median);
    let outliers = odd.iter().flatten().map(|&(index, score)| {
        let (name, serial, value) = &targets[index];
        let index = u64::try_from(index).unwrap_or(u64::MAX);
        Outlier { index, name: name.clone(), serial: serial.clone(), of_median: value / median, score }
    });
    Judgement { rule: RULE.to_owned(), judged: odd.is_some(), outliers: outliers.collect() }
}

/// The median of the absolute distances from the median: how much samples scatter, whatever the odd ones do.
#[must_use]
pub fn scatter(values: &[f64]) -> f64 {
    let Some(summary) = Summary::of(values) else { return 0.0 };
    let distances: Vec<f64> = values.iter().map(|value| (value - summary.median).abs()).collect();
    Summary::of(&distances).map_or(0.0, |summary| summary.median)
}

/// The mean; 0 of nothing.
#[must_use]
pub fn mean(values: &[f64]) -> f64 {
    let count = f64_of(u64::try_from(values.len()).unwrap_or(u64::MAX));
    if values.is_empty() { 0.0 } else { values.iter().sum::<f64>() / count }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(values: &[f64]) -> Option<Vec<usize>> {
        odd_ones(values).map(|odd| odd.into_iter().map(|(index, _)| index).collect())
    }

    #[test]
    fn a_slow_one_among_alike_ones_is_named() {
        assert_eq!(places(&[500.0, 498.0, 120.0, 505.0, 501.0, 499.0]), Some(vec![2]));
        // Also among exactly equal ones, and only just four of them.
        assert_eq!(places(&[100.0, 100.0, 100.0, 50.0]), Some(vec![3]));
        // And two of them, the slower first.
        assert_eq!(places(&[100.0, 101.0, 99.0, 50.0, 100.0, 20.0, 102.0]), Some(vec![5, 3]));
    }

    #[test]
    fn a_fast_one_is_named_too() {
        assert_eq!(places(&[100.0, 101.0, 99.0, 100.0, 900.0]), Some(vec![4]));
    }

    #[test]
    fn what_hardly_differs_is_nobodys_fault() {
        // 5 % off, ever so many spreads: below the least distance.
        assert_eq!(places(&[100.0, 100.0, 100.0, 100.0, 95.0]), Some(vec![]));
        // A wide field has no odd ones.
        assert_eq!(places(&[50.0, 80.0, 100.0, 120.0, 150.0]), Some(vec![]));
        // Nothing moved at all.
        assert_eq!(places(&[0.0; 6]), Some(vec![]));
    }

    #[test]
    fn few_targets_cannot_tell() {
        for n in 0..TARGETS_MIN {
            assert_eq!(places(&vec![1.0; n]), None);
        }
        let few = judge(&[("a".into(), None, 1.0), ("b".into(), None, 9.0)]);
        assert!(!few.judged && few.outliers.is_empty());
    }

    #[test]
    fn the_judgement_names_path_and_serial() {
        let all = [("a", 100.0), ("b", 100.0), ("c", 10.0), ("d", 100.0)];
        let list: Vec<_> =
            all.iter().map(|(name, v)| ((*name).to_owned(), Some(format!("S{name}")), *v)).collect();
        let judged = judge(&list);
        assert_eq!(judged.outliers.len(), 1);
        let odd = &judged.outliers[0];
        assert_eq!((odd.index, odd.name.as_str(), odd.serial.as_deref()), (2, "c", Some("Sc")));
        assert!((odd.of_median - 0.1).abs() < 1e-9 && odd.score < -3.5);
    }

    #[test]
    fn scatter_ignores_the_odd_one() {
        assert!((scatter(&[1.0, 2.0, 3.0, 4.0, 100.0]) - 1.0).abs() < 1e-9);
        assert!((mean(&[1.0, 2.0, 6.0]) - 3.0).abs() < 1e-9);
    }
}
