//! The text format of Prometheus (version 0.0.4).

use core::fmt::Write as _;

use nvme_backend::meter::{Metered, bucket_ns};

use super::{FAMILIES, Family, Kind};

/// Labels of a sample.
type Labels<'a> = &'a [(&'a str, &'a str)];

/// A page of metrics under construction. Samples of one family are written together, as the format wants it.
#[derive(Debug, Default)]
pub struct Text {
    out: String,
    current: Option<&'static Family>,
    done: Vec<&'static str>,
}

impl Text {
    /// Samples of this family follow.
    ///
    /// # Panics
    /// If the family is not in [`FAMILIES`], or was begun before.
    pub fn begin(&mut self, name: &'static str) {
        let family = FAMILIES.iter().find(|family| family.name == name);
        let family = family.unwrap_or_else(|| panic!("{name} is not in the list of metrics"));
        assert!(!self.done.contains(&name), "{name} was written before");
        let kind = match family.kind {
            Kind::Gauge => "gauge",
            Kind::Counter => "counter",
            Kind::Histogram => "histogram",
        };
        self.done.push(name);
        self.current = Some(family);
        let _ = writeln!(self.out, "# HELP {name} {}\n# TYPE {name} {kind}", family.help);
    }

    fn name(&self) -> &'static str {
        self.current.expect("a family was begun").name
    }

    /// A sample of the family begun last.
    pub fn sample(&mut self, labels: Labels<'_>, value: u64) {
        self.line(self.name(), "", labels, None, &value.to_string());
    }

    /// A sample for each state: 1 for this one, 0 for the others.
    pub fn states(&mut self, labels: Labels<'_>, label: &str, all: &[&str], is: &str) {
        for state in all {
            let mut labels = labels.to_vec();
            labels.push((label, state));
            self.sample(&labels, u64::from(*state == is));
        }
    }

    /// A histogram of the family begun last.
    pub fn histogram(&mut self, labels: Labels<'_>, of: &Metered) {
        let name = self.name();
        let mut sum = 0;
        for (i, count) in of.buckets.iter().enumerate() {
            sum += count;
            let end = bucket_ns(i).map_or_else(|| "+Inf".to_owned(), seconds);
            self.line(name, "_bucket", labels, Some(&end), &sum.to_string());
        }
        self.line(name, "_sum", labels, None, &seconds(of.time_ns));
        self.line(name, "_count", labels, None, &sum.to_string());
    }

    fn line(&mut self, name: &str, suffix: &str, labels: Labels<'_>, le: Option<&str>, value: &str) {
        self.out.push_str(name);
        self.out.push_str(suffix);
        let le = le.map(|end| ("le", end));
        let mut separator = '{';
        for (label, text) in labels.iter().copied().chain(le) {
            let _ = write!(self.out, "{separator}{label}=\"{}\"", escaped(text));
            separator = ',';
        }
        if separator == ',' {
            self.out.push('}');
        }
        let _ = writeln!(self.out, " {value}");
    }

    /// The page.
    #[must_use]
    pub fn finish(self) -> String {
        self.out
    }
}

/// Nanoseconds as decimal seconds, exactly.
fn seconds(ns: u64) -> String {
    let text = format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use nvme_backend::meter::Meter;

    use super::*;

    #[test]
    fn samples_are_as_the_format_wants_them() {
        let mut text = Text::default();
        text.begin("warpraid_group_state");
        text.states(&[("group", "a\"b\\c\nd")], "state", &["on", "off"], "off");
        text.begin("warpraid_start_time_seconds");
        text.sample(&[], 7);
        let page = text.finish();
        let lines: Vec<&str> = page.lines().collect();
        assert_eq!(lines[2], r#"warpraid_group_state{group="a\"b\\c\nd",state="on"} 0"#);
        assert_eq!(lines[3], r#"warpraid_group_state{group="a\"b\\c\nd",state="off"} 1"#);
        assert_eq!(lines[6], "warpraid_start_time_seconds 7");
    }

    #[test]
    fn a_histogram_is_cumulative_in_seconds() {
        let meter = Meter::default();
        meter.record(8192, 1, true);
        meter.record(8193, 1, true);
        meter.record(3_000_000_000_000, 1, true);
        let mut of = Metered::default();
        of.add(&meter);
        let mut text = Text::default();
        text.begin("warpraid_disk_latency_seconds");
        text.histogram(&[("op", "read")], &of);
        let page = text.finish();
        assert!(page.contains("_bucket{op=\"read\",le=\"0.000008192\"} 1\n"), "{page}");
        assert!(page.contains("_bucket{op=\"read\",le=\"0.000016384\"} 2\n"), "{page}");
        assert!(page.contains("_bucket{op=\"read\",le=\"+Inf\"} 3\n"), "{page}");
        assert!(page.contains("_sum{op=\"read\"} 3000.000016385\n"), "{page}");
        assert!(page.contains("_count{op=\"read\"} 3\n"), "{page}");
    }

    #[test]
    #[should_panic(expected = "is not in the list of metrics")]
    fn a_name_that_is_not_listed_is_refused() {
        Text::default().begin("warpraid_surprise");
    }
}
