//! `explain`: what a code means, what it risks, what to do. Needs no daemon.

use core::fmt::Write;

use server::control::Reply;
use server::control::explain::{self, CodeKind};
use server::control::model::{ExplanationDoc, ExplanationListDoc};

use crate::output::{Ended, Output};
use crate::render::{table, word};

pub(crate) fn run(code: Option<&str>, output: &Output) -> Ended {
    match code {
        Some(code) => output.local(Reply::from(explain::explain(code)?), one),
        None => output.local(Reply::from(explain::all()), list),
    }
}

fn one(doc: &ExplanationDoc) -> String {
    let mut text = format!("{} ({}): {}\n\n", doc.code, word(&doc.kind), doc.title);
    let _ = writeln!(text, "MEANS   {}\nRISK    {}", doc.means, doc.risks);
    for (i, step) in doc.steps.iter().enumerate() {
        let _ = writeln!(text, "{}{}. {step}", if i == 0 { "DO      " } else { "        " }, i + 1);
    }
    let _ = writeln!(text, "EXAMPLE {}", doc.example);
    if let Some(exit) = doc.exit_code {
        let _ = writeln!(text, "EXIT    {exit}");
    }
    text
}

fn list(doc: &ExplanationListDoc) -> String {
    let mut text = String::new();
    let kinds = [
        (CodeKind::Problem, "problems: what status shows"),
        (CodeKind::Event, "events: what happened"),
        (CodeKind::Error, "errors: why a verb did not work"),
    ];
    for (kind, title) in kinds {
        let of_kind = doc.codes.iter().filter(|it| it.kind == kind);
        let rows: Vec<Vec<String>> =
            of_kind.map(|it| vec![format!("  {}", it.code), it.title.clone()]).collect();
        let _ = write!(text, "{title}\n{}\n", table(&rows));
    }
    text.push_str("warpraid explain CODE says what to do\n");
    text
}
