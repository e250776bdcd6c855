//! The one validator for names of groups and disks, so that CLI, API, NBD export names and the page agree (case AD-02).
//!
//! A name is `[A-Za-z0-9][A-Za-z0-9._-]{0,30}`: it can stand in a path, a shell, an NBD export name, an md `set_name` and a
//! GPT partition name without quoting, and never looks like an option or a hidden file. Names are unique ignoring case.

use core::fmt;

/// Longest name in bytes.
pub const NAME_BYTES_MAX: usize = 31;

/// Why a name is refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NameError {
    what: &'static str,
    name: String,
    why: Why,
}

#[derive(Clone, PartialEq, Eq, Debug)]
enum Why {
    Empty,
    TooLong(usize),
    First(char),
    Character(char),
}

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Debug form: a name full of newlines or escapes must not reach a terminal or a log as it is.
        let short: String = self.name.chars().take(NAME_BYTES_MAX).collect();
        let dots = if short.len() < self.name.len() { "..." } else { "" };
        write!(f, "{} name {short:?}{dots}: ", self.what)?;
        match self.why {
            Why::Empty => f.write_str("is empty")?,
            Why::TooLong(len) => write!(f, "has {len} bytes")?,
            Why::First(c) => write!(f, "starts with {c:?}")?,
            Why::Character(c) => write!(f, "contains {c:?}")?,
        }
        write!(f, "; allowed are 1 to {NAME_BYTES_MAX} of A-Z a-z 0-9 . _ -, the first a letter or digit")
    }
}

impl std::error::Error for NameError {}

/// Checks a name; `what` is what it names, for the message ("group", "disk").
///
/// # Errors
/// [`NameError`] says what is wrong and what is allowed.
pub fn check_name(what: &'static str, name: &str) -> Result<(), NameError> {
    let refuse = |why| Err(NameError { what, name: name.to_owned(), why });
    if name.len() > NAME_BYTES_MAX {
        return refuse(Why::TooLong(name.len()));
    }
    match name.chars().next() {
        None => return refuse(Why::Empty),
        Some(first) if !first.is_ascii_alphanumeric() => return refuse(Why::First(first)),
        Some(_) => {}
    }
    match name.chars().find(|&c| !(c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-'))) {
        Some(c) => refuse(Why::Character(c)),
        None => Ok(()),
    }
}

/// Whether two names are the same name.
#[must_use]
pub fn same_name(one: &str, other: &str) -> bool {
    one.eq_ignore_ascii_case(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ad_02_names_that_are_refused() {
        let long = "x".repeat(300);
        let bad = [
            "../x",
            "/dev/nvme0n1",
            ".",
            "..",
            "",
            &long,
            "a b",
            "a\nb",
            "-rf",
            "a\0b",
            "a\u{1f600}",
            "\u{1f600}",
            "a:b",
            ".hidden",
            "_x",
            "a/b",
            "\u{e4}b",
            "a\u{301}",
            "\u{1b}[31m",
            "a%41",
            "a*",
        ];
        for name in bad {
            let error = check_name("group", name).unwrap_err().to_string();
            assert!(error.starts_with("group name ") && error.contains("allowed are 1 to 31"), "{error}");
            assert!(error.len() < 300 && error.chars().all(|c| !c.is_control()), "{error:?}");
        }
    }

    #[test]
    fn ad_02_names_that_are_allowed() {
        let longest = "x".repeat(31);
        for name in ["a", "0", "tank", "nvme0n1", "a.b_c-d", "9-", &longest] {
            assert_eq!(check_name("disk", name), Ok(()));
        }
        assert!(check_name("disk", &"x".repeat(32)).is_err());
    }

    proptest::proptest! {
        /// Against the rule spelled out with a character table.
        #[test]
        fn ad_02_any_text_is_judged_by_the_rule(text in "\\PC{0,40}|[a-zA-Z0-9._-]{0,40}|[ -~]{0,3}") {
            const FIRST: &str = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
            let mut chars = text.chars();
            let fits = chars.next().is_some_and(|first| FIRST.contains(first))
                && chars.clone().count() <= 30
                && chars.all(|c| FIRST.contains(c) || "._-".contains(c));
            proptest::prop_assert_eq!(check_name("disk", &text).is_ok(), fits);
        }
    }

    #[test]
    fn ad_02_case_twins_are_one_name() {
        assert!(same_name("Tank", "tANK") && !same_name("tank", "tank1"));
    }
}
