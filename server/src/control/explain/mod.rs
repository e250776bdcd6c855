//! What every stable code means, what it risks and what to do: `warpraid explain CODE`, without a daemon.
//!
//! Three kinds of codes, each an enum with one table: [`ProblemCode`] (what `status` shows), [`ErrorCode`] (why a verb did
//! not work) and [`EventCode`] (what happened). A document carries a [`Code`], which can only be made of one of them,
//! and none of them compiles without its explanation: a code that is used has an entry.

mod errors;
mod events;
mod problems;

use core::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::error::{ApiError, ErrorCode};
use super::model::{ExplanationDoc, ExplanationListDoc};

pub use events::EventCode;
pub use problems::ProblemCode;

/// What kind of code it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CodeKind {
    /// Something that is not as it should be: the CODE of `warpraid status`.
    Problem,
    /// Why a verb did not work.
    Error,
    /// Something that happened: `warpraid events`.
    Event,
}

/// What a code means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Explanation {
    /// A few words.
    pub title: &'static str,
    /// What it means.
    pub means: &'static str,
    /// What it risks.
    pub risks: &'static str,
    /// What to do, step by step.
    pub steps: &'static [&'static str],
    /// A command, or what it looks like.
    pub example: &'static str,
}

/// A code in a document: one of ours, or that of a daemon that is newer than this program.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(inline)]
pub struct Code(String);

impl Code {
    /// The text scripts match on.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<ProblemCode> for Code {
    fn from(code: ProblemCode) -> Self {
        Self(code.as_str().to_owned())
    }
}

impl From<ErrorCode> for Code {
    fn from(code: ErrorCode) -> Self {
        Self(code.as_str().to_owned())
    }
}

impl From<EventCode> for Code {
    fn from(code: EventCode) -> Self {
        Self(code.as_str().to_owned())
    }
}

impl PartialEq<str> for Code {
    fn eq(&self, other: &str) -> bool {
        self.0 == other
    }
}

impl PartialEq<&str> for Code {
    fn eq(&self, other: &&str) -> bool {
        self.0 == *other
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn doc(code: &'static str, kind: CodeKind, it: Explanation) -> ExplanationDoc {
    ExplanationDoc {
        code: code.to_owned(),
        kind,
        title: it.title.to_owned(),
        means: it.means.to_owned(),
        risks: it.risks.to_owned(),
        steps: it.steps.iter().map(|&step| step.to_owned()).collect(),
        example: it.example.to_owned(),
        exit_code: ErrorCode::parse(code).map(|error| error.exit().code()),
    }
}

/// Every code with its explanation: problems, then events, then errors, each in the order of its table.
#[must_use]
pub fn all() -> ExplanationListDoc {
    let problems = ProblemCode::ALL.iter().map(|it| doc(it.as_str(), CodeKind::Problem, it.explanation()));
    let events = EventCode::ALL.iter().map(|it| doc(it.as_str(), CodeKind::Event, it.explanation()));
    // A group that is offline is a problem, and a reason why a verb did not work: one entry.
    let errors = ErrorCode::ALL.iter().filter(|it| ProblemCode::parse(it.as_str()).is_none());
    let errors = errors.map(|it| doc(it.as_str(), CodeKind::Error, errors::explanation(*it)));
    ExplanationListDoc { codes: problems.chain(events).chain(errors).collect() }
}

/// The explanation of a code.
///
/// # Errors
/// `code.unknown`, with the codes that are spelt most like it.
pub fn explain(code: &str) -> Result<ExplanationDoc, ApiError> {
    let mut codes = all().codes;
    let wanted = code.trim().to_ascii_lowercase();
    if let Some(at) = codes.iter().position(|it| it.code == wanted) {
        return Ok(codes.swap_remove(at));
    }
    let near = near(&wanted, codes.iter().map(|it| it.code.as_str()));
    let message = format!("there is no code \"{}\"", super::names::shown(code));
    let hint = if near.is_empty() {
        "warpraid explain lists all codes".to_owned()
    } else {
        format!("did you mean {}? warpraid explain lists all codes", near.join(", "))
    };
    Err(ApiError::new(ErrorCode::CodeUnknown, message).hint(hint))
}

/// The codes spelt most like this, best first, at most five.
fn near<'a>(wanted: &str, codes: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut near: Vec<(usize, &str)> = codes
        .filter_map(|code| {
            let holds = wanted.len() >= 3 && (code.contains(wanted) || wanted.contains(code));
            let distance = if holds { 0 } else { distance(wanted, code) };
            (distance <= 1 + code.len() / 4).then_some((distance, code))
        })
        .collect();
    near.sort_unstable();
    near.dedup();
    near.into_iter().take(5).map(|(_, code)| code).collect()
}

/// Fewest letters to insert, remove or replace (Levenshtein); texts beyond 64 letters count as far apart.
fn distance(one: &str, other: &str) -> usize {
    if one.len() > 64 {
        return usize::MAX;
    }
    let other: Vec<char> = other.chars().collect();
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in other.iter().enumerate() {
            let cost = diagonal + usize::from(a != *b);
            diagonal = row[j + 1];
            row[j + 1] = cost.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_code_is_explained_and_none_twice() {
        let all = all().codes;
        let names: BTreeSet<&str> = all.iter().map(|it| it.code.as_str()).collect();
        assert_eq!(names.len(), all.len(), "a code is in two tables");
        for code in ErrorCode::ALL {
            assert!(names.contains(code.as_str()) && !errors::explanation(*code).title.is_empty(), "{code}");
        }
        for it in &all {
            assert!(it.code.contains('.') || it.code == "internal" || it.code == "io", "{}", it.code);
            assert!(it.code.bytes().all(|b| b.is_ascii_lowercase() || b == b'.' || b == b'_'), "{}", it.code);
            for (what, text) in [("title", &it.title), ("means", &it.means), ("risks", &it.risks)] {
                assert!(text.len() >= 4, "{}: {what} says nothing", it.code);
            }
            assert!(!it.steps.is_empty() && it.steps.iter().all(|step| step.len() > 8), "{}", it.code);
            assert!(!it.example.is_empty(), "{}", it.code);
            assert_eq!(explain(&it.code).as_ref(), Ok(it));
        }
    }

    #[test]
    fn an_unknown_code_names_its_neighbours() {
        let error = explain("group.degarded").unwrap_err();
        assert_eq!(error.code, ErrorCode::CodeUnknown);
        assert!(error.hint.unwrap().contains("did you mean group.degraded"));
        assert!(explain("offline").unwrap_err().hint.unwrap().contains("group.offline"));
        for none in ["", "zzzzzzzzzzzz", &"x".repeat(100_000)] {
            assert_eq!(explain(none).unwrap_err().hint.unwrap(), "warpraid explain lists all codes");
        }
        assert_eq!(explain(" Group.Degraded ").unwrap().code, "group.degraded");
    }

    #[test]
    fn distances() {
        for (one, other, expected) in
            [("", "abc", 3), ("abc", "abc", 0), ("abc", "acb", 2), ("kitten", "sitting", 3)]
        {
            assert_eq!(distance(one, other), expected, "{one} {other}");
        }
    }
}
