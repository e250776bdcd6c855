//! What a browser gets on `serve --http`, beside the read-only API and `/metrics`.
//!
//! Now: an index of what can be read, made of the table of operations.

use axum::Router;
use axum::response::Html;
use axum::routing::get;

use crate::control::routes::{OPERATIONS, Verb};

/// The pages for people; the API's own routes are added by `control::http`.
#[must_use]
pub fn router() -> Router {
    Router::new().route("/", get(async || Html(index())))
}

fn index() -> String {
    let looks = OPERATIONS.iter().filter(|row| row.verb == Verb::Look && !row.path.contains('{'));
    let rows = looks.map(|row| (row.path, row.summary)).chain([
        ("/metrics", "Metrics in the text format of Prometheus."),
        ("/openapi.json", "All there is, described."),
    ]);
    let list: String =
        rows.map(|(path, what)| format!("<li><a href=\"{path}\">{path}</a> {what}</li>\n")).collect();
    format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>warpraid</title>\n<h1>warpraid</h1>\n<ul>\n{list}</ul>\n"
    )
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_index_names_what_can_be_read() {
        let index = super::index();
        for path in ["/v1/status", "/v1/events", "/metrics", "/openapi.json"] {
            assert!(index.contains(&format!("href=\"{path}\"")), "{path}");
        }
        assert!(!index.contains("wipe"), "it only looks");
    }
}
