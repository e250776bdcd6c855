//! What is shipped in `contrib/` names only metrics that exist.

use std::path::Path;

use server::metrics::{FAMILIES, Kind};

fn shipped(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../contrib").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Words that begin as our metrics do.
fn named(text: &str) -> Vec<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("warpraid_")).collect()
}

fn exists(name: &str) -> bool {
    FAMILIES.iter().any(|family| {
        let parts = ["_bucket", "_sum", "_count"];
        let is_part = parts.iter().any(|part| name.strip_suffix(part) == Some(family.name));
        if family.kind == Kind::Histogram { is_part } else { name == family.name }
    })
}

#[test]
fn rules_and_dashboard_name_only_metrics_that_exist() {
    for (file, at_least) in [
        ("prometheus/warpraid.rules.yml", 8),
        ("prometheus/warpraid.rules.test.yml", 5),
        ("grafana/warpraid.json", 15),
    ] {
        let text = shipped(file);
        let names = named(&text);
        assert!(names.len() >= at_least, "{file}: {names:?}");
        for name in names {
            assert!(exists(name), "{file}: there is no metric {name}");
        }
    }
}

#[test]
fn the_dashboard_is_json_with_a_query_in_every_panel() {
    let dashboard: serde_json::Value = serde_json::from_str(&shipped("grafana/warpraid.json")).unwrap();
    let panels = dashboard["panels"].as_array().unwrap();
    assert!(panels.len() >= 12);
    for panel in panels {
        let targets = panel["targets"].as_array().unwrap();
        assert!(targets.iter().all(|target| !named(target["expr"].as_str().unwrap()).is_empty()), "{panel}");
    }
}

#[test]
fn names_are_in_base_units_and_counters_say_total() {
    for family in FAMILIES {
        assert!(family.name.starts_with("warpraid_"), "{}", family.name);
        assert_eq!(family.name.ends_with("_total"), family.kind == Kind::Counter, "{}", family.name);
        let is_unit = |word: &str| ["ns", "ms", "us", "kib", "mib", "percent"].contains(&word);
        assert!(!family.name.split('_').any(is_unit), "{}", family.name);
    }
}
