//! A record as one HTML file with charts in SVG: nothing is loaded from anywhere, so it can be sent by mail.

use core::fmt::Write;

use super::text::time;
use crate::detail::Detail;
use crate::record::{Case, Record};
use crate::stats::f64_of;

const STYLE: &str = "body{font:15px/1.4 system-ui,sans-serif;margin:2em auto;max-width:62em;padding:0 1em;color:#1a1a1a;\
background:#fff}h2{margin-top:2em}table{border-collapse:collapse}td,th{padding:.15em .8em;text-align:left;\
border-bottom:1px solid #ddd}td.n{text-align:right;font-variant-numeric:tabular-nums}.bad{color:#b00020;font-weight:600}\
svg{display:block;margin:.6em 0}svg text{font:12px system-ui,sans-serif;fill:currentColor}.bar{fill:#3b6ea5}\
.odd{fill:#d1495b}.line{fill:none;stroke:#3b6ea5;stroke-width:2}.axis{stroke:#999}\
@media(prefers-color-scheme:dark){body{background:#151515;color:#e6e6e6}td,th{border-color:#444}.bad{color:#ff6b7d}}";

const WIDTH: f64 = 760.0;
/// Where bars begin.
const LEFT: f64 = 260.0;
/// What is kept free for the values right of the bars.
const RIGHT: f64 = 130.0;
const ROW: f64 = 22.0;
const PLOT: f64 = 160.0;

fn escaped(text: &str) -> String {
    let mut out = String::new();
    for letter in text.chars() {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            _ => out.push(letter),
        }
    }
    out
}

/// The end of a long name: where paths differ.
fn shortened(name: &str) -> String {
    let letters: Vec<char> = name.chars().collect();
    if letters.len() <= 36 {
        return name.to_owned();
    }
    let tail: String = letters[letters.len() - 35..].iter().collect();
    format!("\u{2026}{tail}")
}

/// The whole page.
#[must_use]
pub fn page(record: &Record) -> String {
    let machine = &record.machine;
    let mut page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
        <meta name=\"viewport\" content=\"width=device-width\"><title>warpraid bench</title>\
        <style>{STYLE}</style></head><body>\n<h1>warpraid bench</h1>\n<table>\n"
    );
    for (name, value) in [
        ("command", record.command.clone()),
        ("date", format!("{} s since 1970 (UTC)", record.date_unix_s)),
        ("version", record.commit.clone()),
        ("processor", format!("{}, {} cores", machine.cpu, machine.cores)),
        ("memory", format!("{} MiB", machine.mem_bytes >> 20)),
        ("kernel", machine.kernel.clone()),
    ] {
        let _ = writeln!(page, "<tr><th>{name}</th><td>{}</td></tr>", escaped(&value));
    }
    page.push_str("</table>\n");
    for case in &record.cases {
        page.push_str(&section(case));
    }
    page.push_str("</body></html>\n");
    page
}

fn section(case: &Case) -> String {
    let mut text = format!("<h2>{}</h2>\n", escaped(&case.id));
    let Some(detail) = &case.detail else {
        let shown = |value| crate::floors::show(case.unit, value);
        let _ =
            writeln!(text, "<p>{} (from {} to {})</p>", shown(case.median), shown(case.min), shown(case.max));
        return text;
    };
    let _ = writeln!(text, "<p>{} {}</p>", escaped(&detail.op), escaped(&detail.what));
    if detail.incomplete {
        text.push_str("<p class=\"bad\">Incomplete: stopped before its end.</p>\n");
    }
    let _ = writeln!(
        text,
        "<p>Aggregate {:.0} KiB/s, {:.0} IOPS. {}{}.</p>",
        detail.aggregate_bytes_per_s / 1024.0,
        detail.iops,
        if case.verified { "Verified: " } else { "<span class=\"bad\">Not verified</span>: " },
        escaped(&detail.verification)
    );
    for odd in &detail.judgement.outliers {
        let word = if odd.score < 0.0 { "slow" } else { "fast" };
        let _ = writeln!(
            text,
            "<p class=\"bad\">Outlier, {word}: {} {}: {:.0} % of the median.</p>",
            escaped(&odd.name),
            escaped(odd.serial.as_deref().unwrap_or("")),
            odd.of_median * 100.0
        );
    }
    for target in detail.targets.iter().filter(|target| target.has_failed()) {
        let why = target.first_error.as_deref().unwrap_or("brought what was not written");
        let _ = writeln!(text, "<p class=\"bad\">{} failed: {}.</p>", escaped(&target.name), escaped(why));
    }
    text.push_str("<h3>Throughput per target</h3>\n");
    text.push_str(&throughput(detail));
    text.push_str("<h3>Latency</h3>\n");
    text.push_str(&latency(detail));
    if detail.ops_over_time.len() > 1 {
        text.push_str("<h3>IOPS over time</h3>\n");
        text.push_str(&over_time(detail));
    }
    text
}

/// Horizontal bars: name, length from 0 to 1, value, whether it is odd.
fn bars(what: &str, rows: &[(String, f64, String, bool)]) -> String {
    let height = ROW * f64_of(u64::try_from(rows.len()).unwrap_or(0)) + 4.0;
    let mut text = format!(
        "<svg role=\"img\" aria-label=\"{what}\" width=\"{WIDTH}\" height=\"{height}\" \
        viewBox=\"0 0 {WIDTH} {height}\">\n"
    );
    let mut y = 2.0;
    for (name, length, value, is_odd) in rows {
        let width = (WIDTH - LEFT - RIGHT) * length.clamp(0.0, 1.0);
        let class = if *is_odd { "odd" } else { "bar" };
        let _ = writeln!(
            text,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\
            <rect class=\"{class}\" x=\"{LEFT}\" y=\"{}\" width=\"{width:.1}\" height=\"{}\"/>\
            <text x=\"{:.1}\" y=\"{}\">{}</text>",
            LEFT - 6.0,
            y + 15.0,
            escaped(&shortened(name)),
            y + 2.0,
            ROW - 4.0,
            LEFT + width + 6.0,
            y + 15.0,
            escaped(value)
        );
        y += ROW;
    }
    text.push_str("</svg>\n");
    text
}

fn throughput(detail: &Detail) -> String {
    let most = detail.targets.iter().map(|target| target.throughput_bytes_per_s).fold(0.0, f64::max);
    let rows: Vec<(String, f64, String, bool)> = (0..)
        .zip(&detail.targets)
        .map(|(index, target)| {
            let rate = target.throughput_bytes_per_s;
            let is_odd = detail.judgement.outliers.iter().any(|odd| odd.index == index);
            let length = if most > 0.0 { rate / most } else { 0.0 };
            (target.name.clone(), length, format!("{:.0} KiB/s", rate / 1024.0), is_odd)
        })
        .collect();
    bars("throughput per target", &rows)
}

fn latency(detail: &Detail) -> String {
    // Percentiles lie powers of ten apart: the length is that of the logarithm, from 1 us on.
    let length = |ns: u64| (f64_of(ns.max(1000)).log10() - 3.0) / 7.0;
    let rows: Vec<(String, f64, String, bool)> = detail
        .latency
        .named()
        .iter()
        .map(|(name, ns)| ((*name).to_owned(), length(*ns), time(*ns), false))
        .collect();
    bars("latency percentiles, logarithmic", &rows)
}

fn over_time(detail: &Detail) -> String {
    let per_s = |ops: u64| f64_of(ops) * 1e9 / f64_of(detail.slice_ns.max(1));
    let most = detail.ops_over_time.iter().map(|ops| per_s(*ops)).fold(1.0, f64::max);
    let count = f64_of(u64::try_from(detail.ops_over_time.len()).unwrap_or(1).max(2) - 1);
    let (left, width) = (80.0, WIDTH - 100.0);
    let mut points = String::new();
    for (index, ops) in (0..).zip(&detail.ops_over_time) {
        let x = left + width * f64_of(index) / count;
        let y = 10.0 + PLOT * (1.0 - per_s(*ops) / most);
        let _ = write!(points, "{x:.1},{y:.1} ");
    }
    let bottom = 10.0 + PLOT;
    let slices = u64::try_from(detail.ops_over_time.len()).unwrap_or(0);
    let end = time(detail.slice_ns.saturating_mul(slices));
    format!(
        "<svg role=\"img\" aria-label=\"IOPS over time\" width=\"{WIDTH}\" height=\"{h}\" viewBox=\"0 0 {WIDTH} {h}\">\n\
        <line class=\"axis\" x1=\"{left}\" y1=\"10\" x2=\"{left}\" y2=\"{bottom}\"/>\
        <line class=\"axis\" x1=\"{left}\" y1=\"{bottom}\" x2=\"{right}\" y2=\"{bottom}\"/>\
        <text x=\"{label}\" y=\"16\" text-anchor=\"end\">{most:.0}</text>\
        <text x=\"{label}\" y=\"{bottom}\" text-anchor=\"end\">0</text>\
        <text x=\"{right}\" y=\"{below}\" text-anchor=\"end\">{end}</text>\
        <polyline class=\"line\" points=\"{points}\"/></svg>\n",
        h = PLOT + 34.0,
        right = left + width,
        label = left - 6.0,
        below = bottom + 16.0,
        points = points.trim_end(),
    )
}

#[cfg(test)]
mod tests {
    use super::super::text::tests::case_of;
    use super::*;
    use crate::detail::Form;

    #[test]
    fn the_page_is_whole_and_loads_nothing() {
        let mut case = case_of(Form::Storagebench, &[100.0, 101.0, 10.0, 100.0]);
        case.detail.as_mut().unwrap().targets[0].name = "/dev/<script>&\"".into();
        let page = page(&Record::of_commit("v".into(), vec![case]));
        assert!(page.starts_with("<!doctype html>") && page.ends_with("</body></html>\n"));
        assert!(!page.contains("<script") && page.contains("/dev/&lt;script&gt;&amp;&quot;"));
        for outside in ["http:", "https:", "src=", "href=", "url(", "@import"] {
            assert!(!page.contains(outside), "{outside}");
        }
        assert_eq!(page.matches("<svg").count(), 3);
        assert_eq!(page.matches("<svg").count(), page.matches("</svg>").count());
        assert_eq!(page.matches("class=\"odd\"").count(), 1, "the slow one has its own colour");
        assert!(page.contains("p99.9") && page.contains("9.87 ms"));
    }
}
