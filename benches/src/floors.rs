//! What measured claims have to hold: the floors of `floors.toml`, and the check of a record against them.
//!
//! Invariant: the check trusts no conclusion of the record. Median, ratio and pass are made again from its samples, and
//! the floor comes from the file of this build.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::record::{Case, Record};
use crate::stats::{SAMPLES_MIN, Summary};

/// The unit of a case's samples.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// A quotient without unit; more is better.
    Ratio,
    /// Operations per second; more is better.
    Iops,
    /// Bytes per second; more is better.
    BytesPerS,
    /// CPU time per operation, nanoseconds; less is better.
    CpuNsPerOp,
    /// A size; less is better.
    Bytes,
}

impl Unit {
    /// Whether a smaller number is the better one.
    #[must_use]
    pub const fn less_is_better(self) -> bool {
        matches!(self, Self::CpuNsPerOp | Self::Bytes)
    }
}

/// One claim: an id and what it must hold.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// The id of the case that measures it.
    pub id: String,
    /// What it is, for people.
    pub what: String,
    /// The unit of its samples.
    pub unit: Unit,
    /// What must hold: of the ratio where there is a peer, else of the median.
    pub floor: f64,
    /// What we aim at.
    pub goal: Option<f64>,
}

impl Claim {
    /// Whether a result keeps the floor. A ratio to a peer is better the greater it is, in rates; in costs the smaller.
    #[must_use]
    pub fn holds(&self, median: f64, ratio: Option<f64>) -> bool {
        let value = ratio.unwrap_or(median);
        if self.unit.less_is_better() { value <= self.floor } else { value >= self.floor }
    }
}

/// All claims.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Floors {
    claim: Vec<Claim>,
}

/// What the check says of one case.
#[derive(Clone, PartialEq, Debug)]
pub struct Finding {
    /// The case.
    pub id: String,
    /// Its result for people, or what is wrong with it.
    pub text: String,
    /// Whether all is well.
    pub pass: bool,
}

impl Floors {
    /// The floors this program was built with.
    ///
    /// # Panics
    /// If `floors.toml` is malformed, which its test finds.
    #[must_use]
    pub fn built_in() -> Self {
        toml::from_str(include_str!("../floors.toml")).expect("floors.toml was checked by its test")
    }

    /// The claim of this id.
    #[must_use]
    pub fn claim(&self, id: &str) -> Option<&Claim> {
        self.claim.iter().find(|claim| claim.id == id)
    }

    /// All claims, in the order of the file.
    #[must_use]
    pub fn claims(&self) -> &[Claim] {
        &self.claim
    }

    /// Checks every case of a record.
    #[must_use]
    pub fn check(&self, record: &Record) -> Vec<Finding> {
        let mut seen = BTreeSet::new();
        record
            .cases
            .iter()
            .map(|case| {
                let result =
                    if seen.insert(&case.id) { self.check_case(case) } else { Err("recorded twice".into()) };
                let pass = result.is_ok();
                let text = result.unwrap_or_else(|reason| reason);
                Finding { id: case.id.clone(), text, pass }
            })
            .collect()
    }

    /// The claims that none of the records measured.
    #[must_use]
    pub fn missing<'a>(&'a self, records: &[Record]) -> Vec<&'a Claim> {
        let is_there =
            |claim: &&Claim| records.iter().any(|record| record.cases.iter().any(|case| case.id == claim.id));
        self.claim.iter().filter(|claim| !is_there(claim)).collect()
    }

    fn check_case(&self, case: &Case) -> Result<String, String> {
        if case.samples.len() < SAMPLES_MIN {
            return Err(format!("{} samples, at least {SAMPLES_MIN} are needed", case.samples.len()));
        }
        let summary = Summary::of(&case.samples).ok_or("a sample that is not a number")?;
        let is_close = |a: f64, b: f64| (a - b).abs() <= 1e-9 * a.abs().max(b.abs());
        let recorded = Summary { median: case.median, min: case.min, max: case.max };
        for (a, b) in
            [(summary.median, recorded.median), (summary.min, recorded.min), (summary.max, recorded.max)]
        {
            if !is_close(a, b) {
                return Err(format!("summary {recorded:?} is not that of its samples, {summary:?}"));
            }
        }
        let ratio = case.peer.as_ref().map(|peer| summary.median / peer.median);
        if let Some(ratio) = ratio.filter(|ratio| !ratio.is_finite()) {
            return Err(format!("a ratio of {ratio} to its peer"));
        }
        let is_same = match (ratio, case.ratio) {
            (Some(a), Some(b)) => is_close(a, b),
            (None, None) => true,
            _ => false,
        };
        if !is_same {
            return Err(format!("ratio {:?} is not that of its medians, {ratio:?}", case.ratio));
        }
        let Some(claim) = self.claim(&case.id) else {
            return Ok(format!("{} (no floor)", show(case.unit, summary.median)));
        };
        self.check_claim(case, claim, summary, ratio)
    }

    fn check_claim(
        &self,
        case: &Case,
        claim: &Claim,
        summary: Summary,
        ratio: Option<f64>,
    ) -> Result<String, String> {
        if case.unit != claim.unit {
            return Err(format!("measured in {:?}, the claim is in {:?}", case.unit, claim.unit));
        }
        // A rate has a floor only in relation to a peer: an absolute one would be a claim about the machine.
        if matches!(claim.unit, Unit::Iops | Unit::BytesPerS) && ratio.is_none() {
            return Err("a rate without a peer to compare it with".into());
        }
        if !case.verified {
            return Err("the data that was moved was not verified".into());
        }
        let bound = if claim.unit.less_is_better() { "at most" } else { "at least" };
        let shown = match &case.peer {
            Some(peer) => format!(
                "{:.3} of {} {} ({} against {})",
                ratio.unwrap_or(f64::NAN),
                peer.name,
                peer.version,
                show(case.unit, summary.median),
                show(case.unit, peer.median)
            ),
            None => show(case.unit, summary.median),
        };
        let floor = if ratio.is_some() { format!("{}", claim.floor) } else { show(claim.unit, claim.floor) };
        let text = format!("{shown}, {bound} {floor}");
        if claim.holds(summary.median, ratio) { Ok(text) } else { Err(text) }
    }
}

/// A value with its unit.
#[must_use]
pub fn show(unit: Unit, value: f64) -> String {
    match unit {
        Unit::Ratio => format!("{value:.3}"),
        Unit::Iops => format!("{value:.0} IOPS"),
        Unit::BytesPerS => format!("{:.2} GB/s", value / 1e9),
        Unit::CpuNsPerOp => format!("{value:.1} ns of CPU"),
        Unit::Bytes => format!("{:.1} MiB", value / f64::from(1 << 20)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Peer;

    fn record(cases: Vec<Case>) -> Record {
        Record::of_this_run(cases)
    }

    fn verdict(case: Case) -> bool {
        let findings = Floors::built_in().check(&record(vec![case]));
        assert_eq!(findings.len(), 1);
        findings[0].pass
    }

    fn case(id: &str, value: f64, peer: Option<f64>) -> Case {
        let floors = Floors::built_in();
        let unit = floors.claim(id).map_or(Unit::Iops, |claim| claim.unit);
        let peer = peer.map(|median| Peer { name: "nbdkit".to_owned(), version: "1.42".to_owned(), median });
        Case::new(id, unit, vec![value; 7], peer, &floors).with_load(1, 32, true)
    }

    #[test]
    fn the_floors_file_is_well_formed_and_every_id_occurs_once() {
        let floors = Floors::built_in();
        let ids: BTreeSet<&str> = floors.claims().iter().map(|claim| claim.id.as_str()).collect();
        assert_eq!(ids.len(), floors.claims().len());
        assert!(floors.claims().iter().all(|claim| claim.floor > 0.0 && !claim.what.is_empty()));
        for id in ["engine.read4k.null.raid6_10", "nbd.read128k", "memory.rss_idle"] {
            assert!(ids.contains(id), "{id}");
        }
    }

    #[test]
    fn costs_are_bounded_from_above_and_rates_from_below() {
        assert!(verdict(case("engine.read4k.null.raid6_10", 100.0, None)));
        assert!(!verdict(case("engine.read4k.null.raid6_10", 100.1, None)));
        assert!(verdict(case("engine.write4k.ram.raid5", 0.5, None)));
        assert!(!verdict(case("engine.write4k.ram.raid5", 0.499, None)));
        assert!(verdict(case("memory.rss_idle", 104_857_599.0, None)));
        assert!(!verdict(case("memory.rss_idle", 104_857_600.0, None)));
        assert!(verdict(case("nbd.read128k", 81.0, Some(100.0))));
        assert!(!verdict(case("nbd.read128k", 79.0, Some(100.0))));
        assert!(verdict(case("no.such.claim", 1.0, None)));
    }

    #[test]
    fn a_record_cannot_talk_its_way_past_the_check() {
        let good = || case("nbd.read128k", 90.0, Some(100.0));
        assert!(verdict(good()));
        let short = Case { samples: vec![90.0; 6], ..good() };
        let median = Case { median: 200.0, ..good() };
        let maximum = Case { max: 91.0, ..good() };
        let ratio = Case { ratio: Some(0.95), ..good() };
        let no_peer = Case { peer: None, ratio: None, ..good() };
        let zero_peer = case("nbd.read128k", 90.0, Some(0.0));
        let unverified = Case { verified: false, ..good() };
        let unit = Case { unit: Unit::Ratio, ..good() };
        let pretended = Case { pass: true, floor: Some(0.1), ..case("nbd.read128k", 20.0, Some(100.0)) };
        for bad in [short, median, maximum, ratio, no_peer, zero_peer, unverified, unit, pretended] {
            assert!(!verdict(bad.clone()), "{bad:?}");
        }
        let twice = Floors::built_in().check(&record(vec![good(), good()]));
        assert_eq!(twice.iter().map(|finding| finding.pass).collect::<Vec<_>>(), [true, false]);
    }

    #[test]
    fn missing_claims_are_named() {
        let floors = Floors::built_in();
        let missing = floors.missing(&[record(vec![case("memory.rss_idle", 1.0, None)])]);
        assert_eq!(missing.len(), floors.claims().len() - 1);
        assert!(missing.iter().all(|claim| claim.id != "memory.rss_idle"));
    }
}
