//! What reaches stdout and stderr, and how a verb ends.
//!
//! Invariant: stdout carries the result and nothing else. With `-o json` it is exactly one envelope, the daemon's own bytes
//! re-indented, so fields of a newer daemon are never lost; errors too.

use std::io::{ErrorKind, IsTerminal, Write};
use std::process::ExitCode;

use clap::ValueEnum;
use serde::de::DeserializeOwned;
use serde_json::Value;
use server::control::http::{envelope, error_envelope};
use server::control::model::{Document, Envelope, MAJOR};
use server::control::{ApiError, ErrorCode, Exit, Reply};

/// How results are printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Format {
    /// For people
    Human,
    /// For programs: one envelope
    Json,
}

/// How a verb ended that did not work: our own error or the daemon's, with its envelope.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    pub(crate) code: String,
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
    envelope: Value,
}

impl From<ApiError> for Failure {
    fn from(error: ApiError) -> Self {
        let envelope = serde_json::to_value(error_envelope(&error)).unwrap_or_default();
        let exit = error.exit();
        Self { exit, code: error.code.to_string(), message: error.message, hint: error.hint, envelope }
    }
}

impl Failure {
    /// The envelope `-o json` prints of it.
    pub(crate) fn envelope(&self) -> Value {
        self.envelope.clone()
    }

    /// The failure in a daemon's answer. A code this binary does not know keeps its text; the HTTP status says its exit.
    pub(crate) fn from_daemon(status: u16, envelope: Value) -> Self {
        let text = |key: &str| envelope["error"][key].as_str().map(str::to_owned);
        let code = text("code").unwrap_or_default();
        let exit = ErrorCode::parse(&code).map_or(Exit::of_http_status(status), ErrorCode::exit);
        let message = text("message").unwrap_or_else(|| format!("the daemon answered HTTP {status}"));
        Self { exit, code, message, hint: text("hint"), envelope }
    }
}

/// What a verb ends with.
pub(crate) type Ended = Result<ExitCode, Failure>;

/// Where results go.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    format: Format,
}

impl Output {
    pub(crate) fn new(format: Format) -> Self {
        Self { format }
    }

    /// Whether stdout is for one envelope.
    pub(crate) fn is_json(&self) -> bool {
        self.format == Format::Json
    }

    /// Whether a person can be asked: words for people, and a terminal on both sides.
    pub(crate) fn is_interactive(&self) -> bool {
        self.format == Format::Human && std::io::stdin().is_terminal() && std::io::stderr().is_terminal()
    }

    /// Whether what stands on the screen may be drawn over.
    pub(crate) fn redraws(&self) -> bool {
        self.format == Format::Human && std::io::stdout().is_terminal()
    }

    /// Prints a part of a result that has no end, in the format asked for; false if nobody reads any more.
    pub(crate) fn streamed(&self, text: impl FnOnce(bool) -> String) -> Result<bool, Failure> {
        let mut out = std::io::stdout().lock();
        let text = text(self.format == Format::Json);
        match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
            Err(error) => {
                Err(ApiError::new(ErrorCode::Io, format!("the result cannot be written: {error}")).into())
            }
        }
    }

    /// Whether results are printed for people.
    pub(crate) fn is_human(&self) -> bool {
        self.format == Format::Human
    }

    /// Whether progress may be drawn on stderr.
    pub(crate) fn shows_progress(&self) -> bool {
        self.format == Format::Human && std::io::stderr().is_terminal()
    }

    /// Prints a daemon's answer: as it is, or rendered from the document in it.
    pub(crate) fn document<T: DeserializeOwned>(
        &self,
        answer: &Value,
        render: impl FnOnce(&T) -> String,
    ) -> Ended {
        if self.format == Format::Json {
            return self.json(answer);
        }
        let document: T = decoded(answer)?;
        for warning in answer["warnings"].as_array().into_iter().flatten() {
            eprintln!("warning: {}", warning["message"].as_str().unwrap_or_default());
        }
        self.text(&render(&document))
    }

    /// Prints a document made here, without a daemon.
    pub(crate) fn local<T: Document + DeserializeOwned>(
        &self,
        reply: Reply<T>,
        render: impl FnOnce(&T) -> String,
    ) -> Ended {
        let answer = serde_json::to_value(envelope(T::NAME, reply.data, reply.warnings));
        let answer =
            answer.map_err(|error| ApiError::new(ErrorCode::Internal, format!("the answer: {error}")))?;
        self.document(&answer, render)
    }

    fn json(&self, answer: &Value) -> Ended {
        self.text(&format!("{answer:#}\n"))
    }

    /// Prints text on stdout. A reader that went away is not an error; a full disk is.
    pub(crate) fn text(&self, text: &str) -> Ended {
        let mut out = std::io::stdout().lock();
        match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
            Ok(()) => Ok(ExitCode::SUCCESS),
            Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
            Err(error) => {
                Err(ApiError::new(ErrorCode::Io, format!("the result cannot be written: {error}")).into())
            }
        }
    }

    /// Says what went wrong; the exit code is the error's.
    pub(crate) fn failed(&self, failure: impl Into<Failure>) -> ExitCode {
        let failure = failure.into();
        match self.format {
            Format::Json => {
                // Where stdout is broken too, the exit code is all that is left.
                let _ = self.json(&failure.envelope);
            }
            Format::Human => {
                let hint = failure.hint.map(|hint| format!("\nhint: {hint}")).unwrap_or_default();
                let mut stderr = std::io::stderr().lock();
                let _ = writeln!(stderr, "error: {}{hint}", failure.message);
            }
        }
        ExitCode::from(failure.exit.code())
    }
}

/// The document in a daemon's answer.
pub(crate) fn decoded<T: DeserializeOwned>(answer: &Value) -> Result<T, Failure> {
    let strange = |why: String| {
        let message = format!("the daemon's answer is not understood: {why}");
        Failure::from(
            ApiError::new(ErrorCode::DaemonAnswer, message)
                .hint("daemon and command line may be of different versions: use -o json, or upgrade"),
        )
    };
    let envelope: Envelope<Value> =
        serde_json::from_value(answer.clone()).map_err(|error| strange(error.to_string()))?;
    if envelope.schema.major != MAJOR {
        return Err(strange(format!("schema {} {}.x", envelope.schema.name, envelope.schema.major)));
    }
    serde_json::from_value(envelope.data.unwrap_or_default()).map_err(|error| strange(error.to_string()))
}
