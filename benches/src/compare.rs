//! Two records side by side, case by case, and which differences are more than noise.
//!
//! The rule: a difference counts if the ranges of the samples do not meet, or, with five samples or more on both sides, if the
//! medians are further apart than three standard deviations (1.4826 MAD, the larger of the two). One sample on either side
//! says nothing about noise.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::floors::{Unit, show};
use crate::outlier::scatter;
use crate::record::{Case, Machine, Record};

/// From so many samples on, their scatter is a measure of noise.
const SAMPLES_MIN: usize = 5;
/// Makes a standard deviation of MAD.
const NORMAL: f64 = 1.4826;
/// How many standard deviations are more than noise.
const DEVIATIONS: f64 = 3.0;

/// What a difference is worth.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// B is better by more than noise.
    Better,
    /// B is worse by more than noise.
    Worse,
    /// The difference is not more than noise.
    Same,
    /// Too few samples to know.
    Unknown,
}

/// A target that both cases have.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct TargetRatio {
    /// Its path or address.
    pub name: String,
    /// Throughput of B over that of A.
    pub ratio: f64,
}

/// One case of both records.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct CaseRatio {
    /// Its id.
    pub id: String,
    /// The unit of its samples.
    pub unit: Unit,
    /// Median of A.
    pub median_a: f64,
    /// Median of B.
    pub median_b: f64,
    /// B over A.
    pub ratio: f64,
    /// What the difference is worth.
    pub verdict: Verdict,
    /// Targets that are in both.
    pub targets: Vec<TargetRatio>,
}

/// Two records side by side.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Comparison {
    /// What A was built from.
    pub commit_a: String,
    /// What B was built from.
    pub commit_b: String,
    /// Where A ran.
    pub machine_a: Machine,
    /// Where B ran.
    pub machine_b: Machine,
    /// Whether both ran on the same kind of machine.
    pub same_machine: bool,
    /// Cases that are in both, in the order of A.
    pub cases: Vec<CaseRatio>,
    /// Cases that only A has.
    pub only_in_a: Vec<String>,
    /// Cases that only B has.
    pub only_in_b: Vec<String>,
}

fn exceeds_noise(a: &Case, b: &Case) -> Option<bool> {
    if a.samples.len().min(b.samples.len()) < 2 {
        return None;
    }
    if a.max < b.min || b.max < a.min {
        return Some(true);
    }
    if a.samples.len().min(b.samples.len()) < SAMPLES_MIN {
        return Some(false);
    }
    let noise = NORMAL * scatter(&a.samples).max(scatter(&b.samples));
    Some(noise > 0.0 && (a.median - b.median).abs() > DEVIATIONS * noise)
}

fn verdict(a: &Case, b: &Case) -> Verdict {
    let is_better = if a.unit.less_is_better() { b.median < a.median } else { b.median > a.median };
    match exceeds_noise(a, b) {
        None => Verdict::Unknown,
        Some(false) => Verdict::Same,
        Some(true) if is_better => Verdict::Better,
        Some(true) => Verdict::Worse,
    }
}

fn target_ratios(a: &Case, b: &Case) -> Vec<TargetRatio> {
    let (Some(a), Some(b)) = (&a.detail, &b.detail) else { return Vec::new() };
    let mut ratios = Vec::new();
    for target in &a.targets {
        let other = b.targets.iter().find(|other| {
            other.name == target.name || (other.serial.is_some() && other.serial == target.serial)
        });
        if let Some(other) = other.filter(|_| target.throughput_bytes_per_s > 0.0) {
            let ratio = other.throughput_bytes_per_s / target.throughput_bytes_per_s;
            ratios.push(TargetRatio { name: target.name.clone(), ratio });
        }
    }
    ratios
}

/// Compares two records.
#[must_use]
pub fn compare(a: &Record, b: &Record) -> Comparison {
    let find = |record: &Record, id: &str, unit: Unit| {
        record.cases.iter().find(|case| case.id == id && case.unit == unit).cloned()
    };
    let mut cases = Vec::new();
    let mut only_in_a = Vec::new();
    for case in &a.cases {
        match find(b, &case.id, case.unit) {
            Some(other) => cases.push(CaseRatio {
                id: case.id.clone(),
                unit: case.unit,
                median_a: case.median,
                median_b: other.median,
                ratio: if case.median == 0.0 { 0.0 } else { other.median / case.median },
                verdict: verdict(case, &other),
                targets: target_ratios(case, &other),
            }),
            None => only_in_a.push(case.id.clone()),
        }
    }
    let only = b.cases.iter().filter(|case| find(a, &case.id, case.unit).is_none());
    Comparison {
        commit_a: a.commit.clone(),
        commit_b: b.commit.clone(),
        machine_a: a.machine.clone(),
        machine_b: b.machine.clone(),
        same_machine: a.machine == b.machine,
        cases,
        only_in_a,
        only_in_b: only.map(|case| case.id.clone()).collect(),
    }
}

/// The comparison as text.
#[must_use]
pub fn text(comparison: &Comparison) -> String {
    let mut text = String::new();
    if !comparison.same_machine {
        let (a, b) = (&comparison.machine_a, &comparison.machine_b);
        text.push_str(&format!(
            "different machines: A {}, {} cores, {}; B {}, {} cores, {}\n",
            a.cpu, a.cores, a.kernel, b.cpu, b.cores, b.kernel
        ));
    }
    let width = comparison.cases.iter().map(|case| case.id.len()).max().unwrap_or(4).max(4);
    text.push_str(&format!("{:<width$}  {:>14}  {:>14}  {:>7}  VERDICT\n", "CASE", "A", "B", "B / A"));
    for case in &comparison.cases {
        let word = match case.verdict {
            Verdict::Better => "better",
            Verdict::Worse => "WORSE",
            Verdict::Same => "within noise",
            Verdict::Unknown => "one sample: noise unknown",
        };
        let (a, b) = (show(case.unit, case.median_a), show(case.unit, case.median_b));
        text.push_str(&format!("{:<width$}  {a:>14}  {b:>14}  {:>7.3}  {word}\n", case.id, case.ratio));
        for target in case.targets.iter().filter(|target| !(0.9..=1.1).contains(&target.ratio)) {
            text.push_str(&format!("  {}: {:.3} of what it was\n", target.name, target.ratio));
        }
    }
    for (name, ids) in [("A", &comparison.only_in_a), ("B", &comparison.only_in_b)] {
        for id in ids {
            text.push_str(&format!("{id}: only in {name}\n"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::floors::Floors;

    fn case(id: &str, unit: Unit, samples: &[f64]) -> Case {
        Case::measured(id, unit, samples.to_vec(), &Floors::built_in())
    }

    fn judged(unit: Unit, a: &[f64], b: &[f64]) -> Verdict {
        verdict(&case("x", unit, a), &case("x", unit, b))
    }

    #[test]
    fn only_what_exceeds_the_noise_counts() {
        let a = [100.0, 101.0, 99.0, 100.5, 99.5];
        assert_eq!(judged(Unit::Iops, &a, &[120.0, 121.0, 119.0, 120.0, 120.0]), Verdict::Better);
        assert_eq!(judged(Unit::Iops, &a, &[80.0, 81.0, 79.0]), Verdict::Worse);
        assert_eq!(judged(Unit::Iops, &a, &[100.4, 101.0, 99.2, 100.0, 99.9]), Verdict::Same);
        // One sample far off makes the ranges meet; the scatter still tells.
        assert_eq!(judged(Unit::Iops, &a, &[120.0, 121.0, 119.0, 120.0, 100.0]), Verdict::Better);
        // With few samples and ranges that meet there is no telling.
        assert_eq!(judged(Unit::Iops, &[1.0, 9.0], &[5.0, 6.0]), Verdict::Same);
        assert_eq!(judged(Unit::Iops, &[1.0], &[5.0, 6.0]), Verdict::Unknown);
        assert_eq!(judged(Unit::CpuNsPerOp, &a, &[80.0, 81.0, 79.0]), Verdict::Better);
    }

    #[test]
    fn cases_are_matched_by_id_and_unit() {
        let record = |cases| Record::of_commit("v".into(), cases);
        let a = record(vec![case("x", Unit::Iops, &[1.0, 1.0]), case("a", Unit::Iops, &[1.0])]);
        let b = record(vec![
            case("b", Unit::Iops, &[1.0]),
            case("a", Unit::Ratio, &[1.0]),
            case("x", Unit::Iops, &[2.0, 2.0]),
        ]);
        let found = compare(&a, &b);
        assert_eq!((found.cases.len(), found.only_in_a, found.only_in_b.len()), (1, vec!["a".to_owned()], 2));
        assert!((found.cases[0].ratio - 2.0).abs() < 1e-9 && found.same_machine);
        let said = text(&compare(&a, &b));
        assert!(said.contains("x            1 IOPS") || said.contains("better"), "{said}");
        assert!(said.contains("a: only in A\n") && said.contains("b: only in B\n"), "{said}");
    }
}
