//! A headless Chromium, driven by the DevTools protocol over a pipe: what a person would see, read as text.
//!
//! The protocol runs over two pipes (descriptors 3 and 4 of the browser), a JSON object and a NUL byte each; so no port
//! is open and no web socket needed. One browser has one page.

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use serde_json::{Value, json};

use crate::daemon::PATIENCE;
use crate::tool;

/// Names under which a Chromium is installed, the smallest first.
const NAMES: &[&str] = &["chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"];

/// A browser with one page; killed when dropped.
#[derive(Debug)]
pub struct Browser {
    child: Child,
    to: ChildStdin,
    from: Receiver<Value>,
    session: Option<String>,
    calls: u64,
    /// Errors the page made: uncaught exceptions, console errors, refused or failed loads.
    errors: Vec<String>,
    /// Addresses the page asked for.
    requests: Vec<String>,
}

impl Browser {
    /// Whether there is a browser. If not, notes that the test is skipped (`tests/run` prints the list).
    #[must_use]
    pub fn is_there_or_skip(test: &str) -> bool {
        let is_there = program().is_some();
        if !is_there {
            tool::skip(test, "needs a Chromium (Debian package chromium-headless-shell)");
        }
        is_there
    }

    /// Starts a browser that keeps what it keeps in `profile`, and shows a blank page.
    #[must_use]
    pub fn start(profile: &Path) -> Self {
        let program = program().expect("asked for before");
        // Descriptors 3 and 4 are the pipes; whatever it prints is of no use.
        let script = "exec \"$0\" \"$@\" 3<&0 4>&1 </dev/null >/dev/null 2>&1";
        let profile = format!("--user-data-dir={}", tool::text(profile));
        let mut child = Command::new("sh")
            .args(["-c", script, tool::text(&program)])
            .args([
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--no-first-run",
            ])
            .args(["--disable-extensions", "--disable-background-networking", "--disable-component-update"])
            .args(["--disable-sync", "--hide-scrollbars", "--remote-debugging-pipe", &profile, "about:blank"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("sh runs");
        let to = child.stdin.take().expect("piped");
        let mut output = BufReader::new(child.stdout.take().expect("piped"));
        let (send, from) = channel();
        std::thread::spawn(move || {
            let mut message = Vec::new();
            while output.read_until(0, &mut message).is_ok_and(|n| n > 0) {
                message.pop();
                let value = serde_json::from_slice(&message).unwrap_or(Value::Null);
                message.clear();
                if send.send(value).is_err() {
                    return;
                }
            }
        });
        let mut browser =
            Self { child, to, from, session: None, calls: 0, errors: Vec::new(), requests: Vec::new() };
        browser.attach();
        browser
    }

    fn attach(&mut self) {
        let target = self.call("Target.createTarget", json!({ "url": "about:blank" }));
        let attached =
            self.call("Target.attachToTarget", json!({ "targetId": target["targetId"], "flatten": true }));
        self.session = attached["sessionId"].as_str().map(str::to_owned);
        for domain in ["Page", "Runtime", "Log", "Network"] {
            self.call(&format!("{domain}.enable"), json!({}));
        }
    }

    /// Calls a method of the protocol; its result.
    pub fn call(&mut self, method: &str, params: Value) -> Value {
        self.calls += 1;
        let mut message = json!({ "id": self.calls, "method": method, "params": params });
        if let Some(session) = &self.session {
            message["sessionId"] = json!(session);
        }
        let mut bytes = message.to_string().into_bytes();
        bytes.push(0);
        self.to.write_all(&bytes).unwrap_or_else(|error| panic!("{method}: the browser is gone: {error}"));
        let since = Instant::now();
        loop {
            let left = PATIENCE.saturating_sub(since.elapsed());
            let message =
                self.from.recv_timeout(left).unwrap_or_else(|error| panic!("{method}: no answer: {error}"));
            if message["id"] == json!(self.calls) {
                assert!(message["error"].is_null(), "{method}: {}", message["error"]);
                return message["result"].clone();
            }
            self.note(&message);
        }
    }

    /// Keeps what the page did meanwhile.
    fn note(&mut self, message: &Value) {
        let params = &message["params"];
        match message["method"].as_str().unwrap_or_default() {
            "Runtime.exceptionThrown" => self.errors.push(params["exceptionDetails"].to_string()),
            "Runtime.consoleAPICalled" if params["type"] == "error" || params["type"] == "warning" => {
                self.errors.push(params["args"].to_string());
            }
            "Log.entryAdded" => self.errors.push(params["entry"].to_string()),
            "Network.requestWillBeSent" => {
                self.requests.push(params["request"]["url"].as_str().unwrap_or_default().to_owned());
            }
            _ => {}
        }
    }

    /// Goes to an address.
    pub fn open(&mut self, url: &str) {
        let gone = self.call("Page.navigate", json!({ "url": url }));
        assert!(gone["errorText"].is_null(), "{url}: {gone}");
    }

    /// Runs this before anything of the pages that are opened from now on.
    pub fn before_pages(&mut self, script: &str) {
        self.call("Page.addScriptToEvaluateOnNewDocument", json!({ "source": script }));
    }

    /// Sets the size of the window, and whether the person prefers dark colours.
    pub fn look(&mut self, width: u32, height: u32, is_dark: bool) {
        self.call(
            "Emulation.setDeviceMetricsOverride",
            json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false }),
        );
        let scheme = if is_dark { "dark" } else { "light" };
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.call("Emulation.setEmulatedMedia", json!({ "features": features }));
    }

    /// The value of an expression.
    pub fn eval(&mut self, expression: &str) -> Value {
        let params = json!({ "expression": expression, "returnByValue": true, "awaitPromise": true });
        let result = self.call("Runtime.evaluate", params);
        assert!(result["exceptionDetails"].is_null(), "{expression}: {}", result["exceptionDetails"]);
        result["result"]["value"].clone()
    }

    /// The text of every element that fits a selector, as a person reads it.
    pub fn texts(&mut self, selector: &str) -> Vec<String> {
        let all = self.eval(&format!(
            "[...document.querySelectorAll({})].map(one => one.textContent)",
            json!(selector)
        ));
        let list = all.as_array().unwrap_or_else(|| panic!("{selector}: {all}"));
        list.iter().map(|text| text.as_str().unwrap_or_default().to_owned()).collect()
    }

    /// Waits until an expression is true.
    pub fn wait_for(&mut self, what: &str, expression: &str) {
        let since = Instant::now();
        while self.eval(expression) != json!(true) {
            if since.elapsed() >= PATIENCE {
                let text = self.eval("document.body.innerText");
                panic!("{what}: not within {PATIENCE:?}; the page says:\n{text}\nerrors: {:?}", self.errors);
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
    }

    /// Presses a key, by the DevTools' name.
    pub fn press(&mut self, key: &str) {
        for kind in ["keyDown", "keyUp"] {
            let code = if key == "Tab" { 9 } else { 13 };
            let text = if key == "Enter" && kind == "keyDown" { "\r" } else { "" };
            let params =
                json!({ "type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code, "text": text });
            self.call("Input.dispatchKeyEvent", params);
        }
    }

    /// Errors of the page since the last call.
    pub fn take_errors(&mut self) -> Vec<String> {
        self.eval("0");
        core::mem::take(&mut self.errors)
    }

    /// Every address the page has asked for.
    #[must_use]
    pub fn requests(&self) -> &[String] {
        &self.requests
    }

    /// A picture of the whole page into the folder `WARPRAID_SHOTS`, for people to look at; nothing without it.
    pub fn picture(&mut self, name: &str) {
        let Some(folder) = std::env::var_os("WARPRAID_SHOTS").map(PathBuf::from) else { return };
        let size = self.call("Page.getLayoutMetrics", json!({}))["cssContentSize"].clone();
        let clip = json!({ "x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1 });
        let params = json!({ "format": "png", "captureBeyondViewport": true, "clip": clip });
        let shot = self.call("Page.captureScreenshot", params);
        // Decoded by base64(1), so that no test needs a library for it.
        let encoded = folder.join(format!("{name}.b64"));
        std::fs::create_dir_all(&folder).expect("folder of the pictures");
        std::fs::write(&encoded, shot["data"].as_str().expect("a picture")).expect("picture");
        let decode = format!("base64 -d {0}.b64 > {0}.png && rm {0}.b64", folder.join(name).display());
        tool::run("sh", &["-c", &decode]);
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        tool::end(&mut self.child, tool::CLEANING_MAX);
    }
}

fn program() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    folders.push("/usr/bin".into());
    NAMES.iter().find_map(|name| folders.iter().map(|folder| folder.join(name)).find(|file| file.is_file()))
}
