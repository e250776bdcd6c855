//! The web page in a real browser: it says what `status` says, follows it without a reload, says so when the daemon is
//! gone, is usable from a telephone to a wall of screens, and nothing a drive or a group is called ever runs in it.
//!
//! `WARPRAID_SHOTS=DIR` keeps a picture of every state, for people to look at.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;

use serde_json::{Value, json};
use warpraid_tests::daemon::PATIENCE;
use warpraid_tests::{Browser, Daemon, Json, Lab, Stamped};

const DRIVE: u64 = 32 << 20;

/// A daemon with a page, and where the page is.
fn served(lab: &Lab) -> (Daemon, String) {
    let address = TcpListener::bind("127.0.0.1:0").and_then(|port| port.local_addr()).unwrap().to_string();
    let daemon = lab.daemon_with(&["--http", &address]);
    (daemon, address)
}

fn browser(lab: &Lab) -> Browser {
    Browser::start(&lab.join("browser"))
}

/// Opens the page and waits until it shows the daemon.
fn open(browser: &mut Browser, address: &str) {
    browser.open(&format!("http://{address}/"));
    browser.wait_for("the page", "document.querySelector('#link')?.dataset.state === 'live'");
}

fn word_is(browser: &mut Browser, word: &str) {
    let shown = "document.querySelector('#state [data-part=word]').textContent";
    browser.wait_for(word, &format!("{shown} === {}", json!(word)));
}

/// Everything the page says about problems, problem by problem.
fn shown_problems(browser: &mut Browser) -> Vec<[String; 5]> {
    let parts = ["health", "why", "risk", "next", "code"];
    let columns = parts.map(|part| browser.texts(&format!("#problems [data-part={part}]")));
    (0..columns[0].len()).map(|n| columns.each_ref().map(|column| column[n].clone())).collect()
}

/// The same from the document that the command line prints.
fn told_problems(status: &Json) -> Vec<[String; 5]> {
    let told = |one: Json| {
        [
            one.text("health").to_uppercase(),
            one.text("why"),
            one.text("risk"),
            one.text("next"),
            one.text("code"),
        ]
    };
    status.list("problems").into_iter().map(told).collect()
}

/// Waits until page and command line say the same of every problem, in the same order.
fn agree(browser: &mut Browser, daemon: &Daemon) {
    let mut last = (Vec::new(), Vec::new());
    warpraid_tests::tool::wait_until("page and status agree", PATIENCE, || {
        last = (shown_problems(browser), told_problems(&daemon.ok(&["status"])));
        last.0 == last.1
    });
    assert!(!last.0.is_empty(), "there are problems to agree on");
}

/// Nothing went wrong in the page and nothing was asked of anybody else.
fn assert_quiet(browser: &mut Browser, address: &str) {
    let errors = browser.take_errors();
    assert!(errors.is_empty(), "{errors:#?}");
    let own = format!("http://{address}/");
    let foreign: Vec<_> =
        browser.requests().iter().filter(|url| !url.starts_with(&own) && !url.starts_with("data:")).collect();
    assert!(foreign.is_empty() && !browser.requests().is_empty(), "asked of others: {foreign:?}");
}

#[test]
fn the_page_says_what_status_says_and_follows_it_without_a_reload() {
    if !Browser::is_there_or_skip("the_page_says_what_status_says_and_follows_it_without_a_reload") {
        return;
    }
    let lab = Lab::new("page");
    let (mut daemon, address) = served(&lab);
    let safe = lab.drives("s", 2, DRIVE);
    let hurt = lab.drives("h", 4, DRIVE);
    daemon.create("alpha", 1, &safe);
    daemon.create("zeta", 6, &hurt);
    daemon.disk("zeta/home", "8M");
    daemon.expose("zeta/home");
    daemon.wait("alpha", "healthy");
    daemon.wait("zeta", "healthy");
    let mut browser = browser(&lab);
    browser.look(1280, 900, false);
    open(&mut browser, &address);
    word_is(&mut browser, "HEALTHY");
    browser.eval("window.isTheSame = true");
    assert_eq!(browser.texts("#groups [data-part=name]"), ["alpha", "zeta"]);
    assert_eq!(browser.texts("#groups .slot").len(), 6);
    browser.wait_for("drives and disks", "document.querySelectorAll('#drives tr').length >= 6 && document.querySelectorAll('#disks tr').length === 1");
    assert!(browser.eval("document.title").as_str().unwrap().contains("HEALTHY"));
    let icon = browser.eval("document.querySelector('#favicon').href");
    assert!(icon.as_str().unwrap().starts_with("data:image/svg+xml"));
    browser.picture("healthy");

    daemon.fail(&hurt[1]);
    word_is(&mut browser, "WARNING");
    agree(&mut browser, &daemon);
    assert_eq!(browser.texts("#groups [data-part=name]"), ["zeta", "alpha"], "worst first");
    assert!(browser.eval("document.title").as_str().unwrap().contains("WARNING"));
    assert_ne!(browser.eval("document.querySelector('#favicon').href"), icon);
    let said = browser.texts("#announce").concat();
    assert!(said.contains("warning") && said.contains("zeta"), "for screen readers: {said:?}");
    browser.wait_for("the event", "document.querySelector('#events').textContent.includes('zeta')");
    browser.eval("document.querySelector('#problems details').open = true");
    let explained = "document.querySelector('#problems [data-part=explain]').textContent.length > 100";
    browser.wait_for("the explanation", explained);
    browser.picture("degraded");
    browser.eval("document.querySelector('#problems details').open = false");

    daemon.fail(&hurt[2]);
    word_is(&mut browser, "CRITICAL");
    agree(&mut browser, &daemon);
    browser.picture("critical");
    let spares = lab.drives("n", 2, DRIVE);
    daemon.replace("zeta", 1, &spares[0]);
    daemon.replace("zeta", 2, &spares[1]);
    word_is(&mut browser, "HEALTHY");
    assert_eq!(browser.texts("#problems li").len(), 0);
    assert_eq!(browser.eval("window.isTheSame"), json!(true), "the page was loaded once");
    assert_quiet(&mut browser, &address);

    daemon.kill();
    let lost = "document.querySelector('#state [data-part=word]').textContent.startsWith('DAEMON UNREACHABLE since ')";
    browser.wait_for("the banner", lost);
    assert_eq!(browser.eval("document.documentElement.classList.contains('stale')"), json!(true));
    assert_eq!(browser.texts("#link"), ["unreachable"]);
    assert!(browser.texts("#alarm").concat().contains("cannot be reached"));
    assert!(browser.eval("document.title").as_str().unwrap().contains("UNREACHABLE"));
    browser.picture("daemon-gone");
    daemon.start_again();
    for group in [("alpha", &safe), ("zeta", &hurt)] {
        daemon.bring_up(group.0, &[group.1.as_slice(), &spares].concat());
    }
    browser.wait_for("it is back", "document.querySelector('#link').dataset.state === 'live'");
    assert_eq!(browser.eval("document.documentElement.classList.contains('stale')"), json!(false));
    assert_eq!(browser.texts("#alarm"), [""]);
    assert_eq!(browser.eval("window.isTheSame"), json!(true));
}

#[test]
fn a_group_that_cannot_serve_is_the_first_thing_the_page_says() {
    if !Browser::is_there_or_skip("a_group_that_cannot_serve_is_the_first_thing_the_page_says") {
        return;
    }
    let lab = Lab::new("pageoff");
    let (daemon, address) = served(&lab);
    let drives = lab.drives("d", 3, DRIVE);
    daemon.create("tank", 5, &drives);
    daemon.fail(&drives[0]);
    daemon.ok(&["drive", "fail", drives[1].to_str().unwrap(), "--force"]);
    let mut browser = browser(&lab);
    browser.look(1280, 900, true);
    open(&mut browser, &address);
    word_is(&mut browser, "CRITICAL");
    agree(&mut browser, &daemon);
    assert_eq!(browser.texts("#groups [data-part=state]"), ["offline"]);
    assert_eq!(browser.texts("#groups [data-part=losses]"), ["no service"]);
    browser.picture("offline-dark");
    assert_quiet(&mut browser, &address);
}

#[test]
fn a_rebuild_shows_its_progress_and_a_load_its_history() {
    if !Browser::is_there_or_skip("a_rebuild_shows_its_progress_and_a_load_its_history") {
        return;
    }
    let lab = Lab::new("pagejob");
    let (daemon, address) = served(&lab);
    let drives = lab.drives("d", 4, 512 << 20);
    daemon.create("tank", 6, &drives);
    daemon.disk("tank/home", "64M");
    let export = daemon.expose("tank/home");
    let mut browser = browser(&lab);
    browser.look(1280, 900, false);
    open(&mut browser, &address);
    // A long operation runs: the first sync of a new group.
    let job = "document.querySelectorAll('#jobs .job').length > 0 || document.querySelector('#groups [data-part=state]').textContent === 'healthy'";
    browser.wait_for("a job, unless it is done already", job);
    browser.picture("syncing");
    let stamped = Stamped::new(1, export.size_bytes, 65536);
    let mut history = Json(Value::Null);
    warpraid_tests::tool::wait_until("samples of the load", PATIENCE, || {
        stamped.fill(&export);
        stamped.verify(&export);
        history = daemon.ok(&["history", "tank/home"]);
        let sum = |name: &str| {
            history.list(&format!("series.0.{name}")).iter().filter_map(|n| n.0.as_u64()).sum::<u64>()
        };
        sum("read_ops_per_s") > 0 && sum("write_bytes_per_s") > 65536 && sum("write_p99_ns") > 0
    });
    let lengths: Vec<usize> = ["at_unix_s", "read_p50_ns", "write_p99_ns", "used_bytes"]
        .map(|name| history.list(&format!("series.0.{name}")).len())
        .into();
    assert!(lengths.iter().all(|&n| n == lengths[0]), "{lengths:?}");
    browser.eval("document.querySelector('#subject').value = '&group=tank&disk=home'");
    browser.eval("document.querySelector('#chart-tools').dispatchEvent(new Event('change'))");
    let drawn = "[...document.querySelectorAll('.chart .curve.s1')].filter(one => one.tagName === 'path' && one.getAttribute('d').includes('L')).length >= 3";
    browser.wait_for("lines in the charts", drawn);
    browser.eval("document.querySelector('.plot').focus()");
    browser.press("ArrowLeft");
    browser.wait_for(
        "values under the cross-hair",
        "document.querySelector('.chart [data-part=values]').textContent.startsWith('at ')",
    );
    browser.picture("load");
    browser.eval("document.querySelector('input[value=\"24h\"]').click()");
    browser
        .wait_for("the other range", "document.querySelector('#chart-note').textContent.includes('5 min')");
    assert_quiet(&mut browser, &address);
}

/// Makes every text of every answer hostile before the page sees it.
const HOSTILE: &str = r#"
    const evil = `"'><img src=x onerror="window.pwned=1"><script>window.pwned=1</scr` + `ipt><a href="javascript:window.pwned=1">`;
    const spoil = (value, name) => Array.isArray(value) ? value.map(one => spoil(one, name))
        : value && typeof value === 'object' ? Object.fromEntries(Object.entries(value).map(([n, one]) => [n, spoil(one, n)]))
        : typeof value === 'string' && name !== 'range' ? value + evil : value;
    const plain = Response.prototype.json;
    Response.prototype.json = async function () { return spoil(await plain.call(this), ''); };
"#;

#[test]
fn hostile_names_stay_text() {
    if !Browser::is_there_or_skip("hostile_names_stay_text") {
        return;
    }
    let lab = Lab::new("pageevil");
    let (daemon, address) = served(&lab);
    // What can really be hostile: the path of a drive.
    let evil = "<img src=x onerror=window.pwned=1>\"'&amp;";
    let drives: Vec<PathBuf> = (0..3).map(|n| lab.drive(&format!("{n}{evil}"), DRIVE)).collect();
    daemon.create("tank", 5, &drives);
    daemon.fail(&drives[1]);
    let mut browser = browser(&lab);
    open(&mut browser, &address);
    agree(&mut browser, &daemon);
    assert!(browser.texts("#problems [data-part=why]").concat().contains(evil), "as it is called");
    browser.wait_for("the drives", "document.querySelectorAll('#drives tr').length >= 3");
    assert!(browser.texts("#drives [data-part=path]").concat().contains(evil));
    let is_clean = "window.pwned === undefined && document.querySelectorAll('img, #live script, #live a[href^=javascript]').length === 0";
    assert_eq!(browser.eval(is_clean), json!(true));
    assert_quiet(&mut browser, &address);
    // And whatever else a document could hold.
    browser.before_pages(HOSTILE);
    open(&mut browser, &address);
    browser.wait_for("the spoilt page", "document.querySelector('#groups').textContent.includes('pwned')");
    browser.eval("document.querySelector('#problems details').open = true");
    browser.wait_for("every list", "['#drives', '#problems', '#events'].every(one => document.querySelector(one).textContent.includes('pwned'))");
    browser.wait_for(
        "the explanation",
        "document.querySelector('#problems [data-part=explain]').textContent.includes('pwned')",
    );
    assert_eq!(browser.eval(is_clean), json!(true));
    assert!(browser.texts("#problems [data-part=next]").concat().contains("</script>"));
    browser.picture("hostile");
    // The spoilt code has no explanation, and nothing else went wrong.
    let errors = browser.take_errors();
    assert!(errors.iter().all(|error| error.contains("/v1/explain/")), "{errors:#?}");
    assert_quiet(&mut browser, &address);
}

#[test]
fn many_groups_fit_every_screen_and_updates_move_nothing() {
    if !Browser::is_there_or_skip("many_groups_fit_every_screen_and_updates_move_nothing") {
        return;
    }
    let lab = Lab::new("pagemany");
    let (daemon, address) = served(&lab);
    let mut drives = Vec::new();
    for group in 0..8 {
        let own = lab.drives(&format!("g{group}d"), 4, DRIVE);
        let name = format!("group{group}");
        daemon.create(&name, [5, 6, 10][group % 3], &own);
        daemon.disk(&format!("{name}/data"), "4M");
        daemon.wait(&name, "healthy");
        drives.push(own);
    }
    daemon.fail(&drives[5][2]);
    let mut browser = browser(&lab);
    for (width, height, is_dark, name) in [
        (380, 800, false, "many-narrow"),
        (380, 800, true, "many-narrow-dark"),
        (1280, 900, true, "many-dark"),
        (1600, 1000, false, "many"),
        (3840, 2160, false, "many-4k"),
    ] {
        browser.look(width, height, is_dark);
        open(&mut browser, &address);
        browser.wait_for("all of it", "document.querySelectorAll('#drives tr').length >= 32 && document.querySelectorAll('#groups > li').length === 8");
        assert_eq!(browser.texts("#groups [data-part=name]")[0], "group5", "worst first");
        let wide = browser.eval("document.documentElement.scrollWidth");
        assert!(wide.as_u64().unwrap() <= u64::from(width), "{name}: {wide} wide");
        let background = browser.eval(
            "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).every(n => n < 60)",
        );
        assert_eq!(background, json!(is_dark), "{name}");
        browser.picture(name);
    }
    // From here on only numbers change: nothing may move.
    browser.eval(
        "window.moved = 0; new PerformanceObserver(list => list.getEntries().forEach(one => window.moved += one.value)).observe({ type: 'layout-shift' })",
    );
    let began = browser.texts("#link").concat();
    for _ in 0..3 {
        let before = browser.texts("#link").concat();
        browser.wait_for(
            "an update",
            &format!("document.querySelector('#link').textContent !== {}", json!(before)),
        );
    }
    assert_ne!(browser.texts("#link").concat(), began);
    let moved = browser.eval("window.moved").as_f64().unwrap();
    assert!(moved < 0.001, "moved by {moved}");
    by_keyboard(&mut browser);
    assert_quiet(&mut browser, &address);
}

/// Everything that can be done is reached by Tab, in order, and shows that it has the focus.
fn by_keyboard(browser: &mut Browser) {
    browser.eval("document.activeElement.blur()");
    let mut seen = Vec::new();
    for _ in 0..60 {
        browser.press("Tab");
        let at = browser.eval(
            "[document.activeElement.className, document.activeElement.id, document.activeElement.closest('.slot') ? 'slot link' : '', document.activeElement.tagName, getComputedStyle(document.activeElement).outlineStyle].join(' ')",
        );
        seen.push(at.as_str().unwrap().to_owned());
    }
    let first = |what: &str| {
        seen.iter().position(|one| one.contains(what)).unwrap_or_else(|| panic!("no {what}: {seen:?}"))
    };
    let order = ["skip", "units", "copy", "SUMMARY", "slot link"].map(first);
    assert!(order.is_sorted(), "{order:?}");
    assert!(seen[first("copy")].contains("solid"), "{seen:?}");
    browser.eval("document.querySelector('.copy').focus()");
    browser.press("Enter");
    browser
        .wait_for("copied", "['Copied', 'Selected'].includes(document.querySelector('.copy').textContent)");
}

/// Sends a request as it is; the head and the body of the answer.
fn ask(address: &str, request: &str) -> (String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    (head.to_lowercase(), body.to_owned())
}

#[test]
fn the_page_is_served_read_only_to_this_host_with_its_policy() {
    let lab = Lab::new("pagedoor");
    let (daemon, address) = served(&lab);
    let drives = lab.drives("d", 3, DRIVE);
    daemon.create("tank", 5, &drives);
    let get = |method: &str, path: &str, host: &str| {
        ask(
            &address,
            &format!(
                "{method} {path} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
            ),
        )
    };
    for path in [
        "/",
        "/page.css",
        "/page.js",
        "/chart.js",
        "/v1/status",
        "/v1/history?range=24h",
        "/v1/explain/group.degraded",
        "/metrics",
    ] {
        let (head, body) = get("GET", path, &address);
        assert!(head.starts_with("http/1.1 200"), "{path}: {head}");
        assert!(!body.is_empty());
        for header in [
            "content-security-policy: default-src 'none';",
            "x-content-type-options: nosniff",
            "cache-control: no-store",
        ] {
            assert!(head.contains(header), "{path} lacks {header}: {head}");
        }
        assert!(
            !head.contains("set-cookie") && !head.contains("unsafe-") && !head.contains("access-control"),
            "{head}"
        );
        let (head, body) = get("HEAD", path, &address);
        assert!(head.starts_with("http/1.1 200") && body.is_empty(), "{path}: {head}{body}");
    }
    // Names that point here by somebody else's DNS, and nothing at all.
    for host in ["evil.example", "localhost.evil.example", "warpraid", ""] {
        let (head, body) = get("GET", "/v1/status", host);
        assert!(head.starts_with("http/1.1 403"), "{host}: {head}");
        assert!(head.contains("x-content-type-options") && !body.contains("tank"), "{body}");
    }
    let (_, port) = address.split_once(':').unwrap();
    for host in [format!("localhost:{port}"), format!("127.0.0.1:{port}"), format!("[::1]:{port}")] {
        assert!(get("GET", "/v1/status", &host).0.starts_with("http/1.1 200"), "{host}");
    }
    let before = daemon.group("tank");
    for (method, path) in [
        ("POST", "/v1/groups/tank/stop"),
        ("POST", "/v1/groups/tank/delete"),
        ("DELETE", "/v1/groups/tank"),
        ("PUT", "/"),
        ("POST", "/v1/status"),
        ("POST", "/"),
    ] {
        let (head, _) = get(method, path, &address);
        let refused =
            ["http/1.1 403", "http/1.1 405", "http/1.1 400"].iter().any(|status| head.starts_with(status));
        assert!(refused, "{method} {path}: {head}");
        assert!(head.contains("content-security-policy"), "{head}");
    }
    assert_eq!(daemon.group("tank").text("state"), before.text("state"));
    let (head, _) = get("GET", "/../etc/passwd", &address);
    assert!(head.starts_with("http/1.1 404"), "{head}");
}
