//! The OpenAPI 3.1 document, made from the table of operations and the serde types, so it cannot disagree with either.
//!
//! Served at `/openapi.json`; a copy for readers lies in `docs/openapi.json`, and a test keeps the two equal.

use schemars::generate::{SchemaGenerator, SchemaSettings};
use schemars::{JsonSchema, Schema};
use serde_json::{Map, Value, json};

use super::error::{ErrorCode, Exit};
use super::group_scrub::GroupScrub;
use super::group_set::GroupSet;
use super::model::{
    ActionDoc, DiskDoc, DiskListDoc, DriveDoc, DriveListDoc, Envelope, EventListDoc, ExplanationDoc,
    FaultListDoc, GroupDoc, GroupListDoc, HealthDoc, HistoryDoc, MAJOR, MINOR, NothingDoc, PlanDoc, ScrubDoc,
    SpareListDoc, StatusDoc, WaitDoc,
};
use super::request::{
    AlertTest, DiskCreate, DiskDelete, DiskExpose, DiskResize, DiskUnexpose, DisksOf, DriveFail, DriveWipe,
    EventsOf, FaultClear, FaultInject, GroupAdopt, GroupAssemble, GroupCreate, GroupDelete, GroupPlan,
    GroupReadd, GroupRelease, GroupReplace, GroupStop, GroupUndelete, GroupWait, HistoryOf, SpareAdd,
    SpareRemove, Upgrade,
};
use super::routes::{OPERATIONS, Op, Operation, Verb};

/// Schemas of what we write and of what we read are made apart: an optional field is always written, but may be left out
/// of a request.
struct Schemas {
    answers: SchemaGenerator,
    requests: SchemaGenerator,
}

impl Schemas {
    fn new() -> Self {
        let settings = || {
            SchemaSettings::draft2020_12().with(|settings| {
                settings.definitions_path = "/components/schemas".into();
                settings.meta_schema = None;
            })
        };
        Self {
            answers: settings().for_serialize().into_generator(),
            requests: settings().for_deserialize().into_generator(),
        }
    }

    fn answer<T: JsonSchema>(&mut self) -> Schema {
        self.answers.subschema_for::<Envelope<T>>()
    }

    /// The document an operation answers with.
    fn answer_of(&mut self, op: Op) -> Schema {
        match op {
            Op::Status => self.answer::<StatusDoc>(),
            Op::Health => self.answer::<HealthDoc>(),
            Op::Events => self.answer::<EventListDoc>(),
            Op::History => self.answer::<HistoryDoc>(),
            Op::Explain => self.answer::<ExplanationDoc>(),
            Op::Drives => self.answer::<DriveListDoc>(),
            Op::Drive => self.answer::<DriveDoc>(),
            Op::Faults => self.answer::<FaultListDoc>(),
            Op::Spares => self.answer::<SpareListDoc>(),
            Op::Groups => self.answer::<GroupListDoc>(),
            Op::Group => self.answer::<GroupDoc>(),
            Op::GroupPlan => self.answer::<PlanDoc>(),
            Op::GroupWait => self.answer::<WaitDoc>(),
            Op::Scrub => self.answer::<ScrubDoc>(),
            Op::Disks => self.answer::<DiskListDoc>(),
            Op::Disk => self.answer::<DiskDoc>(),
            Op::AlertTest
            | Op::Upgrade
            | Op::DriveWipe
            | Op::DriveFail
            | Op::FaultInject
            | Op::FaultClear
            | Op::SpareAdd
            | Op::SpareRemove
            | Op::GroupCreate
            | Op::GroupStop
            | Op::GroupAssemble
            | Op::GroupDelete
            | Op::GroupUndelete
            | Op::GroupAdopt
            | Op::GroupRelease
            | Op::GroupReadd
            | Op::GroupReplace
            | Op::GroupScrub
            | Op::GroupSet
            | Op::DiskCreate
            | Op::DiskExpose
            | Op::DiskUnexpose
            | Op::DiskResize
            | Op::DiskDelete => self.answer::<ActionDoc>(),
        }
    }

    /// The body an operation takes.
    fn body_of(&mut self, op: Op) -> Option<Schema> {
        let requests = &mut self.requests;
        Some(match op {
            Op::AlertTest => requests.subschema_for::<AlertTest>(),
            Op::Upgrade => requests.subschema_for::<Upgrade>(),
            Op::DriveWipe => requests.subschema_for::<DriveWipe>(),
            Op::DriveFail => requests.subschema_for::<DriveFail>(),
            Op::FaultInject => requests.subschema_for::<FaultInject>(),
            Op::FaultClear => requests.subschema_for::<FaultClear>(),
            Op::SpareAdd => requests.subschema_for::<SpareAdd>(),
            Op::SpareRemove => requests.subschema_for::<SpareRemove>(),
            Op::GroupPlan => requests.subschema_for::<GroupPlan>(),
            Op::GroupCreate => requests.subschema_for::<GroupCreate>(),
            Op::GroupStop => requests.subschema_for::<GroupStop>(),
            Op::GroupAssemble => requests.subschema_for::<GroupAssemble>(),
            Op::GroupDelete => requests.subschema_for::<GroupDelete>(),
            Op::GroupUndelete => requests.subschema_for::<GroupUndelete>(),
            Op::GroupAdopt => requests.subschema_for::<GroupAdopt>(),
            Op::GroupRelease => requests.subschema_for::<GroupRelease>(),
            Op::GroupReadd => requests.subschema_for::<GroupReadd>(),
            Op::GroupReplace => requests.subschema_for::<GroupReplace>(),
            Op::GroupScrub => requests.subschema_for::<GroupScrub>(),
            Op::GroupSet => requests.subschema_for::<GroupSet>(),
            Op::DiskCreate => requests.subschema_for::<DiskCreate>(),
            Op::DiskExpose => requests.subschema_for::<DiskExpose>(),
            Op::DiskUnexpose => requests.subschema_for::<DiskUnexpose>(),
            Op::DiskResize => requests.subschema_for::<DiskResize>(),
            Op::DiskDelete => requests.subschema_for::<DiskDelete>(),
            Op::Status
            | Op::Health
            | Op::Events
            | Op::History
            | Op::Explain
            | Op::Drives
            | Op::Drive
            | Op::Faults
            | Op::Spares
            | Op::Groups
            | Op::Group
            | Op::GroupWait
            | Op::Scrub
            | Op::Disks
            | Op::Disk => return None,
        })
    }

    /// The query an operation takes, as an object's schema.
    fn query_of(&self, op: Op) -> Option<Value> {
        let settings = SchemaSettings::draft2020_12().with(|settings| settings.inline_subschemas = true);
        let generator = settings.for_deserialize().into_generator();
        match op {
            Op::GroupWait => Some(generator.into_root_schema_for::<GroupWait>().to_value()),
            Op::History => Some(generator.into_root_schema_for::<HistoryOf>().to_value()),
            Op::Events => Some(generator.into_root_schema_for::<EventsOf>().to_value()),
            Op::Disks => Some(generator.into_root_schema_for::<DisksOf>().to_value()),
            _ => None,
        }
    }
}

/// The document.
#[must_use]
pub fn document() -> Value {
    let mut schemas = Schemas::new();
    let error = schemas.answer::<NothingDoc>();
    let mut paths = Map::new();
    for row in OPERATIONS {
        let method = if row.verb == Verb::Look { "get" } else { "post" };
        let described = described(row, &mut schemas, &error);
        let path = paths.entry(row.path).or_insert_with(|| json!({}));
        path[method] = described;
    }
    let mut components = schemas.answers.take_definitions(true);
    components.extend(schemas.requests.take_definitions(true));
    let codes: Map<String, Value> =
        ErrorCode::ALL.iter().map(|code| (code.to_string(), json!(code.exit().code()))).collect();
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "warpraid control API",
            "version": format!("{MAJOR}.{MINOR}"),
            "description": "HTTP over a unix socket. Every answer is an envelope; GET works on the read-only socket too. \
                All numbers are bytes, nanoseconds, unix seconds or counts.",
        },
        "servers": [{ "url": "http://localhost", "description": "the admin or the read-only unix socket" }],
        "paths": paths,
        "components": { "schemas": components },
        "x-error-codes-exit": codes,
    })
}

/// The document as the text that is served and lies in `docs/openapi.json`.
#[must_use]
pub fn document_text() -> String {
    let mut text = serde_json::to_string_pretty(&document()).expect("a JSON value can be written");
    text.push('\n');
    text
}

fn described(row: &Operation, schemas: &mut Schemas, error: &Schema) -> Value {
    let content = |schema: &Value| json!({ "application/json": { "schema": schema } });
    let error = content(error.as_value());
    let mut responses = Map::new();
    let answer = content(schemas.answer_of(row.op).as_value());
    responses.insert("200".into(), json!({ "description": "Done.", "content": answer }));
    for exit in Exit::ALL.into_iter().filter(|&exit| exit != Exit::Unreachable) {
        let description = format!("{exit:?}: exit code {} of the command line.", exit.code());
        responses
            .insert(exit.http_status().to_string(), json!({ "description": description, "content": error }));
    }
    let mut operation = json!({
        "operationId": row.command.replace(' ', "_"),
        "summary": row.summary,
        "description": format!("`warpraid {}`", row.command),
        "responses": responses,
    });
    let parameters = parameters(row, schemas);
    if !parameters.is_empty() {
        operation["parameters"] = Value::Array(parameters);
    }
    if let Some(body) = schemas.body_of(row.op) {
        operation["requestBody"] = json!({ "required": true, "content": content(body.as_value()) });
    }
    operation
}

fn parameters(row: &Operation, schemas: &Schemas) -> Vec<Value> {
    let in_path = row.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let mut parameters: Vec<Value> = in_path
        .map(|name| json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } }))
        .collect();
    let Some(query) = schemas.query_of(row.op) else { return parameters };
    let required = |name: &str| {
        query["required"].as_array().is_some_and(|all| all.iter().any(|one| one.as_str() == Some(name)))
    };
    for (name, schema) in query["properties"].as_object().into_iter().flatten() {
        parameters.push(json!({ "name": name, "in": "query", "required": required(name), "schema": schema }));
    }
    parameters
}
