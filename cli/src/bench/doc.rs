//! The documents of `bench`: the record and the comparison of the `benches` crate, under the names they have in the envelope.

use benches::compare::Comparison;
use benches::record::{Record, SCHEMA_NAME};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use server::control::model::Document;

/// A record.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub(super) struct BenchDoc(pub(super) Record);

impl Document for BenchDoc {
    const NAME: &'static str = SCHEMA_NAME;
}

/// Two records side by side.
#[derive(Debug, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub(super) struct CompareDoc(pub(super) Comparison);

impl Document for CompareDoc {
    const NAME: &'static str = "warpraid.bench.compare";
}

#[cfg(test)]
mod tests {
    use server::control::model::Envelope;

    use super::*;

    fn same_as_file<T: Document>() {
        let settings = schemars::generate::SchemaSettings::draft2020_12().for_serialize();
        let schema = settings.into_generator().into_root_schema_for::<Envelope<T>>();
        let text = serde_json::to_string_pretty(&schema).unwrap() + "\n";
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/schemas");
        let path = folder.join(format!("{}.json", T::NAME));
        if std::env::var_os("WARPRAID_WRITE_DOCS").is_some() {
            std::fs::write(&path, &text).unwrap();
        }
        let file = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(file == text, "{} is out of date: run the tests once with WARPRAID_WRITE_DOCS=1", T::NAME);
    }

    #[test]
    fn the_shipped_schemas_are_those_of_the_documents() {
        same_as_file::<BenchDoc>();
        same_as_file::<CompareDoc>();
    }
}
