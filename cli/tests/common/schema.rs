//! Checks documents against the schema files in `docs/schemas`: as much of JSON Schema as those files use, and a panic at
//! any keyword this does not know, so that nothing goes unchecked.

use std::path::PathBuf;

use serde_json::Value;

pub fn docs() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs")
}

/// Checks the envelope's keys, and all of it against the schema its name says.
pub fn check_envelope(envelope: &Value) {
    let keys: Vec<&String> = envelope.as_object().expect("an object").keys().collect();
    assert_eq!(keys, ["data", "error", "ok", "schema", "warnings"], "{envelope}");
    let ok = envelope["ok"].as_bool().expect("ok is a bool");
    assert_eq!(envelope["data"].is_null(), !ok, "{envelope}");
    assert_eq!(envelope["error"].is_null(), ok, "{envelope}");
    let name = envelope["schema"]["name"].as_str().expect("a schema's name");
    let path = docs().join("schemas").join(format!("{name}.json"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let root: Value = serde_json::from_str(&text).unwrap();
    if let Err(why) = check(envelope, &root, &root, "") {
        panic!("{name}: {why}\n{envelope:#}");
    }
}

fn check(value: &Value, schema: &Value, root: &Value, at: &str) -> Result<(), String> {
    let wrong = |why: String| Err(format!("{at}: {why}"));
    let Some(rules) = schema.as_object() else {
        return if schema == &Value::Bool(true) { Ok(()) } else { wrong("nothing allowed here".into()) };
    };
    for (rule, arg) in rules {
        match rule.as_str() {
            "$schema" | "$defs" | "title" | "description" | "format" | "default" => {}
            "$ref" => {
                let pointer =
                    arg.as_str().unwrap().strip_prefix('#').expect("a reference into the same file");
                check(value, root.pointer(pointer).expect("the reference leads somewhere"), root, at)?;
            }
            "type" => {
                let one = |name: &Value| is_type(value, name.as_str().unwrap());
                let fits = arg.as_array().map_or_else(|| one(arg), |names| names.iter().any(one));
                if !fits {
                    return wrong(format!("{value} is not of type {arg}"));
                }
            }
            "const" if value == arg => {}
            "enum" if arg.as_array().unwrap().contains(value) => {}
            "const" | "enum" => return wrong(format!("{value} is not {arg}")),
            "minimum" if value.is_number() && value.as_f64() < arg.as_f64() => {
                return wrong(format!("{value} < {arg}"));
            }
            "maximum" if value.is_number() && value.as_f64() > arg.as_f64() => {
                return wrong(format!("{value} > {arg}"));
            }
            "minimum" | "maximum" => {}
            "minItems" | "maxItems" => {
                let n = value.as_array().map_or(0, Vec::len);
                let bound = usize::try_from(arg.as_u64().unwrap()).unwrap();
                if (rule == "minItems" && n < bound) || (rule == "maxItems" && n > bound) {
                    return wrong(format!("{n} items, {rule} {bound}"));
                }
            }
            "required" => {
                for key in arg.as_array().unwrap() {
                    if value.as_object().is_some_and(|object| !object.contains_key(key.as_str().unwrap())) {
                        return wrong(format!("{key} is missing"));
                    }
                }
            }
            "properties" => {
                for (key, member) in value.as_object().into_iter().flatten() {
                    // Documents of this version hold nothing the schema does not name.
                    let Some(rule) = arg.get(key) else {
                        return wrong(format!("{key} is not in the schema"));
                    };
                    check(member, rule, root, &format!("{at}/{key}"))?;
                }
            }
            "items" => {
                for (i, item) in value.as_array().into_iter().flatten().enumerate() {
                    check(item, arg, root, &format!("{at}/{i}"))?;
                }
            }
            "anyOf" | "oneOf" => {
                let tried: Vec<_> =
                    arg.as_array().unwrap().iter().map(|one| check(value, one, root, at)).collect();
                if !tried.iter().any(Result::is_ok) {
                    return wrong(format!("none of {rule} fits: {tried:?}"));
                }
            }
            "additionalProperties" => assert!(arg.is_boolean()),
            other => panic!("{at}: this checker does not know {other}"),
        }
    }
    Ok(())
}

fn is_type(value: &Value, name: &str) -> bool {
    match name {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        other => panic!("unknown type {other}"),
    }
}
