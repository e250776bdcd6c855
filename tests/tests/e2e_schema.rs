//! Every verb in every state, as a script sees it: one JSON document on stdout that fits the shipped schema, and the exit
//! code that `explain` says of the error in it.
//!
//! Where a state could be changed by a verb it is tried with `--dry-run`, so that the state stands while all verbs pass
//! through it; the changes that lead from one state to the next are checked in the same way. A verb that gets a manual page
//! and no row here fails the test.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value;
use warpraid_tests::cli::{self, Answer};
use warpraid_tests::{Daemon, Lab, tool};

#[allow(unreachable_pub)] // Shared with the tests of the command line, where it is a module of a module.
#[path = "../../cli/tests/common/schema.rs"]
mod schema;

const DRIVE: u64 = 32 << 20;

/// Every verb, as typed in every state. `{d0}` to `{d4}` are the group's drives, `{new}` is blank, `{used}` carries a
/// filesystem, `{here}` is the folder, `{uuid}` the group's uuid. Nothing here changes anything that stays. With `!` it fails in
/// every state; every other one works in at least one.
const VERBS: &[&str] = &[
    "status",
    "health",
    "explain",
    "explain group.degraded",
    "!explain no.such.code",
    "events",
    "events --since 1h --limit 3",
    "events --group tank --code problem.raised",
    "!events --since never",
    "history",
    "history tank",
    "history tank/home --range 1h",
    "!history nobody",
    "alert test --dry-run",
    "upgrade --dry-run",
    "!upgrade --program /no/such/program",
    "drive list",
    "drive show {d0}",
    "drive show {d1}",
    "drive show {new}",
    "drive show {used}",
    "!drive show /no/such/drive",
    "drive wipe {d0} --dry-run",
    "drive wipe {d1} --dry-run",
    "drive wipe {used} --dry-run",
    "!drive wipe {used}",
    "!drive wipe {used} --yes --expect-uuid other",
    "drive fail {d0} --dry-run",
    "drive fail {d1} --dry-run",
    "!drive fail {new}",
    "spare list",
    "spare add {new} --global --dry-run",
    "spare add {new} --group tank --dry-run",
    "!spare add {used} --global",
    "!spare remove nobody",
    "fault list",
    "fault inject tank:0 slow --delay-ms 1 --dry-run",
    "fault inject {new} flip --dry-run",
    "!fault inject tank:77 fail",
    "!fault clear 77",
    "fault clear --all --dry-run",
    "group plan --level 5 {d0} {d1} {new}",
    "!group plan --level 6 {new} {new}",
    "!group plan --level 7 {new}",
    "!group create tank --level 1 {new} {used} --dry-run",
    "group create other --level 5 {d0} {d2} {d3} --dry-run",
    "!group create .bad --level 1 {new} {used}",
    "group list",
    "group show tank",
    "group show {uuid}",
    "!group show nobody",
    "group stop tank --dry-run",
    "!group stop nobody",
    "group assemble tank --dry-run",
    "group assemble --all --dry-run",
    "!group assemble nobody",
    "group delete tank --dry-run",
    "!group delete tank",
    "!group delete tank --yes --expect-uuid other",
    "group undelete tank --dry-run",
    "!group undelete nobody",
    "group adopt --name other {md0} {md1} --dry-run",
    "!group adopt --name other {md0} --yes",
    "!group adopt --name other {new} {used} --yes",
    "!group adopt --name other {md0} {md1}",
    "group release tank --dry-run",
    "!group release tank",
    "!group release nobody --yes",
    "layout plan {here}/layout.toml",
    "layout apply {here}/layout.toml --dry-run",
    "!layout apply {here}/layout.toml",
    "!layout plan {here}/wrong.toml",
    "!layout plan /no/such/file",
    "group replace tank --slot 1 {new} --dry-run",
    "!group replace tank --slot 1 {used} --dry-run",
    "!group replace tank --slot 77 {new}",
    "group readd tank {d1} --dry-run",
    "!group readd tank {new} --dry-run",
    "group scrub tank --dry-run",
    "group scrub tank --show",
    "!group scrub tank --acknowledge",
    "!group scrub nobody",
    "group set tank --scrub weekly --dry-run",
    "group set tank --returning ask --new-drive take --dry-run",
    "!group set tank --scrub-window noon",
    "!group set tank",
    "group wait tank --for rebuilt --timeout 1s",
    "group wait tank --for synced --timeout 1s",
    "!group wait nobody",
    "disk create tank/other --size 1M --dry-run",
    "!disk create tank/huge --size 100T",
    "!disk create tank --size 1M",
    "disk list",
    "disk list tank",
    "!disk list nobody",
    "disk show tank/home",
    "!disk show tank/nobody",
    "disk expose tank/home --nbd unix:{here}/other.nbd --dry-run",
    "!disk expose tank/home --nbd nonsense",
    "disk unexpose tank/home --dry-run",
    "disk resize tank/home --size 16M --dry-run",
    "!disk resize tank/home --size 1K",
    "disk delete tank/home --dry-run",
    "!disk delete tank/home",
    "examine {d0}",
    "examine {d1}",
    "examine {used}",
    "!examine /no/such/drive",
    "bench drives {new} --dry-run",
    "!bench group --level 9 --ram 8x1M",
    "bench disk tank/home --dry-run",
    "!bench parity --dry-run",
    "!bench compare /no/such/file /no/such/other",
    "!demo --drives 1",
    "!serve --state-dir {here}/state --http nonsense",
    "!no-such-verb",
];

/// Verbs whose result is no document: a page of a manual, a script for a shell.
const TEXTS: &[&str] = &["man", "completions"];

struct World {
    lab: Lab,
    daemon: Option<Daemon>,
    drives: Vec<PathBuf>,
    uuid: String,
    /// Exit code of each error code, from `explain`.
    exits: std::collections::BTreeMap<String, i32>,
    ran: u32,
    /// Rows that have worked.
    worked: BTreeSet<&'static str>,
}

impl World {
    fn new() -> Self {
        let lab = Lab::new("schema");
        let drives = lab.drives("d", 5, DRIVE);
        let _new = lab.drive("new", DRIVE);
        let used = lab.drive("used", DRIVE);
        tool::run("mkfs.ext4", &["-q", "-F", tool::text(&used)]);
        for n in 0..2 {
            let packed = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("golden/raid1/d{n}.img.gz"));
            let mut bytes = Vec::new();
            let mut golden = flate2::read::GzDecoder::new(std::fs::File::open(packed).unwrap());
            std::io::Read::read_to_end(&mut golden, &mut bytes).unwrap();
            std::fs::write(lab.join(&format!("md{n}")), bytes).unwrap();
        }
        // What the layout asks for is not there in any state: it is never applied.
        let layout = "[[group]]\nname = \"of_file\"\nlevel = 1\ndrives = [\"./new\", \"./blank\"]\n";
        let _blank = lab.drive("blank", DRIVE);
        std::fs::write(lab.join("layout.toml"), layout).unwrap();
        std::fs::write(lab.join("wrong.toml"), "[[group]]\ncolour = 3\n").unwrap();
        let daemon = lab.daemon_with(&["--allow-faults"]);
        let exits = std::collections::BTreeMap::new();
        let mut world = Self {
            lab,
            daemon: Some(daemon),
            drives,
            uuid: "none".into(),
            exits,
            ran: 0,
            worked: BTreeSet::new(),
        };
        let codes = world.run("explain").envelope.list("data.codes");
        for code in &codes {
            if let Some(exit) = code.at("exit_code").0.as_u64() {
                world.exits.insert(code.text("code"), i32::try_from(exit).unwrap());
            }
        }
        assert!(world.exits.len() > 40, "{:?}", world.exits);
        world
    }

    fn daemon(&mut self) -> &mut Daemon {
        self.daemon.as_mut().expect("it was started")
    }

    fn words(&self, verb: &str) -> Vec<String> {
        let path = |name: &str| tool::text(&self.lab.join(name)).to_owned();
        let filled = |word: &str| {
            let mut word = word.replace("{here}", tool::text(self.lab.path())).replace("{uuid}", &self.uuid);
            for (slot, drive) in self.drives.iter().enumerate() {
                word = word.replace(&format!("{{d{slot}}}"), tool::text(drive));
            }
            let word = word.replace("{new}", &path("new")).replace("{used}", &path("used"));
            word.replace("{md0}", &path("md0")).replace("{md1}", &path("md1"))
        };
        verb.split(' ').map(filled).collect()
    }

    /// Runs a verb and checks what every verb owes a script.
    fn run(&mut self, verb: &str) -> Answer {
        self.ran += 1;
        let answer = cli::run(&self.lab.join("run/admin.sock"), &self.words(verb));
        let document: Value = serde_json::from_str(&answer.stdout)
            .unwrap_or_else(|error| panic!("stdout is not one JSON document ({error}): {answer}"));
        schema::check_envelope(&document);
        if document["ok"] == true {
            let is_verdict = verb.starts_with("health") || verb.contains(" --wait");
            assert!(answer.exit == 0 || (is_verdict && answer.exit <= 3), "{answer}");
        } else if verb == "health" {
            assert_eq!(answer.exit, 3, "{answer}");
        } else if !self.exits.is_empty() {
            let code = document["error"]["code"].as_str().unwrap();
            assert_eq!(Some(&answer.exit), self.exits.get(code), "the exit code of {code}: {answer}");
            assert!(!document["error"]["message"].as_str().unwrap().is_empty(), "{answer}");
        }
        answer
    }

    fn ok(&mut self, verb: &str) -> Answer {
        let answer = self.run(verb);
        assert_eq!(answer.envelope.at("ok").0, true, "{answer}");
        answer
    }

    /// Every verb, in the state that stands now.
    fn all(&mut self, state: &str) {
        let (before, since) = (self.ran, std::time::Instant::now());
        for row in VERBS {
            let verb = row.trim_start_matches('!');
            if self.run(verb).envelope.at("ok").0 == true {
                self.worked.insert(row);
            }
        }
        println!("{state}: {} invocations in {:?}", self.ran - before, since.elapsed());
    }

    /// The state of the group, as `group show` has it.
    fn state(&mut self) -> String {
        self.ok("group show tank").envelope.text("data.state")
    }
}

#[test]
fn every_verb_in_every_state_prints_one_document_of_its_schema() {
    let mut world = World::new();
    world.all("no group");

    world.ok("group create tank --level 5 --yes {d0} {d1} {d2} {d3}");
    world.uuid = world.ok("group show tank").envelope.text("data.uuid");
    world.ok("group wait tank --timeout 60s");
    world.ok("disk create tank/home --size 4M");
    world.ok("disk expose tank/home --nbd unix:{here}/home.nbd");
    // Scrubbed first: whatever the hour, the schedule finds nothing due.
    world.ok("group scrub tank --wait");
    world.ok("group set tank --scrub weekly --scrub-window 01:00-05:00 --rebuild-target 2ms");
    world.ok("alert test");
    world.ok("disk resize tank/home --size 8M");
    world.all("healthy");
    let second = world.run("serve --state-dir {here}/state");
    second.fails(7, &[&world.daemon().pid().to_string()]);

    world.ok("drive fail {d1}");
    world.ok("fault inject tank:2 slow --delay-ms 1");
    world.all("degraded");
    world.ok("fault clear tank:2");

    // Each command of the drive that is rebuilt takes long enough for every verb to meet the rebuild.
    let slow = world.lab.drive("slow", DRIVE);
    world.drives[4] = slow;
    world.ok("fault inject {d4} slow --delay-ms 400");
    world.ok("group replace tank --slot 1 {d4}");
    assert_eq!(world.state(), "rebuilding");
    world.all("rebuilding");
    assert_eq!(world.state(), "rebuilding", "it was over before every verb had its turn");
    world.ok("fault clear --all");
    world.ok("group wait tank --timeout 60s");

    world.ok("fault inject {d2} slow --delay-ms 400");
    world.ok("group scrub tank");
    world.all("scrubbing");
    assert_eq!(world.ok("group scrub tank --show").envelope.text("data.state"), "running");
    world.ok("group scrub tank --pause");
    world.ok("group scrub tank --resume");
    world.ok("group scrub tank --cancel");
    world.ok("fault clear --all");

    world.ok("disk unexpose tank/home");
    world.ok("group stop tank");
    world.all("stopped");
    world.ok("group assemble tank");

    let uuid = world.uuid.clone();
    world.ok(&format!("group delete tank --yes --expect-uuid {uuid}"));
    world.all("deleted");
    world.ok("group undelete tank");
    world.ok("group wait tank --timeout 60s");
    world.all("not served");

    world.ok("drive fail {d0}");
    world.run("drive fail {d2}");
    world.ok("drive fail {d2} --force");
    assert_eq!(world.state(), "offline");
    world.all("offline");

    world.daemon().kill();
    for slot in [0, 3] {
        std::fs::rename(&world.drives[slot], world.lab.join(&format!("away{slot}"))).unwrap();
    }
    world.daemon().start_again();
    assert_eq!(world.state(), "stopped", "a group short of two members is not started");
    world.all("refused");

    world.daemon().stop();
    world.all("daemon down");
    for row in VERBS {
        assert_eq!(world.worked.contains(row), !row.starts_with('!'), "{row}: did it work anywhere?");
    }
}

/// The verbs that have a manual page.
fn documented(folder: &Path) -> BTreeSet<String> {
    tool::run(tool::text(cli::binary()), &["man", "--dir", tool::text(folder)]);
    let names: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter_map(|name| Some(name.strip_prefix("warpraid-")?.strip_suffix(".1")?.replace('-', " ")))
        .collect();
    let is_noun = |name: &String| names.iter().any(|other| other.starts_with(&format!("{name} ")));
    names.iter().filter(|name| !is_noun(name) && !TEXTS.contains(&name.as_str())).cloned().collect()
}

#[test]
fn every_verb_with_a_manual_page_has_a_row() {
    let lab = Lab::new("rows");
    let verbs = documented(&lab.join("man"));
    assert!(verbs.len() > 30, "{verbs:?}");
    for verb in verbs {
        let is_tried = |row: &str| row == verb || row.starts_with(&format!("{verb} "));
        let is_tried = VERBS.iter().any(|row| is_tried(row.trim_start_matches('!')));
        assert!(is_tried, "{verb} is tried in no state");
    }
}
