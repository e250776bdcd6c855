//! Pieces of the human view: tables, fields, progress, and what a changing verb did.

use core::fmt::Write;

use serde::Serialize;
use server::control::model::{ActionDoc, LevelDoc, MkfsDoc, ProgressDoc};

use crate::units::{human, span};

/// Rows with aligned columns, the first row a header if there is one; no blanks at line ends.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let line: String = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}  ")).collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// A header row.
pub(crate) fn header(names: &[&str]) -> Vec<String> {
    names.iter().map(|&name| name.to_owned()).collect()
}

/// Lines of a name and a value, values aligned; empty values are left out.
pub(crate) fn fields(rows: &[(&str, String)]) -> String {
    let rows: Vec<Vec<String>> = rows
        .iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(name, value)| vec![(*name).to_owned(), value.clone()])
        .collect();
    table(&rows)
}

/// The word of an enum as the API spells it, underscores as blanks.
pub(crate) fn word(value: &impl Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(text)) => text.replace('_', " "),
        _ => String::new(),
    }
}

/// A level as people write it.
pub(crate) fn level(level: LevelDoc) -> String {
    word(&level).replace("raid", "RAID ")
}

/// How many, and of what.
pub(crate) fn count_of<T>(things: &[T], noun: &str) -> String {
    count(u64::try_from(things.len()).unwrap_or(u64::MAX), noun)
}

/// A count and its noun.
pub(crate) fn count(n: u64, noun: &str) -> String {
    if n == 1 { format!("1 {noun}") } else { format!("{n} {noun}s") }
}

/// A text or a dash.
pub(crate) fn or_dash(text: Option<&String>) -> String {
    text.cloned().unwrap_or_else(|| "-".into())
}

/// How far something is, in a line.
pub(crate) fn progress(progress: &ProgressDoc) -> String {
    let what = match progress.slot {
        Some(slot) => format!("{} of slot {slot}", word(&progress.operation)),
        None => word(&progress.operation),
    };
    if progress.total_bytes == 0 {
        return format!("{what}: starting");
    }
    let rate = progress.rate_bytes_per_s.map_or("rate unknown".into(), |rate| format!("{}/s", human(rate)));
    let eta = progress.eta_s.map_or("time to go unknown".into(), |eta| format!("{} to go", span(eta)));
    let (done, total) = (human(progress.done_bytes), human(progress.total_bytes));
    format!("{what}: {} %, {done} of {total}, {rate}, {eta}", progress.percent)
}

/// The commands that make a filesystem.
pub(crate) fn mkfs(mkfs: &MkfsDoc) -> String {
    fields(&[("xfs", mkfs.xfs.clone()), ("ext4", mkfs.ext4.clone())])
}

/// Lines moved in by two blanks.
pub(crate) fn indented(text: &str) -> String {
    text.lines().fold(String::new(), |mut out, line| {
        let _ = writeln!(out, "  {line}");
        out
    })
}

/// What a changing verb did, or would do; `then` is what there is to see now.
pub(crate) fn action(action: &ActionDoc, then: &str) -> String {
    let mut text = String::new();
    let steps = action.steps.iter().fold(String::new(), |out, step| out + step + "\n");
    if action.dry_run {
        let _ = writeln!(text, "{} {} would (nothing was written):", action.verb, action.subject);
        text.push_str(&indented(if steps.is_empty() { "do nothing" } else { &steps }));
    } else {
        text.push_str(&steps);
        if steps.is_empty() {
            let _ = writeln!(text, "{} {}: done", action.verb, action.subject);
        }
    }
    text.push_str(then);
    text
}

#[cfg(test)]
mod tests {
    use server::control::model::Operation;

    use super::*;

    #[test]
    fn tables_align_and_end_without_blanks() {
        let rows = [vec!["A".into(), "BB".into()], vec!["ccc".into(), String::new()]];
        assert_eq!(table(&rows), "A    BB\nccc\n");
        assert_eq!(
            fields(&[("a", "1".into()), ("long", String::new()), ("bb", "2".into())]),
            "a   1\nbb  2\n"
        );
    }

    #[test]
    fn progress_says_unknown_rather_than_guess() {
        let doc = ProgressDoc::new(Operation::Rebuild, Some(3), 1 << 30, 4 << 30);
        assert_eq!(
            progress(&doc),
            "rebuild of slot 3: 25 %, 1 GiB of 4 GiB, rate unknown, time to go unknown"
        );
        let doc = doc.measured(0, Some(1 << 20));
        assert_eq!(progress(&doc), "rebuild of slot 3: 25 %, 1 GiB of 4 GiB, 1 MiB/s, 51 min 12 s to go");
    }
}
