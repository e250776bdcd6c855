//! `history`: what the daemon's charts show, as a table.

use server::control::model::{HistoryDoc, HistorySeriesDoc};
use server::control::names;
use server::control::request::HistoryOf;
use server::control::routes::Op;

use crate::args::HistoryArgs;
use crate::client::Client;
use crate::output::{Ended, Output};
use crate::render::{header, table};
use crate::units::{human, span};

/// Eight heights of a bar.
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Columns of the picture of a line.
const PICTURE: usize = 40;

pub(crate) fn run(args: &HistoryArgs, client: &Client, output: &Output) -> Ended {
    let mut of = HistoryOf { range: args.range.into(), ..HistoryOf::default() };
    if let Some(subject) = &args.of {
        let (group, disk) = subject.split_once('/').map_or((subject.as_str(), None), |(g, d)| (g, Some(d)));
        names::group_ref(group)?;
        disk.map_or(Ok(()), names::disk_name)?;
        (of.group, of.disk) = (Some(group.to_owned()), disk.map(str::to_owned));
    }
    output.document(&client.look(Op::History, &[], &of)?, text)
}

fn text(history: &HistoryDoc) -> String {
    let Some(series) = history.series.first().filter(|series| !series.at_unix_s.is_empty()) else {
        return format!("no samples yet; one every {}\n", span(u64::from(history.period_s)));
    };
    let first = series.at_unix_s.first().map_or(0, |&first| history.now_unix_s.saturating_sub(first));
    let what = match (&series.group, &series.disk) {
        (Some(group), Some(disk)) => format!("disk {group}/{disk}"),
        (Some(group), None) => format!("group {group}"),
        _ => "the whole daemon".to_owned(),
    };
    let mut rows = vec![header(&["", "NOW", "MEAN", "MOST", "OVER TIME"])];
    rows.extend(lines(series));
    let count = series.at_unix_s.len();
    let every = span(u64::from(history.period_s));
    format!("{what}: {count} samples, one every {every}, the oldest {} ago\n{}", span(first), table(&rows))
}

fn lines(series: &HistorySeriesDoc) -> Vec<Vec<String>> {
    let rate = |bytes: u64| format!("{}/s", human(bytes));
    let some = |all: &[u64]| all.iter().copied().map(Some).collect::<Vec<_>>();
    vec![
        line("read", &some(&series.read_bytes_per_s), rate),
        line("write", &some(&series.write_bytes_per_s), rate),
        line("reads a second", &some(&series.read_ops_per_s), |n| n.to_string()),
        line("writes a second", &some(&series.write_ops_per_s), |n| n.to_string()),
        line("read latency p50", &series.read_p50_ns, latency),
        line("read latency p99", &series.read_p99_ns, latency),
        line("write latency p50", &series.write_p50_ns, latency),
        line("write latency p99", &series.write_p99_ns, latency),
        line("cut into disks", &some(&series.used_bytes), human),
    ]
}

fn line(name: &str, values: &[Option<u64>], shown: impl Fn(u64) -> String) -> Vec<String> {
    let known: Vec<u64> = values.iter().copied().flatten().collect();
    let most = known.iter().copied().max();
    let count = u128::try_from(known.len()).unwrap_or(u128::MAX).max(1);
    let mean = known.iter().copied().map(u128::from).sum::<u128>() / count;
    let mean = most.map(|_| u64::try_from(mean).unwrap_or(u64::MAX));
    let text = |value: Option<u64>| value.map_or_else(|| "-".to_owned(), &shown);
    let now = values.last().copied().flatten();
    vec![name.to_owned(), text(now), text(mean), text(most), picture(values, most.unwrap_or(0))]
}

/// The line as bars, each the highest of its share of the samples; a blank where there is none.
fn picture(values: &[Option<u64>], most: u64) -> String {
    let share = values.len().div_ceil(PICTURE).max(1);
    let bar = |part: &[Option<u64>]| match part.iter().copied().flatten().max() {
        None => ' ',
        Some(value) => {
            let height = u128::from(value) * 7 / u128::from(most.max(1));
            BARS[usize::try_from(height).unwrap_or(7).min(7)]
        }
    };
    values.chunks(share).map(bar).collect()
}

fn latency(ns: u64) -> String {
    match ns {
        0..10_000 => format!("{ns} ns"),
        10_000..10_000_000 => format!("{} us", ns / 1000),
        _ => format!("{} ms", ns / 1_000_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_is_bounded_and_keeps_spikes() {
        let mut values = vec![Some(0); 300];
        values[150] = Some(u64::MAX);
        values[299] = None;
        let drawn = picture(&values, u64::MAX);
        assert!(drawn.chars().count() <= PICTURE, "{drawn}");
        assert_eq!(drawn.matches('█').count(), 1, "{drawn}");
        assert_eq!(picture(&[None, Some(0), None], 0), " ▁ ");
        assert_eq!(picture(&[], 0), "");
    }

    #[test]
    fn a_line_says_now_mean_and_most_of_what_is_known() {
        let told = line("x", &[Some(1), None, Some(3)], |n| n.to_string());
        assert_eq!(told[..4], ["x", "3", "2", "3"]);
        let nothing = line("x", &[None, None], |n| n.to_string());
        assert_eq!(nothing[..4], ["x", "-", "-", "-"]);
        assert_eq!([latency(9_999), latency(10_000), latency(20_000_000)], ["9999 ns", "10 us", "20 ms"]);
    }
}
