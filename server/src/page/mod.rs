//! The web page: files made part of the binary, and the headers that keep them harmless.
//!
//! The page is a reader of the read-only API and nothing more. Invariants: every answer to a browser carries
//! [`HEADERS`], whose policy lets the page load its own files, talk to its own origin, and run nothing that stands in a
//! document or a name; no cookie is ever set; nothing is loaded from anywhere else.

use axum::Router;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

/// Path, media type and text of every file of the page.
pub const FILES: &[(&str, &str, &str)] = &[
    ("/", "text/html; charset=utf-8", include_str!("index.html")),
    ("/page.css", "text/css; charset=utf-8", include_str!("page.css")),
    ("/page.js", "text/javascript; charset=utf-8", include_str!("page.js")),
    ("/history.js", "text/javascript; charset=utf-8", include_str!("history.js")),
    ("/chart.js", "text/javascript; charset=utf-8", include_str!("chart.js")),
    ("/dom.js", "text/javascript; charset=utf-8", include_str!("dom.js")),
    ("/text.js", "text/javascript; charset=utf-8", include_str!("text.js")),
];

/// Headers of every answer over TCP, also of documents and errors. Images: only the icon, which the page makes itself.
pub const HEADERS: [(HeaderName, &str); 7] = [
    (
        header::CONTENT_SECURITY_POLICY,
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'",
    ),
    (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (header::X_FRAME_OPTIONS, "DENY"),
    (header::REFERRER_POLICY, "no-referrer"),
    (header::CACHE_CONTROL, "no-store"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
];

/// Adds [`HEADERS`] to an answer.
fn secure(headers: &mut HeaderMap) {
    for (name, value) in HEADERS {
        headers.insert(name, HeaderValue::from_static(value));
    }
}

/// A router whose every answer, refusals too, has [`HEADERS`].
pub fn secured(router: Router) -> Router {
    router.layer(axum::middleware::map_response(async |mut answer: Response| {
        secure(answer.headers_mut());
        answer
    }))
}

/// The files as routes for GET and HEAD.
pub fn router() -> Router {
    FILES.iter().fold(Router::new(), |router, &(path, media_type, text)| {
        let file = async move || ([(header::CONTENT_TYPE, media_type)], text).into_response();
        router.route(path, get(file))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_is_small_whole_and_loads_nothing_from_elsewhere() {
        let bytes: usize = FILES.iter().map(|(_, _, text)| text.len()).sum();
        assert!(bytes <= 60 * 1024, "{bytes} bytes");
        for (path, _, text) in FILES {
            // An address of another origin: only the name of the SVG namespace, which nobody loads.
            let foreign = text.replace("http://www.w3.org/2000/svg", "");
            assert!(!foreign.contains("http:") && !foreign.contains("https:"), "{path}");
            for import in text.split("from './").skip(1).chain(text.split("src=\"/").skip(1)) {
                let name = import.split(['\'', '"']).next().unwrap();
                assert!(FILES.iter().any(|(path, ..)| path[1..] == *name), "{path} wants {name}");
            }
        }
    }

    #[test]
    fn names_go_into_the_page_as_text_only() {
        for (path, _, text) in FILES {
            for word in [
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "eval(",
                "new Function",
                "style=\"",
            ] {
                assert!(!text.contains(word), "{path} has {word}");
            }
        }
    }
}
