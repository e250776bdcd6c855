//! What a stable code means.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::control::explain::CodeKind;

/// What a stable code means, what it risks, what to do.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ExplanationDoc {
    /// The code.
    pub code: String,
    /// What kind of code.
    pub kind: CodeKind,
    /// A few words.
    pub title: String,
    /// What it means.
    pub means: String,
    /// What it risks.
    pub risks: String,
    /// What to do, step by step.
    pub steps: Vec<String>,
    /// A command.
    pub example: String,
    /// The exit code of a verb that fails with this code; none of codes that are no errors.
    #[serde(default)]
    pub exit_code: Option<u8>,
}

/// Every code.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ExplanationListDoc {
    /// Problems, then events, then errors.
    pub codes: Vec<ExplanationDoc>,
}
