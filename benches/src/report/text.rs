//! A record as text: least, most, average and aggregate throughput and the list of all targets as BeeGFS StorageBench prints
//! them, with a line in the words of IOR, IOzone or fio where the preset is theirs, and the odd target named.

use core::fmt::Write;

use crate::detail::{Detail, Form, TargetRecord};
use crate::outlier::{Judgement, TARGETS_MIN, mean};
use crate::record::{Case, Record};

/// The whole record.
#[must_use]
pub fn record(record: &Record) -> String {
    let mut text = String::new();
    for case in &record.cases {
        if let Some(detail) = &case.detail {
            if !text.is_empty() {
                text.push('\n');
            }
            text.push_str(&detailed(case, detail));
        }
    }
    let plain: Vec<&Case> = record.cases.iter().filter(|case| case.detail.is_none()).collect();
    if !plain.is_empty() {
        if !text.is_empty() {
            text.push('\n');
        }
        text.push_str(&plain_table(&plain));
    }
    if !record.picks.is_empty() {
        let picks: Vec<String> =
            record.picks.iter().map(|(what, kernel)| format!("{what} {kernel}")).collect();
        let _ = writeln!(text, "\nFastest kernels here: {}", picks.join(", "));
    }
    text
}

/// A rate with its number ending in the column where StorageBench ends it.
fn row(label: &str, bytes_per_s: f64, rest: &str) -> String {
    let line = format!("{label:<21}{:>13.0}  KiB/s   {rest}", bytes_per_s / 1024.0);
    format!("{}\n", line.trim_end())
}

fn named(target: &TargetRecord) -> String {
    let serial = target.serial.as_ref().map(|serial| format!("  serial {serial}")).unwrap_or_default();
    format!("{}{serial}", target.name)
}

fn extremes(targets: &[TargetRecord]) -> Option<(&TargetRecord, &TargetRecord)> {
    let by =
        |a: &&TargetRecord, b: &&TargetRecord| a.throughput_bytes_per_s.total_cmp(&b.throughput_bytes_per_s);
    Some((targets.iter().min_by(by)?, targets.iter().max_by(by)?))
}

fn capital(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// The line of somebody else's benchmark.
fn other_form(detail: &Detail) -> String {
    let rate = detail.aggregate_bytes_per_s;
    let (mib, mb) = (rate / f64::from(1 << 20), rate / 1e6);
    match detail.form {
        Form::Storagebench => String::new(),
        Form::Ior => format!("Max {}: {mib:.2} MiB/sec ({mb:.2} MB/sec)\n", capital(&detail.op)),
        Form::Iozone => {
            let children = detail.targets.len();
            let threads = usize::try_from(detail.threads).unwrap_or(1);
            format!(
                "Children see throughput for {:>2} {} = {:>11.2} kB/sec\n",
                children * threads,
                detail.test,
                rate / 1024.0
            )
        }
        Form::Fio => {
            format!("{}: IOPS={:.0}, BW={mib:.1}MiB/s ({mb:.1}MB/s)\n", detail.op.to_uppercase(), detail.iops)
        }
    }
}

fn detailed(case: &Case, detail: &Detail) -> String {
    let mut text = format!("{} benchmark results: {}\n", capital(&detail.op), detail.what);
    if detail.incomplete {
        text.push_str("INCOMPLETE: stopped before its end; what follows is what was measured until then\n");
    }
    text.push_str(&other_form(detail));
    if let Some((least, most)) = extremes(&detail.targets) {
        let rates: Vec<f64> = detail.targets.iter().map(|target| target.throughput_bytes_per_s).collect();
        text += &row("Min throughput:", least.throughput_bytes_per_s, &format!("target: {}", named(least)));
        text += &row("Max throughput:", most.throughput_bytes_per_s, &format!("target: {}", named(most)));
        text += &row("Avg throughput:", mean(&rates), "");
        text += &row("Aggregate throughput:", detail.aggregate_bytes_per_s, "");
    }
    let latency: Vec<String> =
        detail.latency.named().iter().map(|(name, ns)| format!("{name} {}", time(*ns))).collect();
    let _ = writeln!(text, "Latency:             {}", latency.join("  "));
    let _ = writeln!(text, "IOPS:                {:>13.0}", detail.iops);
    text.push_str("\nList of all targets:\n");
    for (number, target) in (1..).zip(&detail.targets) {
        let state = if target.has_failed() { "  FAILED" } else { "" };
        let p99 = time(target.latency.p99_ns);
        let rest = format!("{}  p99 {p99}{state}", named(target));
        text += &row(&format!("{number}"), target.throughput_bytes_per_s, &rest);
    }
    for target in detail.targets.iter().filter(|target| target.has_failed()) {
        text.push_str(&failure(target));
    }
    text.push('\n');
    text.push_str(&judgement(&detail.judgement));
    let verified = if case.verified { "Verified: " } else { "Not verified: " };
    let _ = writeln!(text, "{verified}{}", detail.verification);
    if detail.targets.iter().any(|target| target.direct == Some(false)) {
        text.push_str("Note: some targets refuse O_DIRECT; the page cache took part\n");
    }
    text
}

fn failure(target: &TargetRecord) -> String {
    let mut text = String::new();
    if let Some(error) = &target.first_error {
        let count = target.errors;
        let noun = if count == 1 { "transfer" } else { "transfers" };
        let _ = writeln!(text, "FAILED: {}: {count} {noun} failed, first: {error}", named(target));
    }
    if let Some(at) = target.first_wrong_at_bytes {
        let count = target.wrong;
        let noun = if count == 1 { "transfer" } else { "transfers" };
        let _ = writeln!(
            text,
            "WRONG DATA: {}: {count} {noun} brought what was not written, first at byte {at}",
            named(target)
        );
    }
    text
}

fn judgement(judgement: &Judgement) -> String {
    if !judgement.judged {
        return format!("Outlier: cannot tell: it takes {TARGETS_MIN} targets to see which one is odd\n");
    }
    if judgement.outliers.is_empty() {
        return format!("Outlier: none ({})\n", judgement.rule);
    }
    let mut text = String::new();
    for odd in &judgement.outliers {
        let serial = odd.serial.as_ref().map(|serial| format!(", serial {serial}")).unwrap_or_default();
        let word = if odd.score < 0.0 { "SLOW" } else { "FAST" };
        let _ = writeln!(
            text,
            "Outlier: {word}: target {}, {}{serial}: {:.0} % of the median (score {:.1})",
            odd.index + 1,
            odd.name,
            odd.of_median * 100.0,
            odd.score
        );
    }
    let _ = writeln!(text, "         rule: {}", judgement.rule);
    text
}

/// Nanoseconds for people, three digits.
#[must_use]
pub fn time(ns: u64) -> String {
    let value = crate::stats::f64_of(ns);
    let (value, unit) = match ns {
        0..1_000 => (value, "ns"),
        1_000..1_000_000 => (value / 1e3, "us"),
        1_000_000..1_000_000_000 => (value / 1e6, "ms"),
        _ => (value / 1e9, "s"),
    };
    let digits = match value {
        _ if unit == "ns" => 0,
        0.0..10.0 => 2,
        10.0..100.0 => 1,
        _ => 0,
    };
    format!("{value:.digits$} {unit}")
}

fn plain_table(cases: &[&Case]) -> String {
    let width = cases.iter().map(|case| case.id.len()).max().unwrap_or(0);
    let mut text = String::new();
    for case in cases {
        let shown = crate::floors::show(case.unit, case.median);
        let range = format!(
            "({} to {})",
            crate::floors::show(case.unit, case.min),
            crate::floors::show(case.unit, case.max)
        );
        let call = case
            .work_bytes
            .filter(|_| case.median > 0.0)
            .map(|bytes| format!("  {:.0} ns per call", crate::stats::f64_of(bytes) * 1e9 / case.median));
        let wrong = if case.verified { "" } else { "  NOT VERIFIED" };
        let _ =
            writeln!(text, "{:<width$}  {shown:>14}  {range}{}{wrong}", case.id, call.unwrap_or_default());
    }
    text
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::detail::Latency;
    use crate::floors::{Floors, Unit};
    use crate::outlier::judge;

    /// A case of targets with these throughputs in KiB/s.
    pub(crate) fn case_of(form: Form, rates: &[f64]) -> Case {
        let latency = Latency {
            p50_ns: 410_000,
            p95_ns: 1_230_000,
            p99_ns: 9_870_000,
            p999_ns: 12_000_000,
            max_ns: 1_500_000_000,
        };
        let target = |(i, rate): (usize, &f64)| TargetRecord {
            name: format!("/dev/nvme{i}n1"),
            serial: (i != 1).then(|| format!("S{i}")),
            numa_node: None,
            direct: Some(true),
            ops: 2048,
            bytes: 1 << 30,
            elapsed_ns: 1_000_000_000,
            throughput_bytes_per_s: rate * 1024.0,
            latency,
            flush_ns: 0,
            errors: 0,
            first_error: None,
            wrong: 0,
            first_wrong_at_bytes: None,
        };
        let targets: Vec<TargetRecord> = rates.iter().enumerate().map(target).collect();
        let list: Vec<_> = targets
            .iter()
            .map(|target| (target.name.clone(), target.serial.clone(), target.throughput_bytes_per_s))
            .collect();
        let aggregate: f64 = rates.iter().map(|rate| rate * 1024.0).sum();
        let mut case = Case::measured(
            "drives.write.sequential.512K",
            Unit::BytesPerS,
            vec![aggregate],
            &Floors::built_in(),
        )
        .with_load(2, 1, true);
        case.detail = Some(Detail {
            what: "sequential, 512 KiB, 16 threads a target, queue depth 1".into(),
            form,
            test: "initial writers".into(),
            op: "write".into(),
            pattern: "sequential".into(),
            block_bytes: 512 << 10,
            threads: 16,
            queue_depth: 1,
            ops: 8192,
            bytes: 4 << 30,
            elapsed_ns: 1_000_000_000,
            aggregate_bytes_per_s: aggregate,
            iops: 8192.0,
            latency,
            slice_ns: 100_000_000,
            ops_over_time: vec![800, 820, 810],
            judgement: judge(&list),
            targets,
            verification: "every block that was written".into(),
            incomplete: false,
        });
        case
    }

    fn text(case: &Case) -> String {
        detailed(case, case.detail.as_ref().unwrap())
    }

    #[test]
    fn the_form_storage_people_know() {
        let case = case_of(Form::Storagebench, &[5_368_477.0, 5_368_537.0, 492_435.0, 5_368_500.0]);
        let want = "\
Write benchmark results: sequential, 512 KiB, 16 threads a target, queue depth 1
Min throughput:             492435  KiB/s   target: /dev/nvme2n1  serial S2
Max throughput:            5368537  KiB/s   target: /dev/nvme1n1
Avg throughput:            4149487  KiB/s
Aggregate throughput:     16597949  KiB/s
Latency:             p50 410 us  p95 1.23 ms  p99 9.87 ms  p99.9 12.0 ms  max 1.50 s
IOPS:                         8192

List of all targets:
1                          5368477  KiB/s   /dev/nvme0n1  serial S0  p99 9.87 ms
2                          5368537  KiB/s   /dev/nvme1n1  p99 9.87 ms
3                           492435  KiB/s   /dev/nvme2n1  serial S2  p99 9.87 ms
4                          5368500  KiB/s   /dev/nvme3n1  serial S3  p99 9.87 ms

Outlier: SLOW: target 3, /dev/nvme2n1, serial S2: 9 % of the median (score -61.3)
         rule: modified z-score of throughput beyond 3.5 and at least 10 % off the median, among 4 targets or more
Verified: every block that was written
";
        assert_eq!(text(&case), want);
    }

    #[test]
    fn the_words_of_other_benchmarks() {
        let line = |form| {
            let text = text(&case_of(form, &[1024.0, 1024.0]));
            text.lines().nth(1).unwrap().to_owned()
        };
        assert_eq!(line(Form::Ior), "Max Write: 2.00 MiB/sec (2.10 MB/sec)");
        assert_eq!(line(Form::Iozone), "Children see throughput for 32 initial writers =     2048.00 kB/sec");
        assert_eq!(line(Form::Fio), "WRITE: IOPS=8192, BW=2.0MiB/s (2.1MB/s)");
    }

    #[test]
    fn what_failed_is_said() {
        let mut case = case_of(Form::Storagebench, &[1.0, 2.0, 3.0]);
        case.verified = false;
        let detail = case.detail.as_mut().unwrap();
        detail.incomplete = true;
        detail.targets[0].errors = 1;
        detail.targets[0].first_error = Some("write at byte 4096: Medium".into());
        detail.targets[2].wrong = 2;
        detail.targets[2].first_wrong_at_bytes = Some(512);
        let said = text(&case);
        for line in [
            "INCOMPLETE: stopped before its end",
            "FAILED: /dev/nvme0n1  serial S0: 1 transfer failed, first: write at byte 4096: Medium\n",
            "WRONG DATA: /dev/nvme2n1  serial S2: 2 transfers brought what was not written, first at byte 512\n",
            "Outlier: cannot tell: it takes 4 targets",
            "Not verified: ",
        ] {
            assert!(said.contains(line), "{line}\n{said}");
        }
    }

    #[test]
    fn times_have_three_digits() {
        let cases = [(7, "7 ns"), (1234, "1.23 us"), (45_600_000, "45.6 ms"), (2_000_000_000, "2.00 s")];
        for (ns, want) in cases {
            assert_eq!(time(ns), want);
        }
    }
}
